"""Looks after the Ray head now and then, without a wait: Ray itself says nothing for a minute."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from launcher import coordinator
from launcher.coordinator import SILENCE_SECONDS, Head, HeadLost
from launcher.deadline import Deadline
from launcher.errors import Interrupted, LauncherError
from launcher.greeting import Greeting

RENEW_SECONDS = 60.0  # for a head to start
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


@contextlib.contextmanager
def renewing(head: Head, seconds: float) -> Iterator[Callable[[], None]]:
    """A block that calls Ray, which waits for a head that dies: for 205 s to connect, for 60 s to
    make an actor, and then ends the process; it hears nothing meanwhile. Another head takes the
    place of one that dies, once, and Ray gives up the old one.

    Gives what the block may call to find out. Raises HeadLost if it has happened.
    """
    over, watch, lost = threading.Event(), HeadWatch(head, seconds), list[str]()

    def care() -> None:
        while not (lost or over.wait(0.1)):
            try:
                watch.look()
            except HeadLost as error:
                lost.append(str(error))
        if lost:
            with contextlib.suppress(LauncherError):  # then the block comes to nothing as well
                coordinator.renew_head(head, RENEW_SECONDS, time.sleep)
        watch.close()

    def check() -> None:
        if lost:
            raise HeadLost(lost[0])

    thread = threading.Thread(target=care, daemon=True)
    thread.start()
    try:
        yield check
        check()
    except Interrupted:
        raise
    except Exception:
        check()
        raise
    finally:
        over.set()
        thread.join()
