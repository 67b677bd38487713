"""A sweep that is begun again, and what it says when it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from launcher import coordinator, ending, registry
from launcher.attempts import fanout, supervise
from launcher.compose import compose
from launcher.errors import ConfigError, Interrupted, PreemptionBudgetSpent, Superseded
from launcher.passthrough import Task
from launcher.registry import read_json, write_json
from launcher.session import Session
from launcher.sweep import identity, sweeps, trial_run, tunes
from launcher.sweep.desk import Desk, Stopped
from launcher.sweep.entries import ATTEMPT, METRICS, STANDING, Entry, Status
from launcher.sweep.grids import Batches
from launcher.sweep.protocol import Exploit, Suggestion
from launcher.sweep.scores import Goal
from launcher.sweep.search import make_search
from launcher.sweep.search_space import Choice, Domain, Interval
from launcher.sweep.spent import Spent
from launcher.sweep.sweeps import Ended, concluded, history
from launcher.sweep.trials import Composer
from launcher.sweep.tunes import Tune
from launcher.verbs import Arguments, exit_code, run
from launcher.verbs.status import state_of

SPACE = {"workload.args.x": Choice(("1", "2", "3"))}


class Spot:
    title, slices, usable = "s0", (0,), True


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    return tmp_path


def searched(cwd: Path, *words: str) -> tuple[Tune, Desk]:
    """A search as a command begins it, but for the cluster. Its snapshot is to be closed."""
    shared = ("workload.script=train.py", "sweep.name=s", *words)
    tune = Tune(Composer((), cwd), SPACE, shared)
    desk = Desk(make_search(tune.settings(), SPACE, tune.identify), tune.make, tune.sweep.board)
    entries = tune.restored()
    desk.restore([entry for entry in entries if entry.begun], history(entries))
    return tune, desk


def test_a_trial_that_was_stopped_before_it_said_anything_is_the_same_one_again(cwd: Path) -> None:
    earlier, desk = searched(cwd)
    taken = desk.take(Spot())
    assert taken
    first, _stop = taken
    write_json(cwd / "runs" / "s" / first.trial.id / STANDING, trial_run._standing(first))
    earlier.sweep.__exit__(None, None, None)
    tune, desk = searched(cwd)
    taken = desk.take(Spot())
    assert taken
    again, _stop = taken
    assert again.trial.id == first.trial.id
    desk.left(again, Status.SUCCEEDED)
    tune.sweep.__exit__(None, None, None)
    assert [(e.trial.id, e.status) for e in tune.sweep.board.entries] == [
        (first.trial.id, Status.SUCCEEDED)
    ]


# --- what it ends with ----------------------------------------------------------------------------


def test_the_code_is_that_of_the_beginning_for_every_thread(cwd: Path) -> None:
    tune, _ = searched(cwd)
    trial = tune.trial({"workload.args.x": "1"})
    before = tune.sweep.code(trial).digest()
    (cwd / "train.py").write_text("print(2)\n")
    other = tune.trial({"workload.args.x": "2"})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tune.sweep.code, [trial, other, trial, other]))
    tune.sweep.__exit__(None, None, None)
    assert {id(code) for code in found} == {id(found[0])}
    assert found[0].digest() == before


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("boom"), "error", 1),
        (Interrupted("stopped by SIGINT"), "cancelled", 130),
        (KeyboardInterrupt(), "cancelled", 130),
        (PreemptionBudgetSpent("lost 4 times"), "preempted", 6),
    ],
)
def test_whatever_ends_a_sweep_is_its_result(
    cwd: Path, capsys: Any, error: BaseException, status: str, code: int
) -> None:
    tune, _ = searched(cwd)
    tune.sweep.folder.mkdir(parents=True)
    with pytest.raises(type(error)), concluded(tune.sweep):
        raise error
    result = read_json(tune.sweep.folder / "result.json")
    assert result
    assert (result["status"], result["exit_code"]) == (status, code)
    assert f"s  {status} " in capsys.readouterr().err


class Deleted:
    """A cluster that is deleted just when the user wants to stop."""

    closed, cost_usd = False, 0.0

    def __init__(self, session: Session, *_: Any) -> None:
        self.session = session

    def __enter__(self) -> None: ...

    def run(self) -> None: ...

    def __exit__(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_no_cluster_is_made_after_a_signal(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeps, "Driver", Deleted)
    with pytest.raises(Interrupted, match="SIGTERM"), Batches(()) as batches:
        batches.run([[*point("1"), f"cluster={each}"] for each in ("v6e-1", "v6e-4")])
    assert capsys.readouterr().err.count("s  plan ") == 1
    result = read_json(cwd / "runs" / "s" / "result.json")
    assert result
    assert (result["status"], result["exit_code"]) == ("cancelled", 130)


@pytest.mark.parametrize(("flags", "goes_on"), [((), True), (("--multirun",), False)])
def test_no_run_of_its_own_is_made_after_a_signal(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], goes_on: bool
) -> None:
    def supervised(*_: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(run, "supervised", supervised)
    arguments = Arguments(["workload.script=train.py", "name=s"], hydra=flags)
    code = exit_code(lambda: run.run(arguments))
    assert (code == 0) == goes_on


def test_a_sweep_that_another_launcher_has_is_left_alone(cwd: Path) -> None:
    tune, _ = searched(cwd)
    tune.sweep.folder.mkdir(parents=True)
    with pytest.raises(Superseded), concluded(tune.sweep):
        raise Superseded("taken over")
    assert list(tune.sweep.folder.iterdir()) == []


def test_a_failed_trial_is_worth_nothing_to_a_sweeper(cwd: Path) -> None:
    tune, _ = searched(cwd)
    made = [tune.make(Suggestion(f"t{x}", {"workload.args.x": x})) for x in "12"]
    for entry, accuracy in zip(made, (0.9, 0.5), strict=True):
        entry.take({"step": 1, "accuracy": accuracy})
    made[0].exit_code = 5
    tune.sweep.__exit__(None, None, None)
    ended = Ended(made, Goal("accuracy", "max"))
    assert (ended.values, ended.best) == ([None, 0.5], 0.5)


def test_a_failure_is_told_though_another_trial_has_the_same_values(
    cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two of a population may have in the end."""
    tune, _ = searched(cwd)
    made = [tune.make(Suggestion(name, {"workload.args.x": "1"})) for name in "ab"]
    tune.sweep.__exit__(None, None, None)
    made[0].exit_code = 5
    task = Task(lambda _: 0, ())
    task._note_all(Ended(made, None))
    assert task.summary() == 5
    assert "1 of 2 trials failed" in capsys.readouterr().err


