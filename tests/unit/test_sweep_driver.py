"""What a sweep does about slices that are lost, and that cannot be had again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cluster import Host
from launcher.compose import compose
from launcher.coordinator import Head
from launcher.errors import PreemptionBudgetSpent, Reason, Refused
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.plan import make_plan
from launcher.provisioning.provision import Joined
from launcher.provisioning.requests import Identity
from launcher.sweep.desk import Desk
from launcher.sweep.driver import Driver
from launcher.sweep.entries import Entry
from launcher.sweep.grids import Grid
from launcher.sweep.place import Hold, Place
from launcher.sweep.spent import Spent

HOUR = 3600.0


class Kit:
    """A driver with places on three slices of four chips, none of which can be had again."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.lost: list[set[int]] = []
        limits: Any = SimpleNamespace(budget_seconds=None, budget_chip_hours=None)
        self.spent = Spent(limits, lambda: self.now)
        self.places = [SimpleNamespace(title=f"s{n}", slices=(n,), usable=True) for n in range(3)]
        nobody: Any = SimpleNamespace(changed=lambda _: None)
        make: Any = None
        self.desk = Desk(Grid(["a"]), make, nobody)
        session: Any = SimpleNamespace(
            folder=SimpleNamespace(next=lambda: None),
            tell=lambda topic, *_, **__: self.told.append(topic),
            spec=SimpleNamespace(name="x", retry=SimpleNamespace(max_preemptions=3)),
        )
        runner: Any = SimpleNamespace(desk=self.desk)
        self.driver: Any = Driver(session, runner, self.spent)
        choice = SimpleNamespace(nodes=("x-s0", "x-s1", "x-s2"), chips=12)
        joined: Any = SimpleNamespace(choice=choice)
        places: Any = self.places
        self.driver._joined, self.driver._places = joined, places

    def lose(self, slices: set[int]) -> None:
        self.lost.append(slices)

    def ready(self, **_: Any) -> None:
        raise Refused(Reason.STOCKOUT, "no capacity")

    def repair(self, *slices: int) -> None:
        for place in self.places:
            place.usable = place.usable and place.slices[0] not in slices
        self.driver._broken |= {*slices}
        self.driver._repair(self)

    def chips(self) -> float:
        """That are held now."""
        before = self.spent.chip_hours
        self.now += HOUR
        return self.spent.chip_hours - before


@pytest.fixture
def kit() -> Kit:
    return Kit()


def test_a_slice_that_cannot_be_had_is_done_without_and_asked_for_with_the_next(kit: Kit) -> None:
    kit.repair(1)
    assert (kit.lost, kit.told) == ([{1}], ["repair", "without"])
    assert not kit.driver._can_repair()  # until another one is lost
    assert kit.chips() == 8
    kit.desk.progress += 1
    kit.repair(2)
    assert kit.lost[1:] == [{1, 2}]
    assert kit.chips() == 4


def test_where_none_is_of_use_all_are_asked_for_and_then_the_sweep_ends(kit: Kit) -> None:
    for place in kit.places:  # as where a trial has all slices
        place.usable = False
    kit.repair(1)
    assert kit.driver._can_repair()
    with pytest.raises(Refused, match="no capacity"):
        kit.repair()
    assert kit.lost == [{1}, {0, 1, 2}]
    assert kit.chips() == 0


@pytest.mark.parametrize(("told", "replaced"), [((1,), {3}), ((), {2, 3})])
def test_of_a_place_on_several_slices_the_lost_ones_alone_are_replaced(
    told: tuple[int, ...], replaced: set[int]
) -> None:
    lost: list[frozenset[int]] = []
    part: Any = SimpleNamespace(title="s2 s3", slices=(2, 3))
    nothing: Any = None
    place = Place(part, nothing, lost.append)
    Hold(place, nothing).damaged(Verdict(Outcome.PREEMPTED, "gone", slices=told))
    assert (lost, place.usable) == ([replaced], False)


def test_a_budget_that_is_over_ends_the_wait_for_slices(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.sweep.driver.incarnations_of", lambda _: {})

    def ready(**_: Any) -> None:
        kit.now += 61.0
        kit.driver._require_need()

    limits: Any = SimpleNamespace(budget_seconds=60.0, budget_chip_hours=None)
    kit.driver._spent = Spent(limits, lambda: kit.now)
    kit.driver._joined, kit.driver._holding = None, SimpleNamespace(ready=ready)
    kit.driver.run()
    assert (kit.told, kit.driver.closed) == (["budget"], True)


def test_slices_that_are_lost_over_and_over_end_a_sweep_without_progress(kit: Kit) -> None:
    for _ in range(3):
        kit.repair(1)
    with pytest.raises(PreemptionBudgetSpent, match=r"lost 4 times .*, retry.max_.* is 3"):
        kit.repair(1)


def test_trials_that_went_on_are_taken_up_before_lost_slices_are_replaced(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they might run twice, or be ended for a slice that cannot be had."""
    words = ["name=x", "cluster=v4-16", "mode=multislice", "mode.slices=3", "workload=mnist"]
    spec = compose([*words, "sweep.per_trial={slices: 1}"], cwd=Path.cwd())
    choice = make_plan(spec, Identity("me", "0123456789ab", "some-project")).first
    incarnations = dict.fromkeys(choice.nodes, "old")
    hosts = {(s, h): Host(s, h, "", "", "", "", None) for s in range(3) for h in range(2)}

    def ready(*, partly: bool = False) -> Joined:
        lost = {(1, 0)} if partly else set()
        incarnations.update({} if partly else {choice.nodes[1]: "new"})
        there = {place: host for place, host in hosts.items() if place not in lost}
        return Joined(Head("h", "127.0.0.1", (1, 0), "/nowhere"), choice, there)

    monkeypatch.setattr("launcher.sweep.driver.incarnations_of", lambda _: dict(incarnations))
    monkeypatch.setattr("launcher.sweep.driver.end_others", lambda *_: None)
    driver, session = kit.driver, kit.driver.session
    session.spec, session.folder.event = spec, lambda *_, **__: None
    trial: Any = SimpleNamespace(id="t")
    standing = [Entry(trial, n, wanted=f"s{n}", not_before=float("inf")) for n in range(3)]
    kit.desk._waiting, kit.desk.search = list(standing), Grid([])
    driver._joined, driver._places = None, []
    driver._holding = SimpleNamespace(ready=ready)
    driver._open()
    assert [entry.wanted for entry in standing] == ["s0", "s1", "s2"]
    assert [place.usable for place in driver._places] == [True, False, True]
    assert (driver._can_repair(), driver._broken) == (True, {1})
    assert (len(driver._threads), kit.chips()) == (2, choice.chips * 2 / 3)
    driver._repair(SimpleNamespace(lose=kit.lose, ready=ready))
    assert (kit.lost, [place.usable for place in driver._places]) == ([{1}], [True] * 3)
    assert (len(driver._threads), driver._can_repair()) == (3, False)
    kit.desk.fail(Refused(Reason.STOCKOUT, "over"))
