"""What a searcher and the driver of a sweep say to each other.

A searcher is a plain object that asks for nothing and starts nothing: the driver asks it for the
next trial, tells it every metrics line, and does what it decides. It is called by one thread at a
time. Trials are known by their identity, which the searcher gets from the function `Identify` that
it is made with: the same overrides give the same identity in every invocation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Identify = Callable[[Mapping[str, str]], str]
"""The identity of the trial with these overrides, beside those that all trials share."""


class Outcome(enum.StrEnum):
    """How a trial ended for good. Preempted and interrupted ones have not: they wait again."""

    SUCCEEDED = enum.auto()
    STOPPED = enum.auto()  # by the searcher
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A trial to run next. `overrides` map keys to values as on the command line."""

    trial_id: str
    overrides: Mapping[str, str]


class Verb(enum.Enum):
    """What becomes of a trial after a report."""

    GO_ON = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True, slots=True)
class Exploit:
    """The trial goes on from another one's newest checkpoint, with other overrides."""

    source_trial: str
    overrides: Mapping[str, str]


Decision = Verb | Exploit


@dataclass(frozen=True, slots=True)
class Report:
    """One metrics line of a trial: its step, and every number in it; NaN and inf among them."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Past:
    """A trial of an earlier invocation. `outcome` is None if it has not ended: the driver goes on
    with it without being told to.
    """

    trial_id: str
    overrides: Mapping[str, str]
    reports: Sequence[Report] = field(default_factory=tuple)
    outcome: Outcome | None = None


class Search(Protocol):
    """Which trials to run, and which of them are worth going on with."""

    @property
    def exhausted(self) -> bool:
        """Whether `next` will never again give a trial."""
        ...

    def next(self) -> Suggestion | None:
        """None: nothing now. Asked again when a trial has ended or reported."""
        ...

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        """What is new in a metrics line; the steps of one metric of a trial only rise."""
        ...

    def kept(self, trial_id: str) -> None:
        """An Exploit came to nothing: the trial goes on as it was."""
        ...

    def ended(self, trial_id: str, metrics: Mapping[str, float] | None, outcome: Outcome) -> None:
        """`metrics` are the last numbers that it reported; None if there were none."""
        ...

    def restore(self, history: Sequence[Past]) -> None:
        """Called once, before anything else, by a sweep that goes on: trials in the order in which
        they were suggested.
        """
        ...
