"""Locks between processes, which the kernel releases when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.errors import LauncherError

AGAIN_SECONDS = 0.02


@contextlib.contextmanager
def held(
    path: Path, busy: LauncherError, wait: float, pause: Callable[[float], None] = time.sleep
) -> Iterator[int]:
    """Hold the lock of a file, which is made if need be; gives its descriptor.

    Raises `busy` when another process holds it after `wait` seconds.
    """
    deadline = time.monotonic() + wait
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise busy from None
                pause(AGAIN_SECONDS)
        yield file.fileno()
