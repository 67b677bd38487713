"""The table of verdicts: evidence on the left, judgement on the right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcher.member import Ending, Member
from launcher.verdict import Evidence, Outcome, judge

READY = {0: "READY", 1: "READY"}


def ending(host: int, code: int | None, at: float, *, collateral: bool = False) -> Ending:
    return Ending(Member(0, host), code, "", at, collateral)


OK = [ending(0, 0, 1), ending(1, 0, 2)]
CASES: list[tuple[str, list[Ending], Mapping[int, str], Outcome, int, str | None]] = [
    ("all end well", OK, READY, Outcome.SUCCEEDED, 0, None),
    ("one fails", [ending(0, 0, 1), ending(1, 7, 2)], READY, Outcome.WORKLOAD_FAILED, 7, "s0 h1"),
    (
        "the earliest failure is the cause, whatever order they arrive in",
        [ending(0, 1, 2.0), ending(1, 3, 1.0)],
        READY,
        Outcome.WORKLOAD_FAILED,
        3,
        "s0 h1",
    ),
    (
        "those that the launcher killed are collateral",
        [ending(0, 1, 5.0), ending(1, -9, 1.0, collateral=True)],
        READY,
        Outcome.WORKLOAD_FAILED,
        1,
        "s0 h0",
    ),
    ("a signal is 128 + n", [ending(0, -11, 1)], READY, Outcome.WORKLOAD_FAILED, 139, "s0 h0"),
    (
        "a sibling crashes first, the API says preempted",
        [ending(0, 1, 1.0), ending(1, None, 3.0)],
        {0: "PREEMPTED"},
        Outcome.PREEMPTED,
        0,
        "s0 h0",
    ),
    ("the node was deleted", [ending(0, None, 1)], {0: "GONE"}, Outcome.PREEMPTED, 0, "s0 h0"),
    (
        "hosts may be ahead of an API that still says CREATING",
        [ending(0, 1, 1)],
        {0: "CREATING"},
        Outcome.WORKLOAD_FAILED,
        1,
        "s0 h0",
    ),
    ("a host dies alone", [ending(1, None, 1)], READY, Outcome.HOST_LOST, 0, "s0 h1"),
]


@pytest.mark.parametrize(
    ("endings", "states", "outcome", "code", "cause"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_judge(
    endings: list[Ending],
    states: Mapping[int, str],
    outcome: Outcome,
    code: int,
    cause: str | None,
) -> None:
    verdict = judge(Evidence(endings, states))
    assert (verdict.outcome, verdict.code) == (outcome, code)
    assert (str(verdict.cause.member) if verdict.cause else None) == cause
