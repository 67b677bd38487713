"""The members of a gang: its processes by place, and how they ended. Plain data."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

Place = tuple[int, int]  # of a host: slice, worker id


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A process by its place; prints as on every output line."""

    slice: int
    host: int
    index: int = 0
    single: bool = field(default=True, compare=False)  # the only process of its host

    def __str__(self) -> str:
        return f"s{self.slice} h{self.host}" + ("" if self.single else f" p{self.index}")

    @property
    def place(self) -> Place:
        return self.slice, self.host


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code, or minus the signal; None when its host was lost."""

    member: Member
    code: int | None
    reason: str
    time: float
    collateral: bool = False
    tail: str = ""  # the last lines of its output, when they were kept


def describe(code: int) -> str:
    """An exit code, or minus a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"
