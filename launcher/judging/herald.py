"""Failures that turn out as the heralds of a loss. Pure.

A host that is going may first kill a process, and the API tells of it up to a minute later. A run
does not wait for such news while it may go on in any case: it charges what it knows, and starts the
processes again. If the slice is lost soon after, and nothing was gained in between, those charges
are taken back, and the loss is charged once for all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.judging.evidence import Earlier, Evidence
from launcher.judging.outcome import Budget, Outcome
from launcher.judging.verdict import Verdict

# What a host that is going may do to a process, before the API says that it goes: SIGTERM,
# SIGKILL, SIGHUP.
SUSPICIOUS = frozenset({-15, 143, -9, 137, -1, 129})
LOSSES = frozenset({Outcome.PREEMPTED, Outcome.MAINTENANCE, Outcome.HOST_LOST})


def is_unsure(verdict: Verdict) -> bool:
    """Whether news of a lost slice would change what is charged, and what is made anew.

    A host that is known to be lost is replaced in any case.
    """
    if verdict.outcome is Outcome.NETWORK:
        return True
    charged = verdict.budget is Budget.FAILURES
    return charged and verdict.cause is not None and verdict.cause.code in SUSPICIOUS


def in_doubt(
    evidence: Evidence, seconds: float, slices: Collection[int] | None = None
) -> Sequence[Earlier]:
    """The attempts before this one whose failures its loss may explain, all in a row up to it.

    The first of them ended unsurely, at most so many seconds before this one, on one of the
    `slices` (None: any), and none has come further since. Of an attempt that could not be started
    nobody knows for how long its hosts had been gone: it counts as soon enough.
    """
    for index, first in enumerate(evidence.earlier):
        soon = evidence.stopped_at is None or evidence.moment - first.time <= seconds
        later = [evidence.step, *(other.step for other in evidence.earlier[index + 1 :])]
        if first.unsure and soon and is_there(first, evidence, slices) and not gained(first, later):
            return evidence.earlier[index:]
    return ()


def is_there(first: Earlier, evidence: Evidence, slices: Collection[int] | None) -> bool:
    """Whether it failed on one of these slices, of machines that have not been replaced since."""
    if first.place is None or slices is None:
        return True
    slice_ = first.place[0]
    same = evidence.created.get(slice_, first.created) == first.created
    return same and (slice_ in slices or first.outcome == Outcome.NETWORK)


def gained(first: Earlier, later: Sequence[int | None]) -> bool:
    """Whether a later attempt has come further."""
    best = max((step for step in later if step is not None), default=None)
    return best is not None and (first.step is None or best > first.step)


def heralds(evidence: Evidence, verdict: Verdict, seconds: float) -> Sequence[Earlier]:
    """The attempts whose charges the loss of a slice takes back."""
    return in_doubt(evidence, seconds, verdict.slices) if verdict.outcome in LOSSES else ()
