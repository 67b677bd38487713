"""The parts of a sweep that start nothing: identity, layout, scores, tables, the desk."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.accelerators import lookup
from launcher.compose import compose
from launcher.errors import ClusterError, ConfigError
from launcher.plan import make_plan
from launcher.provisioning.requests import Identity
from launcher.ranks.rendezvous import Meeting
from launcher.spec import Spec
from launcher.sweep import checkpoints, identity, layout, page, scores, table, trials
from launcher.sweep.board import Board, SweepScreen, as_csv, document
from launcher.sweep.desk import Desk, Stopped
from launcher.sweep.entries import Entry, Status, restored
from launcher.sweep.grids import Grid
from launcher.sweep.protocol import Decision, Exploit, Suggestion, Verb
from launcher.sweep.scores import Goal
from launcher.sweep.trials import Composer, Trial

ME = Identity("me", "m", "p")
UP, DOWN = Goal("accuracy", "max"), Goal("loss", "min")


def asker(_spec: Spec) -> Identity:
    return ME


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- identity -----------------------------------------------------------------------------------

VALUE = st.sampled_from(["1", "1e-3", "a", "'a b'", "null", "[1,2]", "'ü,=/'", "''", "true"])
POINT = st.dictionaries(
    st.sampled_from(["workload.args.a", "workload.args.b", "mode.slices"]), VALUE
)


@settings(deadline=None)
@given(POINT, st.randoms())
def test_the_order_of_overrides_does_not_matter(point: dict[str, str], rng: Any) -> None:
    typed = [f"{key}={value}" for key, value in point.items()]
    other = [f"++{key}={value}" for key, value in point.items()]
    rng.shuffle(other)
    assert identity.trial_id(typed) == identity.trial_id(other)


@settings(deadline=None)
@given(POINT, POINT)
def test_other_values_are_another_trial(one: dict[str, str], other: dict[str, str]) -> None:
    ids = [identity.trial_id([f"{k}={v}" for k, v in point.items()]) for point in (one, other)]
    assert (ids[0] == ids[1]) is (one == other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("workload.args.lr=1e-3", "workload.args.lr='1e-3'", True),
        ("workload.args.lr=1e-3", "workload.args.lr=0.001", False),  # another text for the program
        ("workload.args.x=null", "workload.args.x='null'", False),
        ("workload.args.x=", "workload.args.x=''", True),
        ("mode.slices=2", "mode.slices=2 sweep.name=a retry.grace=1s keep=true name=b", True),
        ("mode.slices=2", "mode.slices=2 hydra/launcher=launcher hydra.verbose=true", True),
        ("mode.slices=2", "mode.slices=1 mode.slices=2", True),
        ("~workload.args.x", "workload.args.x=1", False),
    ],
)
def test_what_a_trial_is(one: str, other: str, same: bool) -> None:
    assert (identity.trial_id(one.split()) == identity.trial_id(other.split())) is same


def test_a_sweep_has_the_same_name_when_values_are_added(cwd: Path) -> None:
    spec = compose([], cwd=cwd)
    named = [
        trials.name_of([spec], ["workload.args.x=1", f"workload.args.y={y}"], cwd) for y in (1, 2)
    ]
    assert named[0] == named[1]
    assert named[0].startswith("basic-sweep-")
    assert trials.name_of([spec], ["workload.args.z=1"], cwd) != named[0]
    assert trials.name_of([spec], ["workload.args.x=1"], cwd / "other") != named[0]


# --- scores -------------------------------------------------------------------------------------


def test_what_is_no_number_never_wins() -> None:
    values = [None, math.nan, 0.0, -1.0, math.inf, 2.0, -math.inf]
    best_first = sorted(values, key=UP.key)
    assert best_first[:3] == [2.0, 0.0, -1.0]
    assert best_first[-1] is None
    assert sorted([3.0, -math.inf, -2.0, 0.0], key=DOWN.key)[:3] == [-2.0, 0.0, 3.0]


def test_what_of_a_line_is_a_number() -> None:
    line = {"step": 3, "loss": 0, "ok": True, "name": "1", "big": 10**400, "nan": math.nan}
    found = scores.numbers(line)
    assert set(found) == {"loss", "big", "nan"}
    assert found["big"] == math.inf


@pytest.mark.parametrize(
    ("seen", "goal"),
    [
        (["loss", "accuracy"], Goal("accuracy", "max")),
        (["train_accuracy", "eval_loss"], Goal("eval_loss", "min")),
        (["learning_rate", "seconds"], None),
        (["lossless"], None),
        ([], None),
    ],
)
def test_the_likeliest_metric(seen: list[str], goal: Goal | None) -> None:
    assert scores.goal(None, None, seen) == goal


# --- layout -------------------------------------------------------------------------------------


def shared_out(cwd: Path, *words: str) -> list[str]:
    spec = compose(words, cwd=cwd)
    return [part.title for part in layout.parts(spec, spec.cluster.accelerator)]


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("cluster=v6e-8", ["s0"]),
        ("cluster=v6e-8 mode.slices=2", ["s0-1"]),
        ("cluster=v6e-8 mode.slices=2 sweep.per_trial={slices:1}", ["s0", "s1"]),
        ("cluster=v6e-16 sweep.per_trial={hosts:1}", ["s0 h0", "s0 h1", "s0 h2", "s0 h3"]),
        ("cluster=v6e-16 sweep.per_trial={hosts:2}", ["s0 h0,2", "s0 h1,3"]),
        ("cluster=v6e-16 sweep.per_trial={hosts:4}", ["s0"]),
        ("cluster={accelerator_type:v6e-32} sweep.per_trial={hosts:4}", ["s0 h0-3", "s0 h4-7"]),
        ("cluster={accelerator_type:v4-32} sweep.per_trial={hosts:2}", ["s0 h0-1", "s0 h2-3"]),
        ("cluster=v6e-4 sweep.per_trial={chips:1}", [f"s0 h0 c{n}" for n in range(4)]),
        ("cluster=v6e-8 sweep.per_trial={chips:4}", ["s0 h0 c0-3", "s0 h0 c4-7"]),
        ("cluster=v6e-8 sweep.per_trial={chips:8}", ["s0"]),
        (
            "cluster=v4-16 sweep.per_trial={chips:2}",
            [f"s0 h{h} c{c}" for h in (0, 1) for c in ("0-1", "2-3")],
        ),
    ],
)
def test_places(cwd: Path, words: str, titles: list[str]) -> None:
    assert shared_out(cwd, *words.split()) == titles


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cluster=v6e-8 sweep.per_trial={chips:3}", "chips: 1, 2, 4, 8"),
        ("cluster=v6e-16 sweep.per_trial={chips:8}", "cannot be shared out by 8 chips"),
        ("cluster=v6e-16 sweep.per_trial={hosts:3}", "hosts: 1, 2, 4"),
        ("cluster={accelerator_type:v2-32} sweep.per_trial={hosts:2}", "hosts: 1, 4"),
        ("cluster=v6e-8 mode.slices=3 sweep.per_trial={slices:2}", "3 slices cannot be shared"),
        ("cluster=v6e-8 sweep.per_trial={cores:2}", "must be one of"),
        ("cluster=v6e-8 sweep.per_trial={slices:1,chips:2}", "must be one of"),
    ],
)
def test_what_cannot_be_shared_out(cwd: Path, words: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        shared_out(cwd, *words.split())


def test_a_trial_on_some_chips_sees_them_alone(cwd: Path) -> None:
    spec = compose(["cluster=v6e-8", "sweep.per_trial={chips: 2}"], cwd=cwd)
    whole = make_plan(spec, ME).first
    parts = layout.parts(spec, spec.cluster.accelerator)
    made = [layout.choice_of(spec, whole, part) for part in parts]
    envs = [choice.processes[0].env for choice in made]
    assert [env["TPU_VISIBLE_CHIPS"] for env in envs] == ["0,1", "2,3", "4,5", "6,7"]
    assert {env["JAX_NUM_CPU_DEVICES"] for env in envs} == {"2"}
    assert len({env["TPU_PROCESS_PORT"] for env in envs}) == 4
    assert [choice.chips for choice in made] == [2, 2, 2, 2]


def test_a_trial_on_some_hosts_knows_of_them_alone(cwd: Path) -> None:
    spec = compose(["cluster=v6e-16", "sweep.per_trial={hosts: 2}"], cwd=cwd)
    whole = make_plan(spec, ME).first
    part = layout.parts(spec, spec.cluster.accelerator)[1]
    assert part.places == {(0, 0): (0, 1), (0, 1): (0, 3)}
    made = layout.choice_of(spec, whole, part)
    assert (made.hosts, made.chips) == (2, 8)
    addresses = {(0, 0): "10.0.0.2", (0, 1): "10.0.0.4"}
    ports = {place: [9000 + place[1] * 10 + n for n in range(4)] for place in addresses}
    meeting = Meeting(addresses, ports, dict.fromkeys(addresses, "n"))
    for index, process in enumerate(made.processes):
        env = meeting.env(process) | dict(process.env)
        assert {name: env[name] for name in sorted(env) if name.startswith("TPU_")} == {
            "TPU_ACCELERATOR_TYPE": "v6e-16",
            "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
            "TPU_HOST_BOUNDS": "1,2,1",
            "TPU_PROCESS_ADDRESSES": "10.0.0.2:9002,10.0.0.4:9012",
            "TPU_PROCESS_BOUNDS": "1,2,1",
            "TPU_PROCESS_PORT": str(9002 + 10 * index),
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_VISIBLE_CHIPS": "0,1,2,3",
            "TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.4",
            "TPU_WORKER_ID": str(index),
        }
        assert (env["CLOUD_TPU_TASK_ID"], env["JAX_NUM_CPU_DEVICES"]) == (str(index), "4")


def test_a_trial_on_a_slice_cannot_tell_it_from_a_run(cwd: Path) -> None:
    words = ["cluster=v6e-16", "mode.slices=2"]
    alone = compose(["cluster=v6e-16"], cwd=cwd)
    spec = compose([*words, "sweep.per_trial={slices: 1}"], cwd=cwd)
    whole = make_plan(spec, ME).first
    made = [layout.choice_of(spec, whole, p) for p in layout.parts(spec, lookup("v6e-16"))]
    single = make_plan(replace(alone, name=spec.name), ME).first
    assert [choice.processes for choice in made] == [single.processes] * 2
    assert [choice.nodes for choice in made] == [(node,) for node in whole.nodes]


# --- trials -------------------------------------------------------------------------------------


def grid(cwd: Path, *points: str) -> tuple[Trial, ...]:
    return Composer((), cwd).grid([point.split() for point in points])


def test_a_trial_is_what_a_single_run_would_be(cwd: Path) -> None:
    words = ["cluster=v6e-8", "workload.args.lr=1e-3", "retry.grace=7s"]
    (trial,) = grid(cwd, " ".join(words))
    single = compose(words, cwd=cwd, suffix=lambda: trials.MADE_UP)
    assert trial.spec == single


def test_equal_points_are_one_trial(cwd: Path) -> None:
    found = grid(cwd, "workload.args.x=1", "workload.args.x='1'", "workload.args.x=2")
    assert [dict(trial.params) for trial in found] == [{"workload.args.x": x} for x in "12"]


def test_every_trial_is_checked(cwd: Path) -> None:
    with pytest.raises(ConfigError) as found:
        grid(cwd, "mode.slices=1", "mode.slices=x", "cluster=v6e-9", "workload.script=no.py")
    told = str(found.value)
    assert all(word in told for word in ("mode.slices=x", "'v6e-9'", "no.py"))


@pytest.mark.parametrize("key", ["name", "retry.grace", "sweep.name"])
def test_how_trials_are_run_is_not_swept(cwd: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: it says how trials are run"):
        grid(cwd, f"{key}=1s", f"{key}=2s")


def test_trials_that_ask_for_the_same_share_a_cluster(cwd: Path) -> None:
    points = [f"cluster={c} workload.args.x={x}" for x in (1, 2) for c in ("v6e-8", "v4-8")]
    groups = trials.groups("s", grid(cwd, *points), asker)
    assert [len(group.trials) for group in groups] == [2, 2]
    names = [group.spec.cluster.accelerator.accelerator_type for group in groups]
    assert names == ["v6e-8", "v4-8"]
    assert {group.spec.name for group in groups} == {"s"}


# --- the desk -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return compose([], cwd=tmp_path_factory.mktemp("any"))


@dataclass
class Spot:
    title: str
    slices: tuple[int, ...] = (0,)
    usable: bool = True


class Quiet:
    def changed(self, entry: Entry) -> None: ...


class Picky(Grid):
    """Decides as it is told to."""

    decision: Decision = Verb.GO_ON

    as_it_was = ""

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        return self.decision

    def kept(self, trial_id: str) -> None:
        self.as_it_was += trial_id


def entry(spec: Spec, name: str, **fields: Any) -> Entry:
    return Entry(Trial(name, spec, (), {"x": name}), 0, **fields)


@pytest.fixture
def desk(spec: Spec) -> Desk:
    return Desk(Picky("abc"), lambda s: entry(spec, s.trial_id), Quiet())


def taken(desk: Desk, spot: Spot) -> Entry:
    found = desk.take(spot)
    assert found is not None
    return found[0]


def test_a_free_place_gets_the_next_trial(desk: Desk) -> None:
    one, other = Spot("one"), Spot("other")
    first, second = taken(desk, one), taken(desk, other)
    assert [first.trial.id, second.trial.id] == ["a", "b"]
    desk.left(second, Status.SUCCEEDED)
    third = taken(desk, other)
    assert third.trial.id == "c"
    desk.left(third, Status.FAILED)
    assert not desk.done
    desk.left(first, Status.SUCCEEDED)
    assert desk.done
    desk.go_on(Picky("d"), desk.make)
    assert not desk.done
    assert taken(desk, one).trial.id == "d"


def test_what_waits_again_goes_first(desk: Desk) -> None:
    first = taken(desk, Spot("one"))
    desk.left(first, Status.WAITING)
    assert taken(desk, Spot("other")) is first


def test_processes_that_may_run_draw_their_trial_to_their_place(desk: Desk, spec: Spec) -> None:
    old = [entry(spec, name, wanted=place) for name, place in ("x1", "y2")]
    desk.restore(old, [])
    assert taken(desk, Spot("2")) is old[1]
    assert taken(desk, Spot("3")).trial.id == "a"
    assert taken(desk, Spot("1")) is old[0]


def test_a_place_that_is_gone_draws_nothing(desk: Desk, spec: Spec) -> None:
    old = entry(spec, "x", wanted="s9")
    desk.restore([old], [])
    desk.keep_places(["s0"])
    assert taken(desk, Spot("s0")) is old


def test_a_lost_slice_stops_its_trials_alone(desk: Desk) -> None:
    mine, other = desk.take(Spot("s0", (0,))), desk.take(Spot("s1", (1,)))
    assert mine
    assert other
    desk.lost(frozenset({0}))
    with pytest.raises(Stopped) as stopped:
        mine[1].check()
    assert stopped.value.again
    other[1].check()
    assert desk.busy() == {0, 1}


def test_a_searcher_stops_a_trial(desk: Desk) -> None:
    found = desk.take(Spot("one"))
    assert found
    assert isinstance(desk.search, Picky)
    desk.reported(found[0], {"step": 1, "loss": 1.0})
    found[1].check()
    desk.search.decision = Verb.STOP
    desk.reported(found[0], {"step": 1, "loss": 1.0})  # the same step: nothing new
    found[1].check()
    desk.reported(found[0], {"step": 2, "loss": 1.0})
    with pytest.raises(Stopped, match="at step 2") as stopped:
        found[1].check()
    assert not stopped.value.again


def test_a_searcher_has_a_trial_go_on_from_another(desk: Desk) -> None:
    found = desk.take(Spot("one"))
    assert found
    assert isinstance(desk.search, Picky)
    desk.search.decision = Exploit("b", {"x": "2"})
    desk.reported(found[0], {"step": 1, "loss": 1.0})
    with pytest.raises(Stopped) as stopped:
        found[1].check()
    assert stopped.value.again
    assert stopped.value.exploit == Exploit("b", {"x": "2"})
    desk.left(found[0], Status.WAITING)  # before it had anything of the other
    assert desk.search.as_it_was == found[0].trial.id
    again = desk.take(Spot("one"))
    assert again
    assert again[0] is found[0]
    desk.reported(again[0], {"step": 2, "loss": 1.0})
    again[0].suggested = {"x": "2"}
    desk.left(again[0], Status.WAITING)
    assert desk.search.as_it_was == found[0].trial.id


@pytest.mark.parametrize("decision", [Verb.STOP, Exploit("b", {"x": "2"})])
def test_what_has_ended_by_itself_is_stopped_no_more(desk: Desk, decision: Decision) -> None:
    found = desk.take(Spot("one"))
    assert found
    assert isinstance(desk.search, Picky)
    desk.over(found[0])
    desk.search.decision = decision
    desk.reported(found[0], {"step": 1, "loss": 1.0})
    found[1].check()
    assert desk.search.as_it_was == ("" if decision is Verb.STOP else found[0].trial.id)


def test_no_more_at_a_time_than_asked_for(desk: Desk) -> None:
    desk.max_concurrent = 1
    first = taken(desk, Spot("one"))
    got: list[Entry] = []
    waiting = threading.Thread(target=lambda: got.append(taken(desk, Spot("other"))))
    waiting.start()
    waiting.join(0.2)
    assert got == []
    desk.left(first, Status.SUCCEEDED)
    waiting.join(5)
    assert [each.trial.id for each in got] == ["b"]


def test_fail_fast_stops_the_others(desk: Desk) -> None:
    desk.fail_fast = True
    first, second = desk.take(Spot("one")), desk.take(Spot("other"))
    assert first
    assert second
    desk.left(first[0], Status.FAILED)
    with pytest.raises(Stopped, match="fail_fast"):
        second[1].check()
    assert desk.take(Spot("one")) is None
    desk.left(second[0], Status.WAITING)
    assert desk.done


def test_a_suggestion_that_failed_before_it_began_is_passed_over(desk: Desk, spec: Spec) -> None:
    def make(suggestion: Suggestion) -> Entry:
        made = entry(spec, suggestion.trial_id)
        made.status = Status.FAILED if suggestion.trial_id == "a" else Status.WAITING
        return made

    desk.make = make
    assert taken(desk, Spot("one")).trial.id == "b"
    assert desk.entries["a"].status is Status.FAILED


def test_fail_fast_heeds_a_suggestion_that_failed_before_it_began(desk: Desk, spec: Spec) -> None:
    desk.fail_fast = True
    desk.make = lambda suggestion: entry(spec, suggestion.trial_id, status=Status.FAILED)
    assert desk.take(Spot("one")) is None
    assert [*desk.entries] == ["a"]
    assert desk.done


def test_a_fault_of_ours_lets_nothing_begin_any_more(desk: Desk) -> None:
    found = desk.take(Spot("one"))
    assert found
    desk.fail(RuntimeError("boom"))
    with pytest.raises(Stopped) as stopped:
        found[1].check()
    assert stopped.value.again
    assert desk.take(Spot("other")) is None
    desk.left(found[0], Status.WAITING)
    assert desk.done


# --- what is known of a trial -------------------------------------------------------------------


def test_steps_that_are_made_again_are_told_once(spec: Spec) -> None:
    one = entry(spec, "a")
    lines: Sequence[dict[str, Any]] = [
        {"step": 1, "loss": 3},
        {"restored_step": 1},
        {"step": 1, "loss": 9},
        {"step": 2, "loss": math.nan},
        {"loss": 1.5},
    ]
    told = [one.take(line) for line in lines]
    assert [report and report.step for report in told] == [1, None, None, 2, 3]


def test_several_lines_of_one_step_are_one_iteration(spec: Spec) -> None:
    one = entry(spec, "a")
    for line in ({"step": 30, "loss": 2.0}, {"saved_step": 30}, {"step": 30, "eval_loss": 3.0}):
        one.take(line)
    assert (one.values, one.iterations, one.step) == ({"loss": 2.0, "eval_loss": 3.0}, 1, 30)


def test_lines_without_a_step_are_counted(spec: Spec) -> None:
    one = entry(spec, "a")
    told = [one.take({"loss": value}) for value in (3, 2, 1)]
    assert [report and report.step for report in told] == [0, 1, 2]
    assert (one.values, one.iterations) == ({"loss": 1.0}, 3)


def test_the_folder_of_a_trial_says_how_it_ended(tmp_path: Path, spec: Spec) -> None:
    trial = Trial("a", spec, (), {})
    own = tmp_path / "a"
    own.mkdir(parents=True)
    (own / "metrics.jsonl").write_text('{"step": 2, "loss": NaN, "attempt": 0}\n{"step": 3, "lo')
    result = {"status": "failed", "exit_code": 5, "message": "m", "ran": 2.5, "place": "s0"}
    (own / "result.json").write_text(json.dumps(result))
    found = restored(trial, 0, tmp_path, retry_failed=False)
    assert (found.status, found.exit_code, found.seconds) == (Status.FAILED, 5, 2.5)
    assert found.iterations == 1
    assert found.to_json()["metrics"] == {"loss": "nan"}
    again = restored(trial, 0, tmp_path, retry_failed=True)
    assert again.status is Status.WAITING
    # It had gone on from another, so that it made step 2 once more.
    (own / "result.json").write_text(json.dumps({**result, "metrics": {"loss": 0.5}}))
    found = restored(trial, 0, tmp_path, retry_failed=False)
    assert found.to_json()["metrics"] == {"loss": 0.5}


# --- tables -------------------------------------------------------------------------------------


def row(name: str, metrics: Mapping[str, Any], status: str = "succeeded", **params: str) -> Any:
    counts = {"step": 1, "iterations": 1, "seconds": 1.0, "attempts": 1, "exit_code": 0}
    own = {"trial": name, "number": 0, "status": status, "place": "s0", "params": params}
    return {**own, **counts, "metrics": metrics}


ROWS = [
    row("none", {}, lr="1"),
    row("nan", {"accuracy": "nan"}, lr="2"),
    row("low", {"accuracy": 0.1}, lr="1e-1"),
    row("high", {"accuracy": 0.9}, lr="a,b\nc"),
]


def test_the_best_comes_first_and_what_is_missing_last() -> None:
    names = [each["trial"] for each in table.ordered(ROWS, UP)]
    assert names == ["high", "low", "nan", "none"]
    assert table.ordered(ROWS, None) == ROWS
    best = table.best(ROWS, UP)
    assert best
    assert best["trial"] == "high"
    assert table.best(ROWS[:2], UP) is None
    failed = row("f", {"accuracy": 1.0}, "failed")
    assert table.ordered([failed, *ROWS], UP)[1:3] == [ROWS[2], failed]
    assert table.best([failed, ROWS[2]], UP) is ROWS[2]
    assert table.best([failed, ROWS[0]], UP) is None


def test_the_shape_of_the_table() -> None:
    shown = table.text(table.ordered(ROWS, UP), UP).splitlines()
    assert shown[0].split() == ["trial", "status", "place", "lr", "accuracy", "iterations", "time"]
    assert shown[2].split()[:5] == ["high", "succeeded", "s0", "a,b\\nc", "0.9"]
    assert table.cells([row("e", {}, lr="")], UP)[0][3] == "''"


@pytest.mark.parametrize(
    ("trials", "found", "told"),
    [
        ([("succeeded", 9), ("succeeded", 9)], (18, 0), "18 steps"),
        (
            [("succeeded", 9), ("stopped", 1), ("stopped", 3), ("failed", 2), ("waiting", None)],
            (15, 14),
            "15 steps; 2 trials stopped early: 14 of 29 steps saved (48%)",
        ),
        ([("stopped", 1), ("running", 4)], (5, None), "5 steps; 1 trial stopped early"),
        ([("stopped", 9), ("succeeded", 9)], (18, 0), "18 steps; 1 trial stopped early"),
        ([("succeeded", None), ("stopped", None)], (0, 0), "1 trial stopped early"),
    ],
)
def test_steps_that_stopping_early_saves(
    trials: list[tuple[str, int | None]], found: tuple[int, int | None], told: str
) -> None:
    rows = [{**row("t", {}, status), "step": step} for status, step in trials]
    assert table.steps(rows) == found
    assert table.told_steps(rows) == told


def test_names_as_short_as_they_are_clear() -> None:
    keys = ["workload.args.lr", "workload.env.lr", "mode.slices"]
    assert table.short(keys) == ["args.lr", "env.lr", "slices"]


def test_the_csv_holds_values_as_they_are() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(ROWS))))
    assert [each["lr"] for each in read] == ["1", "2", "1e-1", "a,b\nc"]
    assert read[1]["accuracy"] == "nan"


def test_the_page(tmp_path: Path) -> None:
    rows = [row(str(n), {"loss": v}, lr=f"1e-{n}", act="<a>") for n, v in enumerate((3.0, 1, 2))]
    found = document(table.ordered(rows, DOWN), DOWN)
    assert found["best"] == "1"
    drawn = page.html(tmp_path, found)
    assert drawn.count("<polyline") == 3
    assert "&lt;a&gt;" in drawn
    assert "<a>" not in drawn
    assert "best by loss (min): 1" in page.text(tmp_path, found)
    assert "3 steps" in page.text(tmp_path, found)
    assert "<p>3 steps</p>" in drawn


def test_the_screen_of_a_terminal(tmp_path: Path, spec: Spec) -> None:
    from rich.console import Console

    screen, file = SweepScreen(), io.StringIO()
    screen.console = Console(file=file, force_terminal=True, width=100)
    board = Board(spec.sweep, tmp_path, screen)
    one = entry(spec, "0ddba11")
    screen.attach(board)
    one.begin("s0")
    board.changed(one)
    one.take({"step": 1, "loss": 0.25})
    one.leave(Status.FAILED)
    one.message = "exit code 7"
    board.changed(one)
    screen.wait("deleting s")
    screen.detach()
    shown = file.getvalue()
    assert all(word in shown for word in ("0ddba11 on s0", "exit code 7", "1 failed", "0.25"))
    assert shown.count("log: ") == 1  # a failure is told once
    assert (
        json.loads((tmp_path / "trials.json").read_text())["trials"][0]["metrics"]["loss"] == 0.25
    )


def test_a_trial_that_tells_no_metric_is_told_of_at_once(
    cwd: Path, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = compose(["sweep.metric=accuracy"], cwd=cwd).sweep
    board = Board(settings, cwd, SweepScreen())
    one, other = entry(spec, "a"), entry(spec, "b")
    for each, told in ((one, {"acc": 0.5, "loss": 1.0}), (other, {"accuracy": 0.5})):
        each.take(told)
        each.leave(Status.SUCCEEDED)
        board.changed(each)
    err = capsys.readouterr().err
    assert "it told no accuracy (sweep.metric), of metrics: acc, loss" in err
    assert err.count("it told no") == 1


def test_a_full_disk_stops_no_sweep(
    tmp_path: Path, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    board = Board(spec.sweep, tmp_path / "file", SweepScreen())
    one = entry(spec, "a")
    one.begin("s0")
    board.changed(one)
    board.save()
    assert capsys.readouterr().err.count("cannot be written: ") == 1


def test_the_table_is_drawn_while_trials_report(tmp_path: Path, spec: Spec) -> None:
    board, one, drawn = Board(spec.sweep, tmp_path, SweepScreen()), entry(spec, "a"), []
    one.take({f"m{number}": 1.0 for number in range(10_000)})  # drawing takes a while
    board.add([one])

    def report() -> None:
        while len(drawn) < 5:
            one.take({f"n{len(one.values)}": 1.0})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=report)
    thread.start()
    try:
        while len(drawn) < 5:
            drawn.append(board.goal)
    finally:
        sys.setswitchinterval(interval)
        drawn += [None] * 5
        thread.join(10)


# --- checkpoints --------------------------------------------------------------------------------


def test_checkpoints_are_taken_over_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "a" / "c", tmp_path / "b" / "c"
    assert not checkpoints.fetch(source, target)
    (source / "3").mkdir(parents=True)
    (source / "3" / "state").write_text("three")
    (source / "4.orbax-checkpoint-tmp").mkdir()
    (target / "1").mkdir(parents=True)
    assert checkpoints.fetch(source, target)
    assert [path.name for path in target.iterdir()] == ["1"]  # as yet
    checkpoints.settle(target, taken=True)
    checkpoints.settle(target, taken=True)
    assert [path.name for path in target.parent.iterdir()] == ["c"]
    assert [path.name for path in target.iterdir()] == ["3"]
    assert (target / "3" / "state").read_text() == "three"


def test_checkpoints_that_cannot_be_copied_say_why(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b" / "c"
    (source / "3").mkdir(parents=True)
    os.mkfifo(source / "3" / "state")
    (target / "1").mkdir(parents=True)
    with pytest.raises(ClusterError, match="is a named pipe"):
        checkpoints.fetch(source, target)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["c"]
    (target.parent / "file").write_text("")
    with pytest.raises(ClusterError, match="cannot be copied"):
        checkpoints.fetch(source, target.parent / "file" / "c")
    assert [path.name for path in target.iterdir()] == ["1"]  # its own are kept
