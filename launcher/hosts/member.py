"""The members of a gang: its processes by place, and how they ended. Plain data."""

from __future__ import annotations

import dataclasses
import re
import signal
from dataclasses import dataclass, field

Place = tuple[int, int]  # of a host: slice, worker id
# Of its output that go along with an ending; JAX says up to 6 kB after a traceback (measured).
TAIL_BYTES = 2**14
LEFT_EARLY = 124  # the exit code of timeout(1): for one that ended well while its peers went on


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
    tail: str = ""  # the last TAIL_BYTES of its output, when they were kept


def describe(code: int) -> str:
    """An exit code, or minus a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"


def member_text(member: Member) -> str:
    """As on screen, but never ambiguous: a process with an index always shows it."""
    shown = dataclasses.replace(member, single=member.single and not member.index)
    return str(shown)


def parse_member(text: str) -> Member:
    """`s0 h2`, or `s0 h2 p1` where a host has several. Raises ValueError."""
    found = re.fullmatch(r"s(\d+) h(\d+)(?: p(\d+))?", text)
    if not found:
        raise ValueError(f"{text!r} is no process: expected `s0 h2` or `s0 h2 p1`")
    slice_, host, index = found.groups()
    return Member(int(slice_), int(host), int(index or 0), single=index is None)
