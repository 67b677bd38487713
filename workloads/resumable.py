"""What the JAX programs in this folder do alike, whatever they train.

They find their peers, hear SIGTERM, keep what they compiled for the next attempt, tell their
metrics, and end at once when something breaks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import jax

# As a shell says it of SIGTERM: stopped by request; `saved` lines tell up to where.
TERMINATED = 143


class Wish:
    """Whether this process was asked to stop: SIGTERM, from the launcher or from a TPU VM."""

    def __init__(self) -> None:
        self.is_there = False
        signal.signal(signal.SIGTERM, self.notice)

    def notice(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_there = True


class Voice:
    """Process 0 tells what happens: lines of JSON for the launcher, text for the reader."""

    def __init__(self) -> None:
        self.leads = jax.process_index() == 0
        path = os.environ.get("LAUNCHER_METRICS") if self.leads else None
        self.file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115

    def metrics(self, **values: float) -> None:
        if self.file:
            self.file.write(json.dumps(values) + "\n")
            self.file.flush()

    def say(self, text: str) -> None:
        if self.leads:
            print(text, flush=True)


def connect() -> None:
    """Find the peers. JAX's own watch for SIGTERM would take the place of ours."""
    if int(os.environ.get("LAUNCHER_NUM_PROCESSES", "1")) > 1:
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize()


def keep_compiled(folder: str | None, seconds: float = 0.5) -> None:
    """Let the next attempt find what took longer than `seconds` to compile.

    A place that the user has given for that (JAX_COMPILATION_CACHE_DIR) is left alone.
    """
    if folder and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", f"{folder.rstrip('/')}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def leave_with(work: Callable[[], int]) -> NoReturn:
    """End with the exit code of `work`, or at once with 1 and a traceback."""
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # JAX would wait minutes, at exit, for peers that wait for this process
    sys.exit(code)
