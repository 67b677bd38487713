"""The searches: what they draw, what they stop, and that they go on as if nothing had happened."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.sweep.protocol import (
    Exploit,
    Outcome,
    Past,
    Report,
    Search,
    Suggestion,
    Verb,
)
from launcher.sweep.search import Study, make_search
from launcher.sweep.search_pbt import Population
from launcher.sweep.search_settings import SCHEDULERS, Settings
from launcher.sweep.search_space import Choice, Domain, Interval, Space

LR = Interval(1e-5, 1e-1, log=True)
SPACE: Space = {
    "lr": LR,
    "optimizer": Choice(("sgd", "adam")),
    "width": Interval(8, 64, whole=True),
}
STEPS = 27


def identify(overrides: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(overrides.items()))


def search(space: Space = SPACE, **words: Any) -> Search:
    options = SCHEDULERS.get(words.get("scheduler", ""), {}) | words.pop("options", {})
    return make_search(Settings(**{"options": options, **words}), space, identify)


def tuned(**words: Any) -> Search:
    return search(**{"metric": "accuracy", "mode": "max", "search": "tpe", **words})


Curve = Callable[[Mapping[str, str], int], float]


def curve(overrides: Mapping[str, str], step: int) -> float:
    """An accuracy that rises to a height that the learning rate decides: best at 1e-3."""
    height = 1 - 0.2 * abs(math.log10(float(overrides["lr"])) + 3)
    return height * (1 - 0.5 ** (step / 5))


@dataclass
class Driver:
    """Runs trials a step at a time, `places` of them side by side, and notes all that is said."""

    search: Search
    curve: Curve = curve
    places: int = 4
    running: dict[str, tuple[Mapping[str, str], int]] = field(default_factory=dict)
    history: dict[str, Past] = field(default_factory=dict)
    exploits: list[tuple[str, Exploit]] = field(default_factory=list)

    def run(self, ticks: float = math.inf) -> Driver:
        """Until all is done, or for so many steps of every trial that runs."""
        while ticks > 0 and (self.fill() or self.running):
            ticks -= 1
            for trial_id in list(self.running):
                self.step(trial_id)
        return self

    def fill(self) -> None:
        while len(self.running) < self.places and (found := self.search.next()):
            self.running[found.trial_id] = (found.overrides, 0)
            self.history[found.trial_id] = Past(found.trial_id, found.overrides)

    def step(self, trial_id: str) -> None:
        overrides, step = self.running[trial_id]
        report = Report(step + 1, {"accuracy": self.curve(overrides, step + 1)})
        self.running[trial_id] = overrides, step + 1
        past = self.history[trial_id]
        self.history[trial_id] = replace(past, reports=(*past.reports, report))
        decision = self.search.report(trial_id, report.step, report.metrics)
        if isinstance(decision, Exploit):
            self.exploits.append((trial_id, decision))
            at = self.running[decision.source_trial][1]
            self.running[trial_id] = decision.overrides, at
        elif decision is Verb.STOP or report.step == STEPS:
            self.end(trial_id, Outcome.STOPPED if decision is Verb.STOP else Outcome.SUCCEEDED)

    def end(self, trial_id: str, outcome: Outcome) -> None:
        del self.running[trial_id]
        past = self.history[trial_id] = replace(self.history[trial_id], outcome=outcome)
        self.search.ended(trial_id, past.reports[-1].metrics, outcome)

    @property
    def steps(self) -> int:
        return sum(len(past.reports) for past in self.history.values())

    @property
    def best(self) -> Past:
        ended = (past for past in self.history.values() if past.outcome is Outcome.SUCCEEDED)
        return max(ended, key=lambda past: past.reports[-1].metrics["accuracy"])


def drain(search: Search) -> list[Suggestion]:
    return list(iter(search.next, None))


def test_a_grid_is_all_there_is_in_order() -> None:
    space = {"a": Choice(("x", "y")), "b": Interval(1, 3, whole=True)}
    rows = [tuple(each.overrides.values()) for each in drain(search(space, search="grid"))]
    assert rows == [(a, b) for a in "xy" for b in "123"]


domains: Sequence[Domain] = (
    Choice(("a", "b", "c")),
    Choice(("1", "3", "5"), ordered=True),
    Interval(2, 4, whole=True),
    Interval(1, 6, whole=True, log=True),
)


@examples(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(domains), min_size=1, max_size=3),
    st.sampled_from(["grid", "random"]),
    st.integers(0, 99),
)
def test_a_finite_space_is_searched_without_a_rest_and_nothing_twice(
    found: list[Domain], kind: str, seed: int
) -> None:
    space = {f"k{number}": domain for number, domain in enumerate(found)}
    searched = search(space, search=kind, samples=1000, seed=seed)
    ids = [each.trial_id for each in drain(searched)]
    sizes = [3 if not isinstance(d, Interval) or d.low == 2 else 6 for d in found]
    assert len(ids) == len(set(ids)) == math.prod(sizes)
    assert searched.exhausted


@examples(max_examples=25, deadline=None)
@given(st.floats(1e-9, 1), st.floats(1, 1e9), st.booleans(), st.integers(0, 2**40))
def test_what_is_drawn_lies_in_its_bounds(low: float, factor: float, log: bool, seed: int) -> None:
    space = {"x": Interval(low, low * factor, log=log)}
    for each in drain(search(space, samples=5, seed=seed)):
        assert low <= float(each.overrides["x"]) <= low * factor


def test_a_log_scale_gives_each_order_of_magnitude_its_share() -> None:
    values = [float(each.overrides["x"]) for each in drain(search({"x": LR}, samples=400))]
    shares = [sum(10.0**n <= v < 10.0 ** (n + 1) for v in values) / 400 for n in range(-5, -1)]
    assert all(0.15 < share < 0.35 for share in shares)


@pytest.mark.parametrize("kind", ["grid", "random", "tpe"])
def test_the_seed_decides_everything(kind: str) -> None:
    space = {"lr": Choice(("1e-4", "1e-3", "1e-2")), "width": Interval(8, 64, whole=True)}

    def drawn(seed: int) -> list[str]:
        return list(Driver(tuned(space=space, search=kind, samples=12, seed=seed)).run().history)

    assert drawn(3) == drawn(3)
    assert (drawn(3) == drawn(4)) == (kind == "grid")


@pytest.mark.parametrize(
    ("kind", "scheduler"),
    [("random", "pbt"), *((k, s) for k in ("random", "tpe") for s in (None, "asha", "median"))],
)
@pytest.mark.parametrize("ticks", [1, 10, 40])
def test_a_search_that_was_killed_goes_on_as_if_nothing_had_happened(
    kind: str, scheduler: str | None, ticks: int
) -> None:
    words = {"search": kind, "scheduler": scheduler, "samples": 14}
    whole = Driver(tuned(**words)).run(ticks)
    killed = Driver(tuned(**words)).run(ticks)
    again = Driver(tuned(**words), running=dict(killed.running), history=dict(killed.history))
    again.search.restore(list(killed.history.values()))
    assert list(again.run(1).history) == list(whole.run(1).history)
    ended = {past.trial_id for past in killed.history.values() if past.outcome}
    assert not ended & set(again.running)
    again.run()
    assert len(again.history) == 14
    assert again.search.exhausted


def test_the_last_word_on_a_metric_need_not_be_in_the_last_line() -> None:
    searched = tuned(search="tpe", samples=30)
    lines = (Report(1, {"accuracy": 0.1}), Report(2, {"accuracy": 0.9}), Report(3, {"loss": 1.0}))
    good = {"lr": "0.001", "optimizer": "sgd", "width": "16"}
    searched.restore([Past(identify(good), good, lines, Outcome.SUCCEEDED)])
    assert isinstance(searched, Study)
    assert searched.study.best_trial.value == 0.9


def test_values_added_later_are_searched_and_those_taken_away_are_left() -> None:
    first = Driver(search({"a": Choice(("x", "y"))}, search="grid"), curve=lambda o, s: s).run()
    wider = search({"a": Choice(("z", "y"))}, search="grid")
    wider.restore(list(first.history.values()))
    assert [each.overrides for each in drain(wider)] == [{"a": "z"}]
    wider.ended("a=x", None, Outcome.SUCCEEDED)
    assert wider.report("a=x", 1, {"accuracy": 1.0}) is Verb.GO_ON


@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize("seed", range(3))
def test_fewer_steps_and_the_same_best(scheduler: str, seed: int) -> None:
    plain = Driver(tuned(search="random", samples=20, seed=seed)).run()
    saving = Driver(tuned(search="random", samples=20, seed=seed, scheduler=scheduler)).run()
    assert list(saving.history) == list(plain.history)
    assert saving.steps < (0.5 if scheduler == "asha" else 0.9) * plain.steps
    assert saving.best.trial_id == plain.best.trial_id


def test_no_trial_is_stopped_before_its_grace() -> None:
    driver = Driver(tuned(scheduler="asha", samples=20, options={"grace_steps": 4})).run()
    assert min(len(past.reports) for past in driver.history.values()) == 4


def test_tpe_learns_where_the_good_values_are() -> None:
    kinds = {kind: Driver(tuned(search=kind, samples=40)).run() for kind in ("random", "tpe")}
    near = {
        kind: sum(1e-4 < float(past.overrides["lr"]) < 1e-2 for past in driver.history.values())
        for kind, driver in kinds.items()
    }
    assert near["tpe"] > 1.2 * near["random"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e300, 0.0])
@pytest.mark.parametrize("scheduler", [None, "asha", "median", "pbt"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_odd_numbers_stop_no_search(bad: float, scheduler: str | None, mode: str) -> None:
    def odd(overrides: Mapping[str, str], step: int) -> float:
        return bad if float(overrides["lr"]) > 1e-3 else 0.5 + curve(overrides, step)

    words = {"mode": mode, "scheduler": scheduler, "search": "random"}
    driver = Driver(tuned(samples=12, **words), curve=odd).run()
    assert len(driver.history) == 12
    if scheduler in ("asha", "median") and not math.isfinite(bad):
        diverged = [p for p in driver.history.values() if float(p.overrides["lr"]) > 1e-3]
        assert {past.outcome for past in diverged} == {Outcome.STOPPED}


def test_tpe_keeps_away_from_what_fails_or_diverges() -> None:
    searched = tuned(samples=40)
    high = 0
    while found := searched.next():
        lr = float(found.overrides["lr"])
        high += lr > 1e-2
        bad = Outcome.FAILED if lr > 3e-2 else Outcome.SUCCEEDED
        searched.ended(found.trial_id, {"accuracy": math.nan if lr > 1e-2 else 0.5}, bad)
    assert high <= 6  # a quarter of the space, on its log scale


def test_trials_that_say_nothing_are_no_hindrance() -> None:
    searched = tuned(samples=15, scheduler="asha")
    while found := searched.next():
        assert searched.report(found.trial_id, 1, {"loss": 1.0}) is Verb.GO_ON
        searched.ended(found.trial_id, None, Outcome.SUCCEEDED)
    assert searched.exhausted


def test_a_step_told_again_changes_nothing() -> None:
    searched = tuned(scheduler="asha")
    found = searched.next()
    assert found
    assert searched.report(found.trial_id, 5, {"accuracy": 0.5}) is Verb.GO_ON
    for step in (5, 3, -1):
        assert searched.report(found.trial_id, step, {"accuracy": 0.1}) is Verb.GO_ON


def population(scores: Mapping[str, float], **words: Any) -> tuple[Search, list[str]]:
    searched = search(
        {"lr": LR}, samples=8, metric="accuracy", scheduler="pbt", **{"mode": "max", **words}
    )
    ids = [each.trial_id for each in drain(searched)]
    return searched, ids


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("worst", [None, math.nan, math.inf, -math.inf])
def test_the_worst_quarter_goes_on_as_copies_of_the_best(mode: str, worst: float | None) -> None:
    searched, ids = population({}, mode=mode)
    sign = 1 if mode == "max" else -1
    for rank, trial_id in enumerate(ids[1:], 1):
        decision = searched.report(trial_id, 4, {"accuracy": sign * rank})
        assert decision is Verb.GO_ON
    assert searched.report(ids[4], 5, {"accuracy": sign * 4}) is Verb.GO_ON
    decision = searched.report(ids[0], 5, {"accuracy": sign * 0.0 if worst is None else worst})
    assert isinstance(decision, Exploit)
    assert decision.source_trial in ids[-2:]
    assert 1e-5 <= float(decision.overrides["lr"]) <= 1e-1
    assert identify(decision.overrides) != decision.source_trial


def test_a_copy_that_could_not_be_made_is_none() -> None:
    searched, ids = population({})
    assert isinstance(searched, Population)
    for rank, trial_id in enumerate(ids):
        searched.report(trial_id, 4, {"accuracy": rank})
    before = searched.members[ids[0]].overrides
    assert isinstance(searched.report(ids[0], 5, {"accuracy": 0.0}), Exploit)
    assert searched.members[ids[0]].overrides != before
    searched.kept(ids[0])
    member = searched.members[ids[0]]
    assert (member.overrides, member.score, member.step) == (before, 0.0, 5)
    assert searched.report(ids[0], 6, {"accuracy": 0.0}) is Verb.GO_ON  # until the next look


def test_nobody_copies_one_that_is_no_better_or_has_ended() -> None:
    searched, ids = population({})
    for trial_id in ids:
        assert searched.report(trial_id, 5, {"accuracy": math.nan}) is Verb.GO_ON
    for trial_id in ids[1:]:
        searched.ended(trial_id, {"accuracy": 1.0}, Outcome.SUCCEEDED)
    assert searched.report(ids[0], 10, {"accuracy": 0.0}) is Verb.GO_ON


def test_a_population_gets_better_than_its_first_draws() -> None:
    def learn(overrides: Mapping[str, str], step: int) -> float:
        return curve(overrides, step)

    plain = Driver(tuned(search="random", samples=8, seed=1), learn, places=8).run()
    learning = Driver(tuned(search="random", samples=8, seed=1, scheduler="pbt"), learn, 8).run()
    means = [
        sum(past.reports[-1].metrics["accuracy"] for past in driver.history.values()) / 8
        for driver in (plain, learning)
    ]
    assert learning.exploits
    assert means[1] > means[0]


def test_an_absent_optuna_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return true_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"python -m pip install .*\[tune\]"):
        search()


@pytest.mark.parametrize(
    ("space", "words", "said"),
    [
        ({}, {}, "there is nothing to search"),
        ({"x": Interval(0, 1)}, {"search": "grid"}, "x: an interval has no grid"),
    ],
)
def test_what_cannot_be_searched(space: Space, words: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search(space, **words)
