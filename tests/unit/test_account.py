"""What a run has used up, in the hands of a supervisor that comes after another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempts.account import open_account
from launcher.attempts.supervise import charge
from launcher.attempts.timeline import Timeline
from launcher.errors import PreemptionBudgetSpent
from launcher.record import RunFolder
from launcher.session import Setbacks
from tests.unit.test_budget import RETRY

RATE = 3600.0  # USD an hour


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    """A run whose record an earlier supervisor has left behind."""
    under_way = SimpleNamespace(left_behind=True, read=lambda: None)
    with RunFolder(tmp_path) as folder:
        yield SimpleNamespace(
            spec=SimpleNamespace(retry=RETRY),
            folder=folder,
            timeline=Timeline(),
            under_way=under_way,
        )


def test_what_a_dead_supervisor_has_used_up_counts(session: Any) -> None:
    account = open_account(session)
    account.bill.go_on(RATE)
    account.begin_attempt(resumed=False)
    charge(session, account, "lost")
    found = open_account(session)
    assert (found.attempts, found.budget.total["preemptions"]) == (1, 1)
    found.bill.go_on(0.0)
    assert found.bill.usd is not None
    assert found.bill.usd > 0


def test_what_a_run_has_used_up_that_has_its_result_does_not(session: Any) -> None:
    """Its record is there as well when its slices stay."""
    account = open_account(session)
    account.bill.go_on(RATE)
    account.begin_attempt(resumed=False)
    account.save(session, ended=True)
    found = open_account(session)
    found.bill.go_on(0.0)
    assert (found.attempts, found.bill.usd) == (0, 0.0)


def test_losses_before_the_start_have_the_limit_of_preemptions(session: Any) -> None:
    account = open_account(session)
    setbacks = Setbacks(RETRY.max_preemptions)
    for _ in range(RETRY.max_preemptions):
        charge(session, account, "s1 went")
        setbacks("s1 went")
    expected = "s1 went; 3 preemptions, retry.max_preemptions is 2"
    with pytest.raises(PreemptionBudgetSpent, match=expected):
        charge(session, account, "s1 went")
    with pytest.raises(PreemptionBudgetSpent, match=expected):
        setbacks("s1 went")
    assert open_account(session).budget.total["preemptions"] == 0  # no attempt has begun
