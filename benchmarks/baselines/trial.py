"""One trial, which notes where and when it ran, in $BENCH_NOTES.

    python trial.py [--lr=X]      as a program, for the launcher; `trial_jax.py` is one with JAX
    import trial                  as a function, for who runs functions

A note has the `place`, the `begin` and the `end`, and the `first` statement of the program's own.
The begin of a program is that of its process: what Python takes to start is the trial's own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

NOTES = "BENCH_NOTES"
CHIPS = "TPU_VISIBLE_CHIPS"


def run(place: str, begin: float, with_jax: bool) -> float:
    """The trial's value, as a function."""
    return noted(place, begin, step if with_jax else nothing)


def noted(place: str, begin: float, what: Callable[[], float]) -> float:
    """Its value. One short write does not mix with that of another process."""
    first, value = time.time(), what()
    note = {"place": place, "begin": begin, "first": first, "end": time.time()}
    line = json.dumps(note) + "\n"
    with open(os.environ[NOTES], "a", encoding="utf-8") as notes:
        notes.write(line)
    return value


def nothing() -> float:
    return 0.5


def step() -> float:
    """Import JAX, compile one step and run it."""
    import jax
    import jax.numpy as jnp

    gradient = jax.jit(jax.grad(lambda x: jnp.tanh(x @ x).sum()))
    return float(gradient(jnp.ones((64, 64)))[0, 0])


def process_begin() -> float:
    """When the kernel started this process, in seconds since the epoch."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22, of which 3 are off
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def main(what: Callable[[], float] = nothing) -> None:
    value = noted(os.environ.get(CHIPS, ""), process_begin(), what)
    with open(os.environ["LAUNCHER_METRICS"], "a", encoding="utf-8") as metrics:
        metrics.write(json.dumps({"step": 1, "accuracy": value}) + "\n")


if __name__ == "__main__":
    main()
