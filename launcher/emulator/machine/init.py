"""Process 1 of an emulated TPU VM: runs the startup script, adopts orphans, ends everything.

    python -S -E init.py [SCRIPT]

Standard input is a socket to the emulator. One byte is an order and is answered by the same byte
once it is done: `F` stops every process of the host, `T` lets them go on. The end of the stream,
which also comes when the emulator is killed, is the power switch: every process is killed, and
this one ends when none is left. It makes TMPDIR, and removes it at its own end.

Nothing can leave the host: a child subreaper inherits whatever a daemon's double fork orphans, and
`waitpid` saying "no children" is then proof that all are gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Python ignores these; a program on a VM must find them at their defaults.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    link = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    become_subreaper()
    os.makedirs(os.environ["TMPDIR"], mode=0o700)
    wakeup = _wake_on_child()
    script = _start(sys.argv[1]) if len(sys.argv) > 1 else 0
    _obey(link, wakeup, script)
    _end_all()
    _remove_temp()


def become_subreaper() -> None:
    """Makes this process the parent of its orphaned descendants."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> list[int]:
    """Every process below `root`, as /proc shows them now; the dead that nobody reaped included."""
    below = children()
    found = list(below.get(root, ()))
    for pid in found:
        found.extend(below.get(pid, ()))
    return found


def children() -> dict[int, list[int]]:
    """The children of every process that has some."""
    below: dict[int, list[int]] = {}
    for pid, parent in _parents():
        below.setdefault(parent, []).append(pid)
    return below


def _parents() -> Iterator[tuple[int, int]]:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The command, in parentheses, may itself hold spaces and parentheses.
            yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def _wake_on_child() -> int:
    """A descriptor that turns readable when a child ends or a signal that is no order comes."""
    wakeup, waker = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: children would inherit that.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return wakeup


def _start(script: str) -> int:
    return os.posix_spawnp(
        "bash", ["bash", script], os.environ, setpgroup=0, setsigdef=IGNORED_BY_PYTHON
    )


def _obey(link: int, wakeup: int, script: int) -> None:
    while True:
        ready, _, _ = select.select([link, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(script)
        if link in ready:
            order = os.read(link, 1)
            if not order:
                return
            {b"F": freeze, b"T": thaw}[order]()
            os.write(link, order)


def _reap(script: int = 0) -> bool:
    """Collects the children that ended; whether any child is left."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            if pid == script:
                code = os.waitstatus_to_exitcode(status)
                print(f"startup-script exit status {code}", flush=True)
    return False


def freeze() -> None:
    """Stops every process below this one, those born meanwhile included."""
    stopped: set[int] = set()
    while new := set(descendants(os.getpid())) - stopped:
        _signal(new, signal.SIGSTOP)
        stopped |= new


def thaw() -> None:
    _signal(set(descendants(os.getpid())), signal.SIGCONT)


def _end_all() -> None:
    freeze()  # so that nothing can fork away from the kill
    while _reap():
        _signal(set(descendants(os.getpid())), signal.SIGKILL)
        time.sleep(0.002)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _remove_temp() -> None:
    temp = os.environ["TMPDIR"]
    with contextlib.suppress(OSError):
        _remove_tree(temp)
        os.rmdir(os.path.dirname(temp))  # the last host of the node removes the node's folder


def _remove_tree(top: str) -> None:
    """`shutil.rmtree`, whose import alone takes longer than all else that happens at the end."""
    for folder, folders, files in os.walk(top, topdown=False):
        for name in files:
            os.unlink(f"{folder}/{name}")
        for path in (f"{folder}/{name}" for name in folders):
            (os.unlink if os.path.islink(path) else os.rmdir)(path)
    os.rmdir(top)


if __name__ == "__main__":
    main()
