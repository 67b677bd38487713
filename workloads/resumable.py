"""What the JAX programs in this folder do alike, whatever they train.

They find their peers, keep what they compiled for the next attempt, and end at once when something
breaks.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import jax


def connect() -> None:
    """Find the peers. JAX's own watch for SIGTERM would take the place of ours."""
    if int(os.environ.get("LAUNCHER_NUM_PROCESSES", "1")) > 1:
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize()


def keep_compiled(folder: str | None, seconds: float = 0.5) -> None:
    """Let the next attempt find what took longer than `seconds` to compile. After `connect`.

    A place that the user has given for that (JAX_COMPILATION_CACHE_DIR) is left alone. Of several
    processes on CPUs only the first would find anything: JAX writes down for it alone what differs
    there between processes. It would then wait for the others to compile, and Gloo gives up after
    half a minute.
    """
    serves_all = jax.process_count() == 1 or jax.default_backend() != "cpu"
    if folder and serves_all and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
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
