"""What the programs in this folder and a supervisor say to each other, whatever the framework.

It asks them to stop, by SIGTERM; they tell it their metrics, as lines of a file. Alone, without a
supervisor, a program that uses this does the same and is told nothing.
"""

from __future__ import annotations

import json
import os
import signal
from types import FrameType

# As a shell says it of SIGTERM: stopped by request; `saved` lines tell up to where.
TERMINATED = 143


class Wish:
    """Whether this process was asked to stop: SIGTERM, from the launcher or from a TPU VM."""

    def __init__(self) -> None:
        self.is_there = False
        signal.signal(signal.SIGTERM, self.notice)

    def notice(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_there = True


class Voice:
    """The process that leads tells what happens: JSON for the launcher, text for the reader."""

    def __init__(self, leads: bool) -> None:
        self.leads = leads
        path = os.environ.get("LAUNCHER_METRICS") if leads else None
        self.file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115

    def metrics(self, **values: float) -> None:
        if self.file:
            self.file.write(json.dumps(values) + "\n")
            self.file.flush()

    def say(self, text: str) -> None:
        if self.leads:
            print(text, flush=True)
