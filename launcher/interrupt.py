"""Ctrl-C, SIGTERM and SIGHUP, turned into one orderly stop.

Signal handlers only set a flag. Long waits go through `pause`, which raises `Interrupted` once the
flag is set, so that clean-up is never torn apart in the middle. A second signal leaves at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from launcher.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPS = (
    "{}: stops here, once more to leave at once; what is left is deleted by the same command, or"
    " `python -m launcher gc --yes`"
)
LEFT_AT_ONCE = b"\nlauncher: left at once; delete what remains: python -m launcher gc --yes\n"


class Interrupt:
    """The flag, and the waits that heed it."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._event = threading.Event()
        self._signal = ""
        self._announce = announce
        self._announced = threading.Lock()  # taken once, by whoever sees the flag first

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """Back to Python's own handlers, or the system's where Python has none."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            os.write(2, LEFT_AT_ONCE)
            os._exit(Interrupted.exit_code)
        self._signal = signal.Signals(number).name
        self._event.set()

    def news(self) -> str:
        """The signal, if there is one that the user was not told of; to be asked by who tells."""
        untold = self._event.is_set() and self._announced.acquire(blocking=False)
        return self._signal if untold else ""

    def check(self) -> None:
        if signal_name := self.news():
            self._announce(signal_name)
        if self._event.is_set():
            raise Interrupted(f"stopped by {self._signal}")

    def pause(self, seconds: float) -> None:
        """Sleep; raises Interrupted as soon as the user wants to stop."""
        self._event.wait(seconds)
        self.check()


class Together(Interrupt):
    """The waits of another one, that heed `more` as well: it raises when a wait is to end."""

    def __init__(self, shared: Interrupt, more: Callable[[], None]) -> None:
        self._shared = shared
        self._more = more

    def install(self) -> None:
        self._shared.install()

    def uninstall(self) -> None:
        self._shared.uninstall()

    def news(self) -> str:
        return self._shared.news()

    def check(self) -> None:
        self._shared.check()
        self._more()

    def pause(self, seconds: float) -> None:
        self._shared.pause(seconds)
        self._more()


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[float], None]]:
    """A pause for deletions that a signal ends, once the calls under way have come back."""
    stop = Interrupt(lambda name: print(STOPS.format(name), file=sys.stderr, flush=True))
    stop.install()
    try:
        yield stop.pause
    finally:
        stop.uninstall()
