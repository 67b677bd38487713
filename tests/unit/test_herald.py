"""A failure shortly before a loss is charged once, with it: tables of attempts in a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.attempts.account import Account
from launcher.attempts.budget import Budget
from launcher.codec import from_json, to_json
from launcher.hosts.member import Ending, Member, describe
from launcher.judging.evidence import Earlier, Evidence, Notice, Told
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict, judge
from tests.unit.test_budget import RETRY

WINDOW = 60.0  # by how much news of a loss may be late
BROKEN = "jax.errors.JaxRuntimeError: UNKNOWN: Gloo AllReduce failed: Connection reset by peer\n"


def attempt(
    at: float,
    code: int | None = -9,
    step: int | None = 10,
    *,
    slice_: int = 0,
    state: str = "READY",
    created: str = "one",
    told: bool = False,
) -> Evidence:
    """One process died at that time, and the API said so of its slice."""
    other = 1 - slice_
    dead = Ending(Member(slice_, 0), code, describe(code or 0), at)
    notices = [Notice((slice_, 0), Told.PREEMPTED, at - 1, "TRUE")] if told else []
    return Evidence(
        [dead, Ending(Member(other, 0), -15, "killed by SIGTERM", at + 0.2, collateral=True)],
        {slice_: state, other: "READY"},
        created={slice_: created} if state == "READY" else {},
        notices=notices,
        stopped_at=at,
        step=step,
    )


def unstarted(at: float) -> Evidence:
    """A host did not answer when it was to start its process."""
    return Evidence([Ending(Member(0, 0), None, "lost while starting", at)], {0: "READY"})


def apart(at: float) -> Evidence:
    """All speak of others."""
    endings = [Ending(Member(n, 0), 1, "exit code 1", at, tail=BROKEN) for n in (0, 1)]
    return Evidence(endings, {0: "READY", 1: "READY"}, stopped_at=at, step=10)


KILLED, LOST, GONE = attempt(100.0), attempt(103.0, None, None), attempt(103.0, state="PREEMPTED")


@pytest.mark.parametrize(
    ("attempts", "preemptions", "failures", "taken_back"),
    [
        pytest.param([KILLED], 0, 1, [], id="nothing follows"),
        pytest.param([KILLED, GONE], 1, 0, [0], id="the slice is taken back"),
        pytest.param([KILLED, LOST], 1, 0, [0], id="the host is lost, before a step"),
        pytest.param([KILLED, attempt(101.0, 1, told=True)], 1, 0, [0], id="a notice"),
        pytest.param([attempt(100.0, 143), GONE], 1, 0, [0], id="SIGTERM before"),
        pytest.param(
            [apart(100.0), attempt(103.0, slice_=1, state="PREEMPTED")], 1, 0, [0], id="apart"
        ),
        pytest.param([KILLED, attempt(101.0), GONE], 1, 0, [0, 1], id="killed twice"),
        pytest.param([KILLED, attempt(101.0, 1), GONE], 1, 0, [0, 1], id="and failed in between"),
        pytest.param([attempt(100.0, 1), GONE], 1, 1, [], id="an exit code of its own"),
        pytest.param([attempt(100.0, 1), attempt(101.0), GONE], 1, 1, [1], id="only what is near"),
        pytest.param(
            [KILLED, attempt(161.0, state="PREEMPTED")], 1, 1, [], id="too long afterwards"
        ),
        pytest.param(
            [KILLED, attempt(103.0, step=11, state="PREEMPTED")], 1, 1, [], id="it has got on"
        ),
        pytest.param(
            [attempt(100.0, step=None), attempt(103.0, step=1, state="PREEMPTED")],
            1,
            1,
            [],
            id="it has made its first step",
        ),
        pytest.param(
            [KILLED, attempt(103.0, slice_=1, state="PREEMPTED")], 1, 1, [], id="another slice"
        ),
        pytest.param([KILLED, attempt(103.0, created="two")], 0, 2, [], id="it only fails again"),
        pytest.param([KILLED, attempt(103.0, None, created="two")], 1, 1, [], id="another machine"),
        pytest.param([KILLED, unstarted(500.0)], 1, 0, [0], id="lost before it could be started"),
        pytest.param([GONE, attempt(104.0), attempt(105.0, None)], 2, 0, [1], id="after a loss"),
    ],
)
def test_what_is_charged(
    attempts: list[Evidence], preemptions: int, failures: int, taken_back: list[int]
) -> None:
    account, corrected = charged(attempts)
    assert (account.budget.total["preemptions"], account.budget.total["failures"]) == (
        preemptions,
        failures,
    )
    assert corrected == taken_back
    assert len(account.earlier) == len(account.before) == len(attempts) - len(taken_back)


def charged(attempts: list[Evidence]) -> tuple[Account, list[int]]:
    """One after the other, through what is kept for another supervisor."""
    account, corrected = Account(Budget(RETRY)), []
    for number, evidence in enumerate(attempts):
        known = from_json(Evidence, to_json(evidence) | {"earlier": to_json(account.earlier)})
        found = account.charge(number, known, judge(known), WINDOW)
        corrected += [earlier.attempt for earlier in found]
        account = restored(account)
    return account, corrected


def restored(account: Account) -> Account:
    kept: dict[str, Any] = json.loads(
        json.dumps([account.budget.to_json(), to_json(account.earlier), account.before])
    )
    budget, earlier, before = kept
    again = Account(Budget(RETRY))
    again.budget.restore(budget)
    again.earlier, again.before = [from_json(Earlier, row) for row in earlier], before
    assert (again.budget, again.earlier) == (account.budget, account.earlier)
    return again


@pytest.mark.parametrize(
    ("attempts", "since", "slices", "expected"),
    [
        pytest.param([KILLED], 102.0, (0,), (1, 0), id="soon after"),
        pytest.param([KILLED, attempt(101.0)], 102.0, (0,), (1, 0), id="after two"),
        pytest.param([KILLED], 161.0, (0,), (0, 1), id="too long afterwards"),
        pytest.param([KILLED], 102.0, (1,), (0, 1), id="another slice"),
        pytest.param([attempt(100.0, 1)], 102.0, (0,), (0, 1), id="a failure of its own"),
        pytest.param([GONE], 104.0, (0,), (1, 0), id="a loss that is charged"),
    ],
)
def test_a_slice_that_goes_between_two_attempts(
    attempts: list[Evidence], since: float, slices: tuple[int, ...], expected: tuple[int, int]
) -> None:
    account, _ = charged(attempts)
    lost = Verdict(Outcome.PREEMPTED, "slice 0: PREEMPTED", slices=slices, retriable=True)
    account.amend(lost, since, WINDOW)
    total = account.budget.total
    assert (total["preemptions"], total["failures"]) == expected
    assert account.budget.best_step == 10
    assert account.stop is None


def test_all_counts_are_as_if_the_loss_alone_had_been() -> None:
    """Those of failures at one step, and of attempts that brought nothing, as well."""
    corrected, _ = charged([attempt(50.0, 1, 10), KILLED, GONE])
    alone, _ = charged([attempt(50.0, 1, 10), GONE])
    assert corrected.budget == alone.budget


def test_the_progress_of_a_herald_counts() -> None:
    account, _ = charged([attempt(20.0, 1, 5), KILLED, attempt(103.0, None, None)])
    assert account.budget.best_step == 10
    assert (account.budget.spent["preemptions"], account.budget.spent["failures"]) == (1, 0)
