"""Ctrl-C, SIGTERM and SIGHUP, turned into one orderly stop.

Signal handlers only set a flag. Every wait of the launcher goes through `pause`, which raises
`Interrupted` once the flag is set, so that clean-up is never torn apart in the middle.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from launcher.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """The flag, and the waits that heed it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""
        self.advice = "python -m launcher gc --yes"
        self.on_first: Callable[[str], None] = lambda _: None

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._event.is_set():
            print(
                f"\nlauncher: left at once; delete what remains with: {self.advice}",
                file=sys.stderr,
            )
            os._exit(Interrupted.exit_code)
        self._reason = name
        self._event.set()
        self.on_first(name)

    def check(self) -> None:
        if self._event.is_set():
            raise Interrupted(f"stopped by {self._reason}")

    def pause(self, seconds: float) -> None:
        """Sleep; raises Interrupted as soon as the user wants to stop."""
        self._event.wait(seconds)
        self.check()
