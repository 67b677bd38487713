"""Looks after the Ray head now and then, without a wait: Ray itself says nothing for a minute."""

from __future__ import annotations

from launcher import coordinator
from launcher.coordinator import SILENCE_SECONDS, Head, HeadLost
from launcher.deadline import Deadline
from launcher.greeting import Greeting

SOON_SECONDS = 0.05  # for the greeting; on one machine it takes a few milliseconds


class HeadWatch:
    """`look`, as often as there is time, does so every few seconds."""

    def __init__(self, head: Head, seconds: float) -> None:
        self._head = head
        self._due = Deadline(seconds)
        self._asked: Greeting | None = None

    def look(self) -> None:
        """Raises HeadLost. A head of ours that is frozen is ended, so that everybody misses it."""
        if not self._due.passed:
            return
        try:
            self._asked = self._asked or Greeting(*self._head.gcs)
            heard, silent = self._asked.came(SOON_SECONDS), self._asked.silent > SILENCE_SECONDS
        except OSError as error:
            self.close()
            raise HeadLost(coordinator.gone(self._head, error)) from error
        if not (heard or silent):
            return
        self.close()
        if silent and not heard:
            if not coordinator.given_head():
                coordinator.kill(self._head)
            raise HeadLost(coordinator.frozen(self._head))

    def close(self) -> None:
        """Forget what was asked."""
        self._due.restart()
        if self._asked:
            self._asked.close()
            self._asked = None
