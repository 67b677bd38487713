"""Many trials on one cluster, through the real command line, Ray, hosts and processes."""

from __future__ import annotations

import csv
import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

TRAIN = """
import json, os, sys, time
args = dict(word[2:].split("=", 1) for word in sys.argv[1:])
path = os.path.join(os.environ["LAUNCHER_CHECKPOINT_DIR"], "step")
os.makedirs(os.path.dirname(path), exist_ok=True)
start = int(open(path).read()) if os.path.exists(path) else 0

def tell(**values):
    with open(os.environ["LAUNCHER_METRICS"], "a") as file:
        file.write(json.dumps(values) + "\\n")

print("chips", os.environ.get("TPU_VISIBLE_CHIPS"), os.environ["JAX_NUM_CPU_DEVICES"], flush=True)
tell(restored_step=start)
for step in range(start + 1, int(args.get("steps", 2)) + 1):
    time.sleep(0.1)
    with open(f"{path}.{os.environ['LAUNCHER_PROCESS_ID']}", "w") as file:
        file.write(str(step))
    os.replace(file.name, path)
    tell(step=step, accuracy=-abs(float(args["lr"]) - 0.01) + step / 1e6)
sys.exit(int(args.get("code", 0)))
"""
CHIPS = "sweep.per_trial={chips: 2}"
RATES = ("1e-4", "1e-3", "1e-2", "1e-1")


@pytest.fixture
def words(place: Place) -> list[str]:
    (place.folder / "train.py").write_text(TRAIN)
    return ["-m", "cluster=v6e-4", "workload.script=train.py", "sweep.name=s"]


def rows(place: Place, name: str = "s") -> list[dict[str, Any]]:
    """What `trials.json` says; nothing while it is not there."""
    path = place.folder / "runs" / name / "trials.json"
    return list(json.loads(path.read_text())["trials"]) if path.exists() else []


