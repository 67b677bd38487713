"""What a run holds over its attempts: what it costs, and what is kept in mind of its zone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempts.holding import Holding
from launcher.compose import compose
from launcher.coordinator import Head
from launcher.errors import ProvisioningError
from launcher.hosts.member import Place
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.plan import Choice, make_plan
from launcher.provisioning import provision
from launcher.provisioning.chain import REMEMBER_SECONDS, Memory
from launcher.provisioning.prices import Bill
from launcher.provisioning.provision import Joined
from launcher.provisioning.requests import Identity
from tests.unit.greeter import greeting_head

HOUR = 3600.0
FAILED = Verdict(Outcome.WORKLOAD_FAILED, "failed", slices=())
LOST = Verdict(Outcome.PREEMPTED, "lost", slices=(1,))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choice:
    """Two slices, and a place for what is kept in mind."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    spec = compose(["name=t", "cluster=v4-16", "mode=multislice"], cwd=Path.cwd())
    return make_plan(spec, Identity("me", "0123456789ab", "some-project")).first


def hosts_of(choice: Choice) -> dict[Place, Any]:
    """All of them; nothing here uses their handles."""
    workers = range(choice.offer.accelerator.hosts)
    return {(index, worker): None for index in range(len(choice.nodes)) for worker in workers}


@pytest.fixture
def held(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Holding, Clock]]:
    """Slices of a cluster whose head is a port at which somebody answers."""
    clock, spec = Clock(), SimpleNamespace(keep=False, mode=SimpleNamespace(is_elastic=False))
    session: Any = SimpleNamespace(spec=spec)
    with greeting_head() as head:
        joined = Joined(head, choice, hosts_of(choice), made=clock.now)
        monkeypatch.setattr(provision, "acquired", lambda *_, **__: contextlib.nullcontext(joined))
        yield Holding(session, clock, Bill(clock)), clock


@pytest.mark.parametrize(
    ("age", "again", "is_noted"),
    [(60.0, 0.0, True), (REMEMBER_SECONDS + 1, 0.0, False), (HOUR, 60.0, False)],
)
def test_a_zone_has_failed_only_if_its_slices_died_young(
    held: tuple[Holding, Clock], choice: Choice, age: float, again: float, is_noted: bool
) -> None:
    holding, clock = held
    with holding:
        holding.ready()
        clock.now += age
        if again:  # processes that start again make no slice younger
            holding.damaged(FAILED)
            holding.ready()
            clock.now += again
        holding.damaged(LOST)
    other = make_other(choice)
    assert Memory().order([choice, other]) == ([other, choice] if is_noted else [choice, other])


def test_slices_are_no_younger_for_a_launcher_that_takes_over(
    held: tuple[Holding, Clock], choice: Choice
) -> None:
    holding, clock = held
    clock.now += HOUR  # since they were made
    with holding:
        holding.ready()
        clock.now += 60.0
        holding.damaged(LOST)
    other = make_other(choice)
    assert Memory().order([choice, other]) == [choice, other]


def make_other(choice: Choice) -> Choice:
    """The same in another zone."""
    moved = (dataclasses.replace(request, parent="elsewhere") for request in choice.requests)
    return dataclasses.replace(choice, requests=tuple(moved))


def test_slices_that_stay_cost_while_another_is_lost(
    held: tuple[Holding, Clock], choice: Choice
) -> None:
    holding, clock = held
    assert choice.cost_per_hour_usd
    clock.now += HOUR
    with holding:
        holding.ready()
        assert holding.cost_usd == 0
        clock.now += HOUR
        holding.damaged(FAILED)
        holding.ready()
        clock.now += HOUR
        holding.damaged(LOST)
        clock.now += HOUR  # of back-off
    clock.now += HOUR
    assert holding.cost_usd == pytest.approx(2.5 * choice.cost_per_hour_usd)


def test_a_slice_that_could_not_be_had_is_lost_with_the_next(
    held: tuple[Holding, Clock], choice: Choice
) -> None:
    holding, clock = held
    assert choice.cost_per_hour_usd
    with holding:
        holding.ready()
        holding.lose([1])
        clock.now += HOUR
        holding.lose([0])
        clock.now += HOUR
    assert holding.cost_usd == pytest.approx(0.5 * choice.cost_per_hour_usd)


def test_slices_that_were_lost_without_a_launcher_cost_nothing(
    held: tuple[Holding, Clock], choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding, clock = held
    assert choice.cost_per_hour_usd
    hosts = {place: host for place, host in hosts_of(choice).items() if place != (1, 0)}
    asked: list[bool] = []

    def acquired(*_: Any, partly: bool, **__: Any) -> Any:
        asked.append(partly)
        return contextlib.nullcontext(
            Joined(Head("h", "127.0.0.1", (1, 0), "/nowhere"), choice, hosts)
        )

    monkeypatch.setattr(provision, "acquired", acquired)
    with holding:
        assert holding.ready(partly=True).absent == {1}
        clock.now += HOUR
    assert (asked, holding.cost_usd) == ([True], pytest.approx(0.5 * choice.cost_per_hour_usd))


def test_slices_cost_while_their_launcher_is_dead(
    held: tuple[Holding, Clock], choice: Choice
) -> None:
    """As its account has it, which is written when an attempt begins."""
    holding, clock = held
    assert choice.cost_per_hour_usd
    first = Bill(clock)
    first.go_on(choice.cost_per_hour_usd)
    kept = json.loads(json.dumps(first.to_json()))
    clock.now += HOUR  # it is killed in the first half, and the same command comes after it
    second = Bill(clock)
    second.restore(kept)
    with Holding(holding._session, clock, second) as taken_up:
        taken_up.ready()
        clock.now += HOUR
    assert taken_up.cost_usd == pytest.approx(2 * choice.cost_per_hour_usd)


def test_what_has_no_price_makes_no_sum() -> None:
    clock = Clock()
    bill = Bill(clock)
    bill.go_on(None)
    assert bill.usd == 0
    clock.now += 1
    bill.go_on(2.0)
    assert bill.usd is None
    bill.go_on(0.0)
    assert bill.usd is None


def test_slices_are_let_go_of_though_a_probe_cannot_be_ended(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    @contextlib.contextmanager
    def acquired(_session: Any, **_: Any) -> Iterator[Joined]:
        yield Joined(Head("h", "127.0.0.1", (1, 0), "/nowhere"), choice, hosts_of(choice))
        left.append("slices")

    class Stuck:
        def end(self, *, keeps: bool) -> None:
            raise ProvisioningError("the record cannot be written")

    monkeypatch.setattr(provision, "acquired", acquired)
    monkeypatch.setattr("launcher.attempts.holding.probe_for", lambda *_: Stuck())
    session: Any = SimpleNamespace(spec=SimpleNamespace(keep=False))
    with pytest.raises(ProvisioningError), Holding(session) as holding:
        holding.ready()
    assert left == ["slices"]