def test_nothing_runs_of_a_sweep_that_is_gone(cwd: Path) -> None:
    rows = [{"status": status} for status in ("running", "failed")]
    write_json(cwd / "runs" / "s" / "trials.json", {"trials": rows})
    state = state_of("s")
    assert state["phase"] == "gone"
    assert [row["status"] for row in state["trials"]] == ["waiting", "failed"]


# --- threads of several places --------------------------------------------------------------------


def test_no_two_threads_are_in_hydras_parser(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, free, disturbed = OverridesParser.parse_rule, threading.RLock(), []

    def parse_rule(parser: OverridesParser, *words: Any) -> Any:
        alone = free.acquire(blocking=False)
        disturbed.append(not alone)
        time.sleep(0.001)
        try:
            return own(parser, *words)
        finally:
            if alone:
                free.release()

    monkeypatch.setattr(OverridesParser, "parse_rule", parse_rule)
    tune, _ = searched(cwd)
    texts = [f"{number}.{number}" for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        known = pool.map(tune.identify, [{"workload.args.x": text} for text in texts])
        made = pool.map(tune.trial, [{"workload.args.y": text} for text in texts])
        assert len({*known, *(trial.id for trial in made)}) == 40
    tune.sweep.__exit__(None, None, None)
    assert not any(disturbed)


# --- nothing is left to do ------------------------------------------------------------------------


class Made(Exception):
    """A cluster was."""


def test_a_search_that_is_over_makes_no_cluster(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(*_: Any) -> None:
        raise Made

    tune, _ = searched(cwd)
    for number, x in enumerate("12"):
        values = {"workload.args.x": x}
        left = {"number": number, "origin": values, "suggested": values}
        result = {"status": "succeeded", "exit_code": 0, "message": "", "code": "old", **left}
        write_json(cwd / "runs" / "s" / tune.identify(values) / "result.json", result)
    tune.sweep.__exit__(None, None, None)
    monkeypatch.setattr(sweeps.Sweep, "run", made)
    words = ["++workload.script=train.py", "++sweep.name=s", "++sweep.search=grid"]
    ended = tunes.run([*words, "++workload.args.x=1,2"], {}, (), None)
    assert [entry.status for entry in ended.entries] == [Status.SUCCEEDED] * 2
    told = capsys.readouterr().err
    assert "other code than there is now has run in 2 trials" in told
    assert "2 trials: 2 succeeded" in told
    with pytest.raises(Made):
        tunes.run([*words, "++workload.args.x=1,2,3"], {}, (), None)


# --- suggestions with a wrong configuration -------------------------------------------------------


def test_a_suggestion_with_a_wrong_config_is_one_that_was_made(cwd: Path) -> None:
    wrong, right = {"workload.args.x": "${nothing}"}, {"workload.args.x": "1"}
    tune, _ = searched(cwd)
    entry = tune.make(Suggestion(tune.identify(wrong), wrong))
    tune.sweep.board.add([entry, tune.make(Suggestion(tune.identify(right), right))])
    tune.sweep.board.save()
    tune.sweep.__exit__(None, None, None)
    assert (entry.status, entry.exit_code) == (Status.FAILED, 2)
    assert entry.trial.overrides[-1] == "++workload.args.x=${nothing}"
    for words in ((), ("sweep.retry_failed=true",)):  # which does not mend it
        again, desk = searched(cwd, *words)
        again.sweep.__exit__(None, None, None)
        (found,) = again.sweep.board.entries
        assert (found.trial.id, found.status, found.message) == (
            entry.trial.id,
            Status.FAILED,
            entry.message,
        )
        assert [*desk.entries] == [entry.trial.id]


@pytest.mark.parametrize(
    ("key", "domain"),
    [
        ("cluster", Choice(("v6e-8", "v4-8"))),
        ("mode.slices", Interval(1, 2, whole=True)),
        ("sweep.samples", Choice(("3", "4"))),
        ("retry.grace", Choice(("3s", "4s"))),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_made(
    cwd: Path, key: str, domain: Domain
) -> None:
    with pytest.raises(ConfigError, match=f"{key}: (a search cannot|it says how)"):
        Tune(Composer((), cwd), {key: domain, **SPACE}, ("workload.script=train.py",))


# --- what is no trial's fault ---------------------------------------------------------------------


def test_a_trial_that_cannot_be_put_on_record_has_not_failed(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(current: Session, *_: Any, **__: Any) -> None:
        (current.folder.path / ATTEMPT).mkdir()
        current.under_way.write({"attempt": 0})

    monkeypatch.setattr(supervise, "one_attempt", attempt)
    with pytest.raises(ConfigError, match=r"under_way.json cannot be written"):
        run_next(*searched(cwd))


def run_next(tune: Tune, desk: Desk) -> Entry:
    """The next trial in a place without hosts; it waits again."""
    taken = desk.take(Spot())
    assert taken
    entry, stop = taken
    joined = SimpleNamespace(choice=tune.group.plan.first, hosts={})
    place: Any = SimpleNamespace(title="s0", joined=lambda _: joined, head=None)
    own: Any = SimpleNamespace(path=tune.sweep.folder)
    shared = {"owner": "me", "interrupt": None, "provider": None, "setback": None}
    session: Any = SimpleNamespace(folder=own, **shared)
    try:
        trial_run.Runner(session, desk, tune.sweep.code, tune.sweep.remade).run(entry, place, stop)
    finally:
        tune.sweep.__exit__(None, None, None)
        assert entry.status is Status.WAITING
    return entry


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        ({"key": "k", "gone": False, "running": [0], "exits": {}}, 5 + 3600),
        ({"key": "k", "gone": False, "running": [], "exits": {0: {"time": 1600.0}}}, 5 + 600),
        ({"key": "k", "gone": True, "running": [], "exits": {0: {"time": 1600.0}}}, 5 + 600),
        ({}, 5 + 40),
    ],
    ids=["it still runs", "it has ended", "nothing of it is left", "nobody knows"],
)
def test_a_trial_has_run_while_no_launcher_watched(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], seconds: float
) -> None:
    """From second 1000 to 4600; the launcher heard of it until 1040."""
    tune, _ = searched(cwd)
    tune.sweep.__exit__(None, None, None)
    entry = tune.make(Suggestion(tune.identify({"workload.args.x": "1"}), {"workload.args.x": "1"}))
    own = cwd / "runs" / "s" / entry.trial.id
    write_json(own / STANDING, trial_run._standing(entry) | {"ran": 5.0})
    write_json(own / ATTEMPT, {"key": "k", "number": 0, "program": "", "place": "s0"})
    (own / METRICS).write_text('{"step": 1}\n')
    os.utime(own / STANDING, (0, 1000))
    os.utime(own / METRICS, (0, 1040))
    monkeypatch.setattr(fanout, "ask", lambda *_: {(0, 0): state})
    monkeypatch.setattr(time, "time", lambda: 4600.0)

    over: list[bool] = []

    def attempt(*_: Any, **__: Any) -> None:
        over.extend(running.over for running in desk._running.values())
        raise Stopped("the sweep ends", again=True)

    monkeypatch.setattr(supervise, "one_attempt", attempt)
    monkeypatch.setattr(coordinator, "answers", lambda _: True)
    tune, desk = searched(cwd)
    again = run_next(tune, desk)
    assert over == [bool(state) and not state["running"]]
    kept = read_json(own / STANDING)
    assert kept
    assert (round(again.ran), round(kept["ran"])) == (round(seconds), round(seconds))


# --- killed while a trial goes on from another ----------------------------------------------------


class Killed(BaseException):
    """Nothing of a process that is killed runs any more."""


def exploited(tune: Tune, desk: Desk) -> Entry:
    """A trial that was told to go on from another, which has a checkpoint as well."""
    taken = desk.take(Spot())
    assert taken
    entry, stop = taken
    other = tune.make(Suggestion("other", {"workload.args.x": "2"}))
    desk.entries["other"] = other
    joined = SimpleNamespace(choice=tune.group.plan.first)
    place: Any = SimpleNamespace(title="s0", joined=lambda _: joined)
    shared = {"owner": "me", "interrupt": None, "provider": None, "setback": None}
    session: Any = SimpleNamespace(folder=SimpleNamespace(path=tune.sweep.folder), **shared)
    runner = trial_run.Runner(session, desk, tune.sweep.code, tune.sweep.remade)
    for trial in (entry.trial.id, "other"):
        (tune.sweep.folder / trial / "checkpoints").mkdir(parents=True)
        (tune.sweep.folder / trial / "checkpoints" / "of").write_text(trial)
    try:
        with runner._opened(entry, place, stop) as opened:
            runner._exploited(opened, entry, Exploit("other", {"workload.args.x": "9"}))
    finally:
        tune.sweep.__exit__(None, None, None)
    return entry


@pytest.mark.parametrize(
    ("killed_in", "takes"),
    [
        ("launcher.sweep.checkpoints.shutil.copytree", False),
        ("launcher.sweep.trial_run.InFile.write", False),
        ("launcher.sweep.trial_run.settle", True),
        ("pathlib.Path.rename", True),
        ("launcher.sweep.entries.Entry.go_back", True),
    ],
)
def test_a_kill_leaves_a_trial_as_it_was_or_wholly_as_the_other(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str, takes: bool
) -> None:
    rename = Path.rename

    def kill(*words: Any, **named: Any) -> None:
        if killed_in != "pathlib.Path.rename" or str(words[1]).endswith("checkpoints"):
            raise Killed
        rename(*words, **named)

    tune, desk = searched(cwd)
    with monkeypatch.context() as patched:
        patched.setattr(killed_in, kill)
        with pytest.raises(Killed):
            exploited(tune, desk)
    (first,) = (path for path in (cwd / "runs" / "s").glob("*/") if path.name != "other")

    def attempt(*_: Any, **__: Any) -> None:
        raise Stopped("the sweep ends", again=True)

    monkeypatch.setattr(supervise, "one_attempt", attempt)
    monkeypatch.setattr(coordinator, "answers", lambda _: True)
    entry = run_next(*searched(cwd))
    assert entry.trial.id == first.name
    assert (entry.suggested == {"workload.args.x": "9"}) == takes
    assert (first / "checkpoints" / "of").read_text() == ("other" if takes else first.name)
    assert not list(first.glob(".taken*"))


# --- batches of a sweeper -------------------------------------------------------------------------


def point(x: str) -> list[str]:
    return ["workload.script=train.py", "sweep.name=s", f"workload.args.x={x}"]


def ended_before(cwd: Path, x: str, code: int = 0) -> None:
    how = {"status": "failed" if code else "succeeded", "exit_code": code, "message": ""}
    result = {**how, "code": "old"}
    write_json(cwd / "runs" / "s" / identity.trial_id(point(x)) / "result.json", result)


def test_batches_are_one_sweep(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for x, code in (("1", 0), ("2", 7), ("3", 0)):
        ended_before(cwd, x, code)
    with Batches(()) as batches:
        found = [batches.run([point("1")]), batches.run([point("2"), point("1")])]
        found.append(batches.run([point("3")]))
    assert [ended.values for ended in found] == [[0.0], [None, 0.0], [0.0]]
    trials = read_json(cwd / "runs" / "s" / "trials.json")
    result = read_json(cwd / "runs" / "s" / "result.json")
    assert trials
    assert result
    told = [(row["number"], row["params"]) for row in trials["trials"]]
    assert told == [(n, {"workload.args.x": str(n + 1)}) for n in range(3)]
    assert (result["exit_code"], result["trials"]["succeeded"]) == (7, 2)
    shown = capsys.readouterr()
    assert shown.out.count("trial     status") == 1
    assert "other code than there is now has run in 1 trial," in shown.err


@pytest.mark.parametrize(
    ("record", "removed"), [({}, ["s"]), ({"stays": True}, []), ({"folder": "/elsewhere/s"}, [])]
)
def test_what_a_killed_launcher_has_left_goes_though_all_trials_have_ended(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, Any], removed: list[str]
) -> None:
    gone: list[str] = []
    monkeypatch.setattr(ending, "remove", lambda name, *_, **__: gone.append(name))
    own = {"stays": False, "folder": str(cwd / "runs" / "s")}
    registry.write_record("s", own | record)
    ended_before(cwd, "1")
    with Batches(()) as batches:
        batches.run([point("1")])
    assert gone == removed


def test_a_sweep_that_goes_on_elsewhere_is_not_told_to_have_ended(cwd: Path) -> None:
    ended_before(cwd, "1")
    with (
        registry.lock("run-s", ""),
        pytest.raises(ConfigError, match="s is going on in another"),
        Batches(()) as batches,
    ):
        batches.run([point("1")])
    assert not (cwd / "runs" / "s" / "result.json").exists()
    assert not (cwd / "runs" / "s" / "trials.json").exists()


def test_a_sweeper_that_asks_for_more_than_is_to_run_ends(cwd: Path) -> None:
    ended_before(cwd, "1", 5)
    with Batches(()) as batches:
        batches.run([point("1")])
        assert batches._sweep
        batches._sweep.over = True
        batches.run([point("2")])
        raise AssertionError("it went on")
    result = read_json(cwd / "runs" / "s" / "result.json")
    assert result
    assert (result["status"], result["exit_code"]) == ("failed", 5)


def test_a_batch_that_is_wrong_hides_no_other(cwd: Path) -> None:
    ended_before(cwd, "1")

    def sweep() -> None:
        with Batches(()) as batches:
            batches.run([point("1")])
            assert batches._sweep
            batches._sweep.begun = True  # as it is once it has had a cluster
            batches.run([[*point("2"), "retry.grace=x"]])

    with pytest.raises(ConfigError):
        sweep()
    result = read_json(cwd / "runs" / "s" / "result.json")
    assert result
    assert (result["status"], result["exit_code"]) == ("error", 2)


# --- what it may use ------------------------------------------------------------------------------


def test_a_budget_is_that_of_all_clusters(cwd: Path) -> None:
    now = 0.0
    settings = compose(["sweep.budget={time: 10h, chip_hours: 3}"], cwd=cwd).sweep
    spent = Spent(settings, lambda: now)
    spent.hold(8)  # the first cluster
    now = 900.0
    spent.hold(0)
    now = 7200.0
    assert not spent.reason()
    spent.hold(1)  # the second
    now = 7200.0 + 3599.0
    assert not spent.reason()
    now += 2.0
    assert "sweep.budget.chip_hours" in spent.reason()
    spent.hold(0)
    settings = replace(settings, budget_chip_hours=None)
    assert not Spent(settings, lambda: now).reason()
