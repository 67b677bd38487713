"""Keeps the create calls of all processes of one user under the project's rate.

The API takes 91 CreateNode a minute from a project (marin#6198). The times of the last calls are in
a file of the launcher's home, under a lock that dies with its holder.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Callable
from typing import IO

from launcher import registry
from launcher.providers import Pause

CREATES, WINDOW_SECONDS = 60, 60.0


class Throttle:
    """At most `creates` calls in any WINDOW_SECONDS, for one project."""

    def __init__(
        self, project: str, creates: int = CREATES, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = registry.home() / "creates" / re.sub(r"[^a-z0-9-]", "-", project)
        self._creates = creates
        self._clock = clock

    def admit(self, pause: Pause) -> None:
        """Return when another call may be made, and count it."""
        while (wait := self._take()) > 0:
            pause(min(wait, 1.0))

    def _take(self) -> float:
        """Seconds until there may be room; 0 when a place was free and is now taken."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = self._clock()
            recent = [moment for moment in _read(file) if now - WINDOW_SECONDS < moment <= now]
            if len(recent) >= self._creates:
                return recent[-self._creates] + WINDOW_SECONDS - now
            file.seek(0)
            file.truncate()
            json.dump([*recent, now], file)
            return 0.0


def _read(file: IO[str]) -> list[float]:
    file.seek(0)
    try:
        return [float(moment) for moment in json.load(file)]
    except (ValueError, TypeError):
        return []