def wait_for_trials(place: Place, count: int, status: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while Counter(row["status"] for row in rows(place))[status] < count:
        assert time.monotonic() < deadline, rows(place)
        time.sleep(0.02)


def wait_for_words(place: Place, timeout: float = 60) -> None:
    """Until a trial has said something."""
    deadline = time.monotonic() + timeout
    while not any(path.stat().st_size for path in place.folder.glob("runs/s/*/logs/*/*.log")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def started(place: Place, trial: str) -> int:
    """How often its processes were started."""
    return sum(event["kind"] == "started" for event in place.events(f"s/{trial}"))


def steps(place: Place, trial: str) -> list[int]:
    """Every step that was made, in its order."""
    text = (place.folder / "runs" / "s" / trial / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["step"] for line in lines if "step" in line]


def test_trials_share_one_node(place: Place, words: list[str]) -> None:
    words = [*words, CHIPS, "workload.args.steps=20"]  # longer than a place takes to be ready
    shown = place.run(*words, f"workload.args.lr={','.join(RATES)}")
    table = shown[shown.index("trial     status") :].splitlines()
    head, _rule, best = [line.split() for line in table[:3]]
    assert head == ["trial", "status", "place", "lr", "accuracy", "iterations", "time"]
    assert [*best[1:4], *best[5:8]] == ["succeeded", "s0", "h0", "1e-2", "2e-05", "20"]
    logs = (place.folder / "runs" / "s").glob("*/logs/attempt-0/s0-h0.log")
    assert {path.read_text() for path in logs} == {"chips 0,1 2\n", "chips 2,3 2\n"}
    assert len(place.emulator("ledger")["nodes"]) == 1
    place.assert_clean()
    added = f"workload.args.lr={','.join([*RATES[::-1], '5'])}"
    place.run(*words, added)
    assert [started(place, row["trial"]) for row in rows(place)] == [1] * 5
    read = list(csv.DictReader((place.folder / "runs/s/trials.csv").read_text().splitlines()))
    assert [row["workload.args.lr"] for row in read] == ["1e-2", "1e-3", "1e-4", "1e-1", "5"]
    assert "5 trials: 5 succeeded" in place.run("status", "s")
    assert "chips" in place.run("logs", "s", rows(place)[0]["trial"])
    place.assert_clean()


def test_a_killed_sweep_goes_on(place: Place, words: list[str]) -> None:
    words = [*words, CHIPS, f"workload.args.lr={','.join(RATES)}", "workload.args.steps=20"]
    process = place.start(*words)
    wait_for_trials(place, 2, "succeeded")
    wait_for_trials(place, 1, "running")
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {row["trial"] for row in rows(place) if row["status"] == "succeeded"}
    place.run(words[0], *reversed(words[1:]))  # what runs meanwhile is the same program
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert {row["iterations"] for row in rows(place)} == {20}
    for row in rows(place):
        assert steps(place, row["trial"]) == list(range(1, 21))  # none was made twice
    assert [started(place, trial) for trial in done] == [1] * len(done)
    assert len(place.emulator("ledger")["nodes"]) == 1
    place.assert_clean()


def test_what_ended_while_nobody_watched_has_ended(place: Place, words: list[str]) -> None:
    """And was the program that it was, whatever has been edited since."""
    words = [*words, "workload.args.lr=1e-2", "workload.args.steps=20"]
    process = place.start(*words)
    wait_for_trials(place, 1, "running")
    wait_for_words(place)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ends = [path.with_name("checkpoints") / "step" for path in place.folder.glob("runs/s/*/logs")]
    deadline = time.monotonic() + 60
    while [path.read_text() for path in ends if path.exists()] != ["20"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (place.folder / "train.py").write_text(TRAIN.replace("chips", "other"))
    place.run(*words)
    (row,) = rows(place)
    assert (row["status"], started(place, row["trial"])) == ("succeeded", 1)
    assert steps(place, row["trial"]) == list(range(1, 21))
    assert row["seconds"] > 2.0  # of which the launcher that was killed saw few
    place.assert_clean()


def test_a_lost_host_fails_no_trial(place: Place, words: list[str]) -> None:
    process = place.start(*words, CHIPS, "workload.args.lr=1e-2,1e-1,1", "workload.args.steps=20")
    wait_for_trials(place, 2, "running")
    wait_for_words(place)
    time.sleep(0.5)
    place.emulator("fault", "kill-host", "s-s0", "0")
    assert process.wait(120) == 0
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    for row in rows(place):
        made = steps(place, row["trial"])
        assert made[-1] == 20
        # The step that was under way may be made again, or its line be lost with the host.
        assert 19 <= len({*made}) <= len(made) <= 21
    assert len(place.emulator("ledger")["nodes"]) == 2
    place.assert_clean()


def test_a_failed_trial_stops_no_other(place: Place, words: list[str]) -> None:
    words = [*words, CHIPS, "workload.args.lr=1", "workload.args.code=7,0"]
    shown = place.run(*words, expect=5)
    assert "exit code 7" in shown
    assert Counter(row["status"] for row in rows(place)) == {"failed": 1, "succeeded": 1}
    assert "1 of 2 trials failed" in place.run(*words, expect=5)  # told again, not run again
    assert [started(place, row["trial"]) for row in rows(place)] == [1, 1]
    place.run(*words, "sweep.retry_failed=true", expect=5)
    assert sorted(started(place, row["trial"]) for row in rows(place)) == [1, 2]
    place.assert_clean()


def test_ctrl_c_leaves_nothing_and_the_rest_for_later(place: Place, words: list[str]) -> None:
    words = [*words, "workload.args.lr=1,2", "workload.args.steps=30"]
    process = place.start(*words)
    wait_for_trials(place, 1, "running")
    wait_for_words(place)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    place.assert_clean()
    assert {row["status"] for row in rows(place)} == {"waiting"}
    assert place.result("s")["status"] == "cancelled"


def test_a_search_is_followed_and_cancelled_by_its_name(place: Place, words: list[str]) -> None:
    more = ["hydra/sweeper=tune", "sweep.samples=2", "workload.args.steps=60"]
    process = place.start(*words, *more, "workload.args.lr=interval(1e-3,1)")
    wait_for_trials(place, 1, "running")
    wait_for_words(place)
    assert "s: running, 1 trial: 1 running, slices: s-s0" in place.run("status", "s")
    assert "chips" in place.run("logs", "s")
    place.run("cancel", "s")
    assert process.wait(60) == 130
    place.assert_clean()
    shown = place.screen(0).read_text()
    assert re.search(r"again .* waits to go on: stopped by SIGTERM", shown)
    assert re.search(r"s  cancelled +1 trial: 1 waiting", shown)
    assert "s: cancelled, 1 trial: 1 waiting" in place.run("status", "s")
    assert place.result("s")["exit_code"] == 130
    assert "nothing is up" in place.run("down", "s")


@pytest.mark.stress
def test_a_lost_slice_leaves_the_others_at_work(place: Place, words: list[str]) -> None:
    more = ["cluster=v6e-1", "mode.slices=2", "sweep.per_trial={slices: 1}"]
    rates = f"workload.args.lr={','.join(RATES)}"
    process = place.start(*words, *more, rates, "workload.args.steps=30")
    wait_for_trials(place, 2, "running")
    time.sleep(0.5)
    place.emulator("fault", "preempt", "s-s1")
    assert process.wait(120) == 0
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert sorted(started(place, row["trial"]) for row in rows(place)) == [1, 1, 1, 2]
    assert len(place.emulator("ledger")["nodes"]) == 3
    place.assert_clean()


@pytest.mark.stress
def test_a_slice_that_cannot_be_had_again_is_done_without(place: Place, words: list[str]) -> None:
    more = ["cluster=v6e-1", "mode.slices=2", "sweep.per_trial={slices: 1}"]
    more += ["cluster.queue_timeout=2s", "workload.args.steps=30"]
    process = place.start(*words, *more, f"workload.args.lr={','.join(RATES)}")
    wait_for_trials(place, 2, "running")
    wait_for_words(place)
    place.emulator("fault", "stockout", "s-s1", "--count", "99")
    place.emulator("fault", "preempt", "s-s1")
    assert place.wait_for("s", "without")["slices"] == [1]
    assert process.wait(120) == 0
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert Counter(row["place"] for row in rows(place))["s0"] >= 3
    made = Counter(node["name"].rpartition("/")[2] for node in place.emulator("ledger")["nodes"])
    assert made["s-s0"] == 1  # it was not given up for the other
    place.assert_clean()


@pytest.mark.stress
def test_trials_are_taken_up_though_the_slice_of_another_cannot_be_had_again(
    place: Place, words: list[str]
) -> None:
    """It went while there was no launcher."""
    more = ["cluster=v6e-1", "mode.slices=2", "sweep.per_trial={slices: 1}"]
    more += ["cluster.queue_timeout=2s", "workload.args.steps=90"]
    words = [*words, *more, "workload.args.lr=1e-2,1e-1"]
    process = place.start(*words)
    wait_for_trials(place, 2, "running")
    wait_for_words(place)
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.emulator("fault", "stockout", "s-s1", "--count", "99")
    place.emulator("fault", "preempt", "s-s1")
    place.run(*words)
    assert place.wait_for("s", "without")["slices"] == [1]
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert {row["place"] for row in rows(place)} == {"s0"}
    assert sorted(started(place, row["trial"]) for row in rows(place)) == [1, 2]
    made = Counter(node["name"].rpartition("/")[2] for node in place.emulator("ledger")["nodes"])
    assert made["s-s0"] == 1
    place.assert_clean()


@pytest.mark.stress
def test_slices_that_are_of_no_use_apart_are_made_anew_elsewhere(
    place: Place, words: list[str]
) -> None:
    more = ["cluster=v6e-1", "mode.slices=2", "cluster.queue_timeout=2s"]
    more += ["cluster.zone=[us-east5-b,us-east1-d]", "workload.args.steps=30"]
    process = place.start(*words, *more, "workload.args.lr=1")
    wait_for_words(place)
    place.emulator("fault", "stockout", "s-s1", "--count", "2")
    place.emulator("fault", "preempt", "s-s1")
    assert process.wait(120) == 0
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert [event["kind"] for event in place.events("s")].count("repair") == 2
    place.assert_clean()


@pytest.mark.stress
def test_a_lost_head_fails_no_trial(place: Place, words: list[str]) -> None:
    process = place.start(*words, CHIPS, "workload.args.lr=1e-2,1e-1,1", "workload.args.steps=30")
    wait_for_trials(place, 2, "running")
    wait_for_words(place)
    (head,) = (place.home / "heads").glob("run-s.json")
    for found in place.processes():
        if "gcs_server" in found.name():
            found.kill()
    assert head.exists()
    assert process.wait(120) == 0
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    assert len(place.emulator("ledger")["nodes"]) == 1
    place.assert_clean()


@pytest.mark.stress
def test_batches_are_one_sweep(place: Place, words: list[str]) -> None:
    shown = place.run(*words, "workload.args.lr=1,2", "hydra.sweeper.max_batch_size=1")
    assert shown.count("trial     status") == 1
    assert [row["params"] for row in rows(place)] == [
        {"workload.args.lr": "1"},
        {"workload.args.lr": "2"},
    ]
    assert place.result("s")["trials"]["succeeded"] == 2
    assert [path.name for path in (place.folder / "runs").iterdir()] == ["s"]
    assert len(place.emulator("ledger")["nodes"]) == 1
    place.assert_clean()


@pytest.mark.stress
def test_one_cluster_at_a_time(place: Place, words: list[str]) -> None:
    place.run(*words, "cluster=v6e-1,v4-8", "workload.args.lr=1,2")
    nodes = place.emulator("ledger")["nodes"]
    assert len(nodes) == 2
    assert len(rows(place)) == 4
    place.assert_clean()


@pytest.mark.stress
def test_fail_fast_makes_no_other_cluster(place: Place, words: list[str]) -> None:
    more = ["cluster=v6e-1,v4-8", "sweep.fail_fast=true", "workload.args.lr=1"]
    place.run(*words, *more, "workload.args.code=7", expect=5)
    assert len(place.emulator("ledger")["nodes"]) == 1
    assert sorted(row["status"] for row in rows(place)) == ["failed", "waiting"]
    place.assert_clean()


@pytest.mark.stress
def test_every_host_is_a_place(place: Place, words: list[str]) -> None:
    place.run(*words, "cluster=v6e-16", "sweep.per_trial={hosts: 1}", "workload.args.lr=1,2,3,4")
    assert {row["place"] for row in rows(place)} == {f"s0 h{host}" for host in range(4)}
    place.assert_clean()


@pytest.mark.stress
def test_some_hosts_of_a_slice_are_a_place(place: Place, words: list[str]) -> None:
    (place.folder / "count.py").write_text(
        "import jax; jax.distributed.initialize()\n"
        "print(jax.process_count(), jax.device_count(), jax.local_device_count())"
    )
    more = ["cluster=v6e-16", "sweep.per_trial={hosts: 2}", "workload.script=count.py"]
    place.run(*words, *more, "workload.args.lr=1,2,3")
    assert {row["place"] for row in rows(place)} == {"s0 h0,2", "s0 h1,3"}
    logs = [path.read_text() for path in Path(place.folder, "runs/s").glob("*/logs/*/*.log")]
    assert logs == ["2 8 4\n"] * 6
    place.assert_clean()


ODD = ("a b", "c,d", "e/f", "", "ü=#1", "it's", 'q"q', "1e-5", "null")


@pytest.mark.stress
def test_odd_values_arrive(place: Place, words: list[str]) -> None:
    (place.folder / "show.py").write_text("import sys; print(sys.argv[1:])")
    quoted = (text.replace("'", "\\'") for text in ODD)
    values = ",".join(f"'{text}'" for text in quoted)
    place.run(*words, "workload.script=show.py", f"workload.args.x={values},null")
    found = {path.read_text() for path in Path(place.folder, "runs/s").glob("*/logs/*/s0-h0.log")}
    assert found == {*(f"{[f'--x={text}']}\n" for text in ODD), "[]\n"}
    place.assert_clean()


@pytest.mark.stress
def test_a_sweep_in_an_experiment_file(place: Place, words: list[str]) -> None:
    folder = place.folder / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        "      workload.args.lr: 1e-2,1e-1\nworkload:\n  script: train.py\n"
        "cluster:\n  accelerator_type: v6e-1\nsweep:\n  name: s\n"
    )
    place.run("experiment=mine")
    assert len(rows(place)) == 2
    basic = place.run("experiment=mine", "hydra/launcher=basic")
    assert basic.count("nothing is left of") == 2
    place.assert_clean()


@pytest.mark.stress
def test_a_search_goes_on_after_a_kill(place: Place, words: list[str]) -> None:
    words = ["-m", "hydra/sweeper=tune", *words[1:], CHIPS, "sweep.metric=accuracy"]
    words += ["sweep.samples=8", "sweep.scheduler={kind: asha}", "workload.args.steps=9"]
    words += ["workload.args.lr=tag(log,interval(1e-4,1))"]
    process = place.start(*words)
    wait_for_trials(place, 1, "stopped")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {row["trial"] for row in rows(place) if row["status"] in ("succeeded", "stopped")}
    place.run(*words)
    assert len(rows(place)) == 8
    assert {row["status"] for row in rows(place)} <= {"succeeded", "stopped"}
    assert [started(place, trial) for trial in before] == [1] * len(before)
    assert sum(row["iterations"] for row in rows(place)) < 8 * 9
    place.assert_clean()


CLIMB = """
import json, os, sys, time
args = dict(word[2:].split("=", 1) for word in sys.argv[1:])
path = os.path.join(os.environ["LAUNCHER_CHECKPOINT_DIR"], "state")
os.makedirs(os.path.dirname(path), exist_ok=True)
step, height = json.load(open(path)) if os.path.exists(path) else (0, 0.0)
while step < 12:
    time.sleep(0.2)
    step, height = step + 1, height + float(args["pace"])
    with open(path + ".part", "w") as file:
        json.dump([step, height], file)
    os.replace(path + ".part", path)
    with open(os.environ["LAUNCHER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "score": height}) + "\\n")
"""


@pytest.mark.stress
def test_a_population_learns_from_its_best(place: Place, words: list[str]) -> None:
    (place.folder / "climb.py").write_text(CLIMB)
    more = ["hydra/sweeper=tune", "workload.script=climb.py", "sweep.per_trial={chips: 1}"]
    more += ["sweep.metric=score", "sweep.samples=4", "sweep.scheduler={kind: pbt, interval: 3}"]
    place.run(*words, *more, "workload.args.pace=tag(log,interval(1e-3,1))")
    found = rows(place)
    assert {row["status"] for row in found} == {"succeeded"}
    copies = [row for row in found if started(place, row["trial"]) > 1]
    assert copies
    for row in copies:  # it is where its source was, and what it has reached of itself is less
        pace = float(row["params"]["workload.args.pace"])
        assert row["step"] == 12
        assert row["metrics"]["score"] > 0
        events = place.events(f"s/{row['trial']}")
        assert any("goes on from" in str(event.get("text")) for event in events)
        assert pace > 0
    place.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("limit", ["time: 6s", "chip_hours: 0.007"])
def test_a_budget_ends_a_sweep_in_good_order(place: Place, words: list[str], limit: str) -> None:
    words = [*words, CHIPS, "workload.args.lr=1,2,3", "workload.args.steps=90"]
    shown = place.run(*words, f"sweep.budget={{{limit}}}")
    assert "(sweep.budget." in shown
    states = Counter(row["status"] for row in rows(place))
    assert states["waiting"] >= 2
    assert states["succeeded"] == 0
    place.assert_clean()
    place.run(*words)  # which has no limit
    assert {row["status"] for row in rows(place)} == {"succeeded"}
    for row in rows(place):
        assert len({*steps(place, row["trial"])}) == 90
    place.assert_clean()
