"""Waits for the files of a folder to grow: inotify(7) where there is one, else a look now and then.

Runs on a host.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import sys
from pathlib import Path

IN_MODIFY = 0x2  # linux/inotify.h
LOOK_SECONDS = 0.02  # without inotify, or when the user has no more instances of it


class Watch:
    """Wakes its one waiter when a file of the folder changes, or when anybody rings."""

    def __init__(self, folder: Path) -> None:
        self.bell, self.ringer = socket.socketpair()
        self.bell.setblocking(False)
        self.ringer.setblocking(False)
        self.changes = open_inotify(folder)
        self.poll = select.poll()
        for descriptor in (self.bell.fileno(), self.changes):
            if descriptor is not None:
                self.poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        if self.changes is None:
            seconds = min(seconds, LOOK_SECONDS)
        for descriptor, _ in self.poll.poll(seconds * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65_536)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # closed, or rung enough
            self.ringer.send(b"!")

    def close(self) -> None:
        """By the waiter only: nobody else may close what it polls."""
        self.ringer.close()
        self.bell.close()
        if self.changes is not None:
            os.close(self.changes)


def open_inotify(folder: Path) -> int | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
