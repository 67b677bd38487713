"""When another attempt follows, and what it is charged to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tenacity

from launcher.attempts.budget import Budget, SinceProgress
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.spec import Retry

RETRY = Retry(
    max_preemptions=2,
    max_failures=1,
    same_step_limit=3,
    restart_exit_codes=frozenset({42}),
    stop_exit_codes=frozenset({13}),
    backoff=1.0,
    grace=1.0,
    straggler_timeout=None,
    hang_timeout=None,
    reattach_timeout=1.0,
)


def ended(outcome: Outcome, code: int = 1, retriable: bool = True) -> Verdict:
    return Verdict(outcome, "a summary", None, code, retriable=retriable)


LOST, FAILED = ended(Outcome.PREEMPTED, 0), ended(Outcome.WORKLOAD_FAILED)


def charged(retry: Retry, *attempts: tuple[Verdict, int | None]) -> tuple[Budget, list[str | None]]:
    budget = Budget(retry)
    return budget, [budget.charge(verdict, step) for verdict, step in attempts]


def test_the_budgets_are_apart() -> None:
    budget, stops = charged(RETRY, (LOST, None), (FAILED, None), (LOST, None), (LOST, None))
    assert stops[:3] == [None] * 3
    assert stops[3] == "3 preemptions, retry.max_preemptions is 2"
    assert dict(budget.total) == {"preemptions": 3, "failures": 1}


def test_one_is_one() -> None:
    _, stops = charged(replace(RETRY, max_failures=0), (FAILED, None))
    assert stops == ["1 failure, retry.max_failures is 0"]
    _, stops = charged(replace(RETRY, same_step_limit=1), (FAILED, 7))
    assert stops == ["failed 1 time at step 7 (retry.same_step_limit)"]


def test_progress_fills_both_again() -> None:
    attempts = [(LOST, step) for step in range(10, 60, 10)]
    budget, stops = charged(RETRY, *attempts)
    assert stops == [None] * 5
    assert (budget.spent["preemptions"], budget.total["preemptions"]) == (1, 5)


def test_no_progress_is_made_by_coming_as_far_as_before() -> None:
    _, stops = charged(RETRY, (LOST, 50), (LOST, 40), (LOST, 50))
    assert stops[2] is not None


def test_failures_at_one_step_stop_the_run_whatever_is_left() -> None:
    many = replace(RETRY, max_failures=100)
    _, stops = charged(many, (FAILED, 7), (LOST, 7), (FAILED, 7), (FAILED, 7))
    assert stops == [None, None, None, "failed 3 times at step 7 (retry.same_step_limit)"]
    _, stops = charged(many, (FAILED, 7), (FAILED, 8), (FAILED, 7), (FAILED, 7))
    assert stops == [None] * 4
    _, stops = charged(many, *[(FAILED, None)] * 3)
    assert stops[2] == "failed 3 times before the first step (retry.same_step_limit)"
    _, stops = charged(replace(many, same_step_limit=None), *[(FAILED, None)] * 9)
    assert stops == [None] * 9


def test_exit_codes_that_always_or_never_start_again() -> None:
    again, never = ended(Outcome.WORKLOAD_FAILED, 42), ended(Outcome.WORKLOAD_FAILED, 13)
    strict = replace(RETRY, max_failures=0)
    budget, stops = charged(strict, (again, 1), (again, 2), (again, None), (again, None))
    assert stops == [None] * 4
    assert not budget.total["failures"]
    assert charged(strict, *[(again, 5)] * 3)[1][2] is not None  # it does not get on
    _, stops = charged(replace(RETRY, max_failures=9), (never, 1))
    assert stops == ["exit code 13 is in retry.stop_exit_codes"]


def test_the_end_is_the_end() -> None:
    assert charged(RETRY, (ended(Outcome.SUCCEEDED, 0), 9))[1] == ["succeeded"]
    hopeless = ended(Outcome.REFUSED, 0, retriable=False)
    assert charged(RETRY, (hopeless, None))[1] == ["another attempt would end the same way"]


def test_it_can_be_kept_and_restored() -> None:
    budget, _ = charged(RETRY, (LOST, 5), (FAILED, 5))
    other = Budget(RETRY)
    other.restore(budget.to_json())
    assert other == budget


@pytest.mark.parametrize(("fruitless", "seconds"), [(0, 1.0), (1, 1.0), (3, 4.0)])
def test_the_wait_grows_with_attempts_that_bring_nothing(fruitless: int, seconds: float) -> None:
    budget = Budget(RETRY, fruitless=fruitless)
    state: Any = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = 17
    wait = SinceProgress(budget, tenacity.wait_exponential(multiplier=1.0))
    assert wait(state) == seconds
    assert state.attempt_number == 17


@pytest.mark.parametrize(("verdict", "seconds"), [(ended(Outcome.RESIZED, 0), 0.0), (LOST, 4.0)])
def test_nothing_is_waited_for_after_a_resize(verdict: Verdict, seconds: float) -> None:
    budget = Budget(RETRY, fruitless=3)
    state: Any = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.set_result(verdict)
    assert SinceProgress(budget, tenacity.wait_exponential(multiplier=1.0))(state) == seconds
