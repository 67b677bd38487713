"""What a check finds: a line, how bad it is, and the mend."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


class Outcome(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"  # a run may work all the same, or it is not known whether it will
    PROBLEM = "problem"  # a run will fail
    SKIPPED = "skipped"  # not looked at, and why


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` are commands or pages, one a line, for what is not as it should be."""

    outcome: Outcome
    text: str
    mend: tuple[str, ...] = ()


class Skip(Exception):
    """There is nothing to look at, or no way to look; the message says why."""


def ok(text: str) -> Finding:
    return Finding(Outcome.OK, text)


def warning(text: str, *mend: str) -> Finding:
    return Finding(Outcome.WARNING, text, mend)


def problem(text: str, *mend: str) -> Finding:
    return Finding(Outcome.PROBLEM, text, mend)


def skipped(text: str) -> Finding:
    return Finding(Outcome.SKIPPED, text)


def by_place(found: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """One finding for all places of which the same is to be told; the places end its text."""
    places: dict[Finding, list[str]] = {}
    for place, finding in found:
        places.setdefault(finding, []).append(place)
    for finding, where in places.items():
        yield replace(finding, text=f"{finding.text} in {', '.join(dict.fromkeys(where))}")
