"""What is asked when an attempt has ended, and what stays known of the answers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempts import inquiry
from launcher.attempts.account import Account
from launcher.attempts.budget import Budget
from launcher.attempts.gang import Gang, Report
from launcher.compose import compose
from launcher.hosts.member import Ending, Member
from launcher.judging.evidence import Evidence, Host
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import judge
from launcher.plan import make_plan
from launcher.providers import Resource
from launcher.providers.states import State
from launcher.provisioning.requests import Identity
from tests.unit.test_budget import RETRY

GONE = "the Ray head at 127.0.0.1:20 is gone"
LOST = {0: "READY", 1: "PREEMPTED"}
SESSION: Any = SimpleNamespace(
    screen=SimpleNamespace(wait=lambda _: None),
    interrupt=SimpleNamespace(pause=time.sleep),
    spec=SimpleNamespace(provider=SimpleNamespace(kind="local")),
)


def held(capacity: str) -> Any:
    offer = SimpleNamespace(capacity=capacity)
    return SimpleNamespace(states=lambda: LOST, choice=SimpleNamespace(offer=offer))


@pytest.mark.parametrize("capacity", ["on-demand", "spot"])
def test_slices_are_asked_after_when_the_head_has_gone(capacity: str) -> None:
    report = Report(head_lost=GONE)
    evidence = inquiry.inquire(SESSION, held(capacity), report, Account(Budget(RETRY)))
    assert (evidence.head_lost, evidence.node_states) == (GONE, LOST)
    assert judge(evidence).slices == (1,)


@pytest.mark.parametrize(("capacity", "is_asked"), [("on-demand", False), ("spot", True)])
def test_of_a_good_end_only_what_may_be_taken_back_is_asked(capacity: str, is_asked: bool) -> None:
    report = Report(endings=(Ending(Member(0, 0), 0, "exit code 0", 1.0),))
    evidence = inquiry.inquire(SESSION, held(capacity), report, Account(Budget(RETRY)))
    assert (evidence.node_states == LOST) == is_asked


@pytest.mark.parametrize(("lives", "patient"), [(True, False), (False, True)])
def test_a_slice_that_went_whole_is_given_time_to_be_called_preempted(
    lives: bool, patient: bool
) -> None:
    lost = Ending(Member(0, 1), None, "its host's connection broke", time.time())
    hosts = [Host((0, 0), alive=lives), Host((0, 1), alive=False, broke_at=time.time())]
    evidence = Evidence([lost], hosts=hosts, node_states={0: "READY"})
    assert judge(evidence).outcome is Outcome.HOST_LOST
    left = inquiry.patience(SESSION, evidence, Account(Budget(RETRY)), 0.0)
    assert (left > 1) == patient


def test_a_resize_is_not_taken_for_a_head_that_was_lost() -> None:
    gang = Gang("127.0.0.1", {(0, 0)}, [Member(0, 0)])
    gang.recall = "2 slices in place of 1"
    told = Ending(Member(0, 0), 143, "exit code 143", 1.0, collateral=True)
    report = gang.report([told])
    gang.close()
    evidence = inquiry.inquire(SESSION, held("on-demand"), report, Account(Budget(RETRY)))
    assert judge(replace(evidence, node_states={})).outcome is Outcome.RESIZED


def test_what_was_told_once_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "news_seconds", lambda _: 0.3)
    killed = Ending(Member(0, 0), -9, "killed by SIGKILL", time.time())
    answers = iter([{"created": {0: "now"}, "node_states": {0: "READY"}}])
    account = Account(Budget(RETRY), step=1)
    account.budget.best_step = 1
    account.budget.spent["failures"] = RETRY.max_failures  # so that news would save the run
    known = Evidence((killed,), stopped_at=killed.time, step=1)
    found = inquiry.with_news(SESSION, known, lambda: next(answers, {}), account)
    assert found.window >= 0.3
    assert (found.created, found.node_states) == ({0: "now"}, {0: "READY"})
    assert judge(found).outcome is Outcome.WORKLOAD_FAILED


@pytest.mark.parametrize(
    ("sizes", "lost"), [("[1,2]", (1,)), ("2", (0, 1))], ids=["one request each", "one of both"]
)
def test_a_queued_resource_that_goes_takes_its_own_slices_with_it(
    tmp_path: Path, sizes: str, lost: tuple[int, ...]
) -> None:
    words = ["name=t", "cluster=v4-8", "cluster.capacity=queued-spot", f"mode.slices={sizes}"]
    plan = make_plan(compose(words, cwd=tmp_path), Identity("me", "0123456789ab", "p"))
    *_, queued = plan.first.requests
    away = {queued.name: "SUSPENDED", plan.first.requests[-1].node_names[-1]: "PREEMPTED"}

    def get(name: str) -> Resource:
        raw = away.get(name, "ACTIVE" if "/queuedResources/" in name else "READY")
        return Resource(name, State.READY, raw, "v4-8")

    provider: Any = SimpleNamespace(get=get)
    joined: Any = SimpleNamespace(choice=plan.first)
    found = inquiry.look(provider, joined)
    endings = [Ending(Member(1, 0), None, "its host's connection broke", 1.0)]
    assert judge(Evidence(endings, **found)).slices == lost
