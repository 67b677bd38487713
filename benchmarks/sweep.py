"""Times sweeps beside what else runs them, and prints a Markdown table.

    python benchmarks/sweep.py [--only trivial|jax] [-n RUNS] [--hydra-ray PYTHON]

trivial  20 trials that do nothing, four at a time: the launcher (a grid, and a search) / one after
         the other by Hydra's own launcher / hydra-ray-launcher / tasks of Ray, with nothing around
         them / Ray Tune with actors used again
jax      8 trials that import JAX and run one step, with nothing compiled yet; the launcher's cold,
         and warm, with `mode.standby`

A trial of the launcher is a process of its own; those of the others are calls of a function. Every
trial notes its begin and end. Trials a second are counted over the whole command, as a user waits
for it, and again from the first begin to the last end, when everything is up. The gap is the median
time, in one place, from the end of a trial to the begin of the next one's process, or to its first
own statement where the process has waited for it.

hydra-ray-launcher wants an older cloudpickle than others do: PYTHON is the interpreter of an
environment that has it (`pip install hydra-ray-launcher 'ray[default]==2.60.*' jax`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

BASELINES = Path(__file__).with_name("baselines")
sys.path.insert(0, str(BASELINES))  # its scripts import each other by name

import ray_cluster  # noqa: E402
import trial  # noqa: E402

PLACES = 4  # a v6e-4 has one host of four chips
TRIALS = {"trivial": 20, "jax": 8}
SECONDS = 600.0
WARM = "mode.standby=true"
Span = tuple[float, float, float]  # the end of a trial, its first statement, its begin
COMPILED = "JAX_COMPILATION_CACHE_DIR"
PASSED = (trial.NOTES, COMPILED, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@dataclass(frozen=True, slots=True)
class Contender:
    """One command. `target` is the lowest ratio of the launcher's trials a second to its, over
    whole commands, that we want; `rival` is which of the launcher's own it is compared with.
    """

    name: str
    argv: tuple[str, ...]
    target: float | None = None
    rival: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials a second over the whole command, and once up; the gap between two in one place."""

    whole: float
    up: float
    gap: float | None


def time_sweep(argv: Sequence[str], variables: Mapping[str, str], trials: int) -> Sweep:
    """Run a command in a folder of its own; SystemExit with its last words when it fails."""
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:
        notes = Path(folder, "notes")
        own = {trial.NOTES: str(notes), "LAUNCHER_HOME": f"{folder}/home"}
        start = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**variables, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        whole = time.monotonic() - start
        lines = notes.read_text().splitlines() if notes.exists() else []
    if done.returncode or len(lines) != trials:
        words = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        raise SystemExit(f"{argv} failed, after {len(lines)} of {trials} trials:\n{words}")
    return measured(whole, [json.loads(line) for line in lines])


def measured(whole: float, notes: Sequence[Mapping[str, object]]) -> Sweep:
    spans: dict[object, list[Span]] = defaultdict(list)
    for note in notes:
        end, first, begin = (float(str(note[key])) for key in ("end", "first", "begin"))
        spans[note["place"]].append((end, first, begin))
    begin = min(span[2] for found in spans.values() for span in found)
    end = max(span[0] for found in spans.values() for span in found)
    gaps = [
        gap(before, after) for found in spans.values() for before, after in pairwise(sorted(found))
    ]
    count = len(notes)
    return Sweep(count / whole, count / (end - begin), statistics.median(gaps) if gaps else None)


def gap(before: Span, after: Span) -> float:
    """From the end of one to the begin of the other."""
    ended, (_, first, begin) = before[0], after
    return (begin if begin >= ended else first) - ended


