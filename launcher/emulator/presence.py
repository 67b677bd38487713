"""Who is here: when an emulator without nodes may end."""

from __future__ import annotations

import time
from collections.abc import Callable

LINGER = 0.2
"""Seconds that an empty emulator waits after the last attached client has left."""


class Presence:
    """Counts attached clients, and remembers the last sign of life of the others.

    `idle_timeout`, in seconds, is the patience with clients that never attach.
    """

    def __init__(self, idle_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ending = False
        self._attached = 0
        self._idle_timeout = idle_timeout
        self._clock = clock
        self.touch()

    def touch(self) -> None:
        """A call came in."""
        self._until = self._clock() + self._idle_timeout

    def arrive(self) -> None:
        self._attached += 1

    def leave(self) -> None:
        self._attached -= 1
        self._until = self._clock() + LINGER

    @property
    def expired(self) -> bool:
        """Whether nobody is here and nobody is expected."""
        return not self._attached and self._clock() >= self._until
