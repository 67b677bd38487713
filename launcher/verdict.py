"""Evidence → Verdict: how an attempt ended and whose fault it was. A pure function."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.member import Ending

# States of a node whose hosts may well be running: joined hosts can be ahead of the API.
USABLE = frozenset({"READY", "CREATING", "STARTING", "RESTARTING", "UNKNOWN", "STATE_UNSPECIFIED"})


class Outcome(enum.StrEnum):
    """What became of one attempt."""

    SUCCEEDED = enum.auto()
    PREEMPTED = enum.auto()
    HOST_LOST = enum.auto()
    WORKLOAD_FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known when an attempt has ended.

    `node_states` maps a slice to the API's word for the state of its node, `GONE` when it is no
    more.
    """

    endings: Sequence[Ending]
    node_states: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cause` is the ending that came first; `code` the workload's, 128+n for a signal."""

    outcome: Outcome
    summary: str
    cause: Ending | None = None
    code: int = 0


def judge(evidence: Evidence) -> Verdict:
    cause = first_cause(evidence.endings)
    if cause is None:
        return Verdict(Outcome.SUCCEEDED, "every process ended with exit code 0")
    state = evidence.node_states.get(cause.member.slice, "READY")
    if lost := {s: word for s, word in evidence.node_states.items() if word not in USABLE}:
        first = min(lost, key=lambda s: (s != cause.member.slice, s))
        return Verdict(Outcome.PREEMPTED, f"slice {first} is {lost[first]}", cause)
    if cause.code is None:
        return Verdict(
            Outcome.HOST_LOST, f"{cause.member}: {cause.reason}; its node is {state}", cause
        )
    code = cause.code if cause.code >= 0 else 128 - cause.code
    return Verdict(
        Outcome.WORKLOAD_FAILED, f"{cause.member} failed first: {cause.reason}", cause, code
    )


def first_cause(endings: Sequence[Ending]) -> Ending | None:
    """The earliest failure that the launcher's own stop did not bring about."""
    failures = [e for e in endings if e.code != 0 and not e.collateral]
    return min(failures, key=lambda e: e.time, default=None)
