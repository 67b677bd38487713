"""Process groups and descendants of this process: kept, found, ended, reaped. Runs on a host."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection

import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILL_SECONDS = 10.0


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs: a daemon cannot slip away."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(
    leaders: Collection[int], spared: Callable[[], Collection[int]] = tuple
) -> list[int]:
    """SIGKILL everything below this process until nothing is left but zombies of `leaders`, and
    the `spared` with what is below them.

    Returns the ids of those that do not die within KILL_SECONDS, asleep in the kernel.
    """

    def find() -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        kept = below(spared())  # asked last: one that has just begun is among them
        return [process for process in found if process.pid not in kept]

    left = end_all(find)
    reap_orphans({*leaders, *spared()})
    return left


def below(pids: Collection[int]) -> set[int]:
    """These processes and all their descendants."""
    found = {*pids}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {process.pid for process in psutil.Process(pid).children(recursive=True)}
    return found


def end_all(find: Callable[[], list[psutil.Process]]) -> list[int]:
    """SIGKILL what `find` gives until it gives nothing alive; returns what is left in the end."""
    deadline = time.monotonic() + KILL_SECONDS
    while found := [process for process in find() if not has_ended(process)]:
        if time.monotonic() > deadline:
            return [process.pid for process in found]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.005)
    return []


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def reap_orphans(leaders: Collection[int]) -> None:
    """Collect adopted zombies; those of `leaders` belong to their `Popen`."""
    for process in psutil.Process().children():
        if process.pid not in leaders:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def signal_group(leader: int, number: int) -> bool:
    """Signal every process of a group; False when none is left of it."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # one of another user is left
        return True
    return True


def end_group(leader: int, patience: float) -> None:
    """End what is left of a group whose leader has been reaped, after `patience` seconds."""
    deadline = time.monotonic() + patience
    while group_lives(leader):
        if time.monotonic() > deadline:
            signal_group(leader, signal.SIGKILL)
            return
        time.sleep(0.005)


def group_lives(leader: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # adopted zombies would count as alive
        while os.waitpid(-leader, os.WNOHANG)[0]:
            pass
    return signal_group(leader, 0)


def end_those_with(name: str, prefix: str) -> list[int]:
    """SIGKILL every process in whose environment the variable begins so.

    For what an earlier agent left that was itself killed. Returns what does not die.
    """

    def find() -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if owns(p)]

    def owns(process: psutil.Process) -> bool:
        try:
            value = process.environ().get(name)
        except psutil.Error:  # of another user, or gone
            return False
        return value is not None and value.startswith(prefix)

    return end_all(find)
