"""What a run's account learns from the metrics of its attempts, whoever supervises them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempts.account import FILE, Account
from launcher.attempts.budget import Budget
from launcher.attempts.feed import Feed
from launcher.attempts.timeline import Timeline
from launcher.hosts.member import Member
from launcher.record import RunFolder
from launcher.screen import Screen

RANK_0 = Member(0, 0)


@contextlib.contextmanager
def session_in(path: Path, attempt: int) -> Iterator[Any]:
    with RunFolder(path) as folder:
        folder.turn_to(attempt)
        yield SimpleNamespace(
            folder=folder,
            timeline=Timeline(),
            screen=Screen(),
            tell=lambda kind, text, **_: folder.event(kind),
        )


def account_of(attempts: int) -> Account:
    account = Account(Budget(None))  # no attempt is charged here
    for attempt in range(attempts):
        account.begin_attempt(resumed=attempt > 0)
    return account


def lines(path: Path, *values: dict[str, Any]) -> None:
    own = {"attempt": 1, "process": "s0 h0"}
    (path / "metrics.jsonl").write_text("".join(json.dumps(v | own) + "\n" for v in values))


def test_an_attempt_that_tells_nothing_has_no_origin(tmp_path: Path) -> None:
    account = account_of(3)
    with session_in(tmp_path, 2) as session:
        Feed(session, account).metrics(RANK_0, '{"restored_step": 20}')
    assert account.resumed_from == [None, 20]


def test_the_first_attempt_goes_on_from_nothing(tmp_path: Path) -> None:
    account = account_of(1)
    with session_in(tmp_path, 0) as session:
        Feed(session, account).metrics(RANK_0, '{"restored_step": 0}')
    assert account.resumed_from == []


@pytest.mark.parametrize("first", [{"restored_step": 10}, {"step": 11}])
def test_what_a_dead_supervisor_was_told_but_did_not_note(
    tmp_path: Path, first: dict[str, Any]
) -> None:
    lines(tmp_path, first, {"step": 14})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"attempt": 0, "process": "s0 h0", "step": 90}\n')
    account = account_of(2)
    with session_in(tmp_path, 1) as session:
        feed = Feed(session, account)
        feed.catch_up()
        assert (account.resumed_from, account.step) == ([10], 14)
        feed.metrics(RANK_0, '{"restored_step": 3, "step": 15}')
    assert (account.resumed_from, account.step) == ([10], 15)
    assert json.loads((tmp_path / FILE).read_text())["resumed_from"] == [10]


@pytest.mark.parametrize(("known", "final"), [(None, 30), (10, 30), (40, 40)])
def test_a_step_that_was_saved_while_nobody_listened_was_reached(
    tmp_path: Path, known: int | None, final: int
) -> None:
    account = account_of(2)
    account.final_step = known
    with session_in(tmp_path, 1) as session:
        Feed(session, account).metrics(RANK_0, '{"restored_step": 30}')
    assert account.final_step == final
