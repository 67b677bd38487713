"""A time limit that can begin anew."""

from __future__ import annotations

import time


class Deadline:
    """A time limit in seconds, counted anew from the last `restart`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._end = time.monotonic() + self._seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end