def contenders(part: str, hydra_ray: str | None) -> Iterator[Contender]:
    """The launcher's own first."""
    count, jax = TRIALS[part], part == "jax"
    script = str(BASELINES / "hydra_sweep.py")
    points = f"range(1,{count + 1})"
    yield Contender("`launcher -m`, a grid", ours(jax, f"workload.args.lr={points}"))
    if jax:
        yield Contender(
            "… warm: `mode.standby=true`", ours(jax, f"workload.args.lr={points}", WARM)
        )
    search = ("hydra/sweeper=tune", f"sweep.samples={count}", "workload.args.lr=interval(0,1)")
    yield Contender("`launcher hydra/sweeper=tune`", ours(jax, *search))
    words = ("-m", f"+lr={points}", f"+jax={str(jax).lower()}")
    yield Contender("Hydra's basic launcher", (sys.executable, script, *words))
    if hydra_ray:
        ray = ("hydra/launcher=ray", f"+hydra.launcher.ray.init.num_cpus={PLACES}")
        yield Contender(
            "hydra-ray-launcher", (hydra_ray, script, *words, *ray), None if jax else 5.0
        )
    size = (str(count), str(PLACES), *(("--jax",) if jax else ()))
    yield Contender("Ray alone: tasks", (sys.executable, str(BASELINES / "ray_tasks.py"), *size))
    if find_spec("pyarrow"):  # Ray Tune's own need; the extra `bench` brings it
        plain = (str(BASELINES / "ray_tune.py"), *size)
        yield Contender(
            "Ray Tune, actors used again",
            (sys.executable, *plain),
            None if jax else 1.0,
            2 if jax else 1,
        )


def ours(jax: bool, *words: str) -> tuple[str, ...]:
    passed = (f"+workload.env.{name}='${{oc.env:{name}}}'" for name in PASSED)
    return (
        *(sys.executable, "-m", "launcher", "-m", "cluster=v6e-4", "mode=jax"),
        "sweep.per_trial={chips: 1}",
        f"workload.script={BASELINES / ('trial_jax.py' if jax else 'trial.py')}",
        f"workload.working_dir={BASELINES}",
        *passed,
        *words,
    )


def bench(part: str, runs: int, hydra_ray: str | None) -> Iterator[str]:
    found = list(contenders(part, hydra_ray))
    with tempfile.TemporaryDirectory(prefix="lb-") as compiled:
        variables = ray_cluster.environment() | {
            "JAX_PLATFORMS": "cpu",
            COMPILED: compiled,
            PASSED[2]: "0",
        }
        rounds = [[time_sweep(c.argv, variables, TRIALS[part]) for c in found] for _ in range(runs)]
    columns = [middle(column) for column in zip(*rounds, strict=True)]
    for contender, column in zip(found, columns, strict=True):
        yield row(part, contender, column, columns[contender.rival])


def middle(column: Sequence[Sweep]) -> Sweep:
    """The medians of all runs; no gap if no place had two trials."""
    gaps = [sweep.gap for sweep in column if sweep.gap is not None]
    return Sweep(
        statistics.median(sweep.whole for sweep in column),
        statistics.median(sweep.up for sweep in column),
        statistics.median(gaps) if gaps else None,
    )


def row(part: str, contender: Contender, sweep: Sweep, own: Sweep) -> str:
    cells = (
        part,
        contender.name,
        f"{sweep.whole:.2f}",
        f"{own.whole / sweep.whole:.2f}",
        f"≥ {contender.target:g}" if contender.target else "",
        f"{sweep.up:.2f}",
        f"{own.up / sweep.up:.2f}",
        f"{sweep.gap:.2f} s" if sweep.gap is not None else "",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=TRIALS, action="append", help="run this part alone")
    parser.add_argument("-n", dest="runs", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--hydra-ray", help="an interpreter that has hydra-ray-launcher")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, Ray {version('ray')};"
        f" medians of {options.runs} alternating runs, {PLACES} trials at a time\n\n"
        "| part | what | trials / s | launcher / this | target |"
        " once up | launcher / this | gap |\n"
        f"{'| --- ' * 8}|"
    )
    for part in options.only or TRIALS:
        for line in bench(part, options.runs, options.hydra_ray):
            print(line, flush=True)


if __name__ == "__main__":
    main()
