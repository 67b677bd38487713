"""One program over several slices: together or not at all, lost one by one, fewer and more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.compose import WORKLOADS
from launcher.hosts.tpu_env import SLICES
from tests.e2e.conftest import Place, opened
from tests.e2e.test_provisioning import rules, states, wait_until
from tests.e2e.test_survival import TRAIN, kill_supervisor, wait_for_step

pytestmark = pytest.mark.e2e

TWO = ("cluster=v4-8", "mode=multislice")
QUICK = ("retry.backoff=100ms", "retry.grace=20s")
ELASTIC = (*TWO, "mode.slices=[1,2]", "mode.probe_interval=1s", "mode.resize_interval=1s", *QUICK)
LAST_SAVE = -1
TRAINING = ("workload=lm", "workload.args.eval_interval=0", "workload.args.save_interval=20")
SHOW = f"""
import os, runpy, sys
for name in sorted(os.environ):
    if name.startswith(("MEGASCALE_", "TPU_")):
        print(f"has {{name}}={{os.environ[name]}}", flush=True)
sys.path.insert(0, {str(WORKLOADS)!r})
runpy.run_path({str(WORKLOADS / "basic_jax.py")!r}, run_name="__main__")
"""


def log(place: Place, name: str, attempt: int, member: str) -> str:
    path = place.folder / "runs" / name / "logs" / f"attempt-{attempt}" / f"{member}.log"
    return path.read_text()


def seen(place: Place, name: str, member: str) -> dict[str, str]:
    """The variables that a process of SHOW has printed."""
    lines = log(place, name, 0, member).splitlines()
    return dict(line[4:].split("=", 1) for line in lines if line.startswith("has "))


def asked(place: Place, *, ready: bool = False) -> list[str]:
    """The ids of all nodes that ever were, or were READY, each as often as it was made."""
    rows = place.emulator("ledger")["nodes"]
    return sorted(r["name"].rpartition("/")[2] for r in rows if r["ready"] or not ready)


def preempt(place: Place, node: str) -> None:
    """The launcher may have replaced the node before the command has seen it PREEMPTED."""
    with contextlib.suppress(subprocess.CalledProcessError):
        place.emulator("fault", "preempt", node)


def metrics(place: Place, name: str) -> list[dict[str, Any]]:
    path = place.folder / "runs" / name / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_metric(place: Place, name: str, true: Callable[[dict[str, Any]], bool]) -> None:
    wait_until(lambda: any(map(true, metrics(place, name))), 120)


def test_stale_variables_of_every_source_reach_no_process(place: Place) -> None:
    """Of the launching shell (`Place.env`), of the metadata of each host, and of the image."""
    (place.folder / "show.py").write_text(SHOW)
    image = "export MEGASCALE_NUM_SLICES=7 MEGASCALE_PORT=1 TPU_HOST_BOUNDS=9 TPU_WORKER_ID=5"
    words = ("workload.script=show.py", f"cluster.startup=['{image}']", "name=m")
    shown = place.run(*TWO, *words, rules({"fault": "stale-multislice", "slices": 3}))
    for slice_ in range(2):
        line = f"device_count 8, 4 local cpu devices, sum over all chips 36, slice {slice_} of 2"
        assert f"[s{slice_} h0] process {slice_} of 2: {line} (m-s{slice_})" in shown
    first, second = seen(place, "m", "s0-h0"), seen(place, "m", "s1-h0")
    names = ("COORDINATOR_ADDRESS", "NUM_SLICES", "PORT", "SLICE_ID")
    assert sorted(first) == [*(f"MEGASCALE_{n}" for n in names), *TPU_OWN]
    assert [v["MEGASCALE_SLICE_ID"] for v in (first, second)] == ["0", "1"]
    assert [v["MEGASCALE_NUM_SLICES"] for v in (first, second)] == ["2", "2"]
    assert [v["TPU_WORKER_ID"] for v in (first, second)] == ["0", "0"]
    coordinator = first["MEGASCALE_COORDINATOR_ADDRESS"]
    assert coordinator == f"{first['TPU_WORKER_HOSTNAMES']}:{first['MEGASCALE_PORT']}"
    assert second["MEGASCALE_COORDINATOR_ADDRESS"] == coordinator
    assert second["TPU_WORKER_HOSTNAMES"] != first["TPU_WORKER_HOSTNAMES"]
    place.assert_clean()


TPU_OWN = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")


def test_queued_slices_that_contradict_the_launcher_run_nothing(place: Place) -> None:
    given = rules({"fault": "stale-multislice", "node": "q-s-1", "slices": 3})
    words = ("cluster.capacity=queued-spot", "workload.command=[echo,ran]", "name=q")
    shown = place.run(*TWO, *words, given, expect=4)
    assert "s1 h0 (q-s-1): its metadata says MEGASCALE_NUM_SLICES=3, the launcher 2" in shown
    assert "s1 h0 (q-s-1): its metadata says MEGASCALE_SLICE_ID=2, the launcher 1" in shown
    assert "] ran" not in shown
    place.assert_clean()


def test_nodes_that_contradict_the_launcher_run_nothing(place: Place) -> None:
    """Each host is asked of its slice, its place in it, and the number of slices."""
    wrong = {"fault": "wrong-metadata"}
    given = rules(
        {**wrong, "node": "n-s0", "worker": 1, "key": SLICES, "value": "LAUNCHER_SLICE: 1"},
        {**wrong, "node": "n-s1", "worker": 0, "key": "NODE_ID", "value": "n-s0"},
        {**wrong, "node": "n-s1", "worker": 1, "key": "WORKER_ID", "value": "0"},
    )
    words = ("cluster=v4-16", "mode=multislice", "workload.command=[echo,ran]", "name=n")
    shown = place.run(*words, given, expect=4)
    assert [line.strip() for line in shown.splitlines() if "its metadata says" in line] == [
        "s0 h1 (n-s0): its metadata says LAUNCHER_SLICE=1, the launcher 0",
        "s1 h0 (n-s1): its metadata says NODE_ID=n-s0, the launcher n-s1",
        "s1 h1 (n-s1): its metadata says WORKER_ID=0, the launcher 1",
    ]
    assert "] ran" not in shown
    place.assert_clean()


def test_slices_that_say_what_is_true_run(place: Place) -> None:
    words = ("cluster.capacity=queued-spot", "mode.slices=4", "workload=basic", "name=four")
    shown = place.run(*TWO, *words)
    assert "slice of every host: [0, 1, 2, 3]" in shown
    assert "process 3 of 4: device_count 16" in shown
    place.assert_clean()


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([{"fault": "stockout"}], ("cluster.queue_timeout=2s",)),
        pytest.param(
            [{"fault": "slow-create", "seconds": "90s"}, {"fault": "never-boots"}],
            ("cluster.queue_timeout=2s", "cluster.provision_timeout=3s"),
            marks=pytest.mark.stress,
        ),
    ],
    ids=["refused", "late"],
)
def test_a_part_of_the_slices_is_given_back_in_time(
    place: Place, faults: list[dict[str, Any]], words: tuple[str, ...]
) -> None:
    given = rules(*({**fault, "node": "part-s1"} for fault in faults))
    place.run(*TWO, *words, given, "workload=basic", "name=part", expect=3)
    rows = place.emulator("ledger")["nodes"]
    assert any(row["name"].endswith("part-s0") for row in rows)
    assert states(place) == {}
    place.assert_clean()


@pytest.mark.stress
def test_what_is_held_is_used_when_no_more_come(place: Place) -> None:
    given = rules({"fault": "stockout", "node": "less-s1"})
    shown = place.run(*ELASTIC, "mode.probe_interval=1h", given, "workload=basic", "name=less")
    assert "process 0 of 1: device_count 4" in shown
    assert place.result("less")["status"] == "succeeded"
    place.assert_clean()


def test_fewer_slices_after_a_loss_and_more_when_capacity_returns(place: Place) -> None:
    steps = "workload.args.steps=100000"
    process = place.start(*ELASTIC, *TRAINING, steps, "name=e")
    wait_for_metric(place, "e", lambda row: row.get("step") == 30)
    place.emulator("fault", "stockout", "e-s0", "--count", "3")  # one renewal, two probes
    preempt(place, "e-s0")
    wait_for_metric(place, "e", lambda row: row["attempt"] == 1 and "step" in row)
    wait_for_metric(place, "e", lambda row: row["attempt"] == 2 and "step" in row)
    assert asked(place, ready=True) == ["e-s0", "e-s0", "e-s1"]
    process.terminate()
    assert process.wait(60) == 130
    assert sizes(place, "e") == [(2, 1), (1, 2)]
    assert "slice of" not in log(place, "e", 1, "s0-h0")
    for attempt, processes in enumerate((2, 1, 2)):
        assert f"process 0 of {processes}: text" in log(place, "e", attempt, "s0-h0")
    require_steps_go_on(place, "e", lost=[LAST_SAVE, 0])
    verdict = json.loads((place.folder / "runs/e/verdicts/attempt-1.json").read_text())
    assert (verdict["outcome"], verdict["budget"]) == ("resized", "none")
    result = place.result("e")
    assert (result["preemptions"], result["failures"]) == (1, 0)
    place.assert_clean()


@pytest.mark.stress
def test_queued_slices_of_an_elastic_run_are_lost_one_by_one(train: Place) -> None:
    queued = ("cluster.capacity=queued-spot", "cluster.queue_timeout=8s", "name=q")
    words = ("workload.script=train.py", "workload.args.steps=1000")
    process = train.start(*ELASTIC, *queued, *words)
    wait_for_step(train, "q", 3)
    train.emulator("fault", "stockout", "q-s1", "--lasts", "20s")
    preempt(train, "q-s1")
    wait_until(lambda: len(sizes(train, "q")) == 2, 120)
    assert sizes(train, "q") == [(2, 1), (1, 2)]
    assert asked(train).count("q-s0") == 1
    process.terminate()
    assert process.wait(60) == 130
    train.assert_clean()


def sizes(place: Place, name: str) -> list[tuple[int, int]]:
    """Every change of the number of slices."""
    return [(e["before"], e["slices"]) for e in place.events(name) if e["kind"] == "resized"]


def require_steps_go_on(place: Place, name: str, lost: list[int]) -> None:
    """Each attempt goes on where its predecessor was, but for so many steps at most; after a loss
    from the last step that was saved: the next save may have been under way.
    """
    rows = metrics(place, name)
    for attempt, most in enumerate(lost, start=1):
        last = max(r["step"] for r in rows if r["attempt"] < attempt and "step" in r)
        if most == LAST_SAVE:
            saved = re.findall(r"saved step (\d+)", log(place, name, attempt - 1, "s0-h0"))
            last, most = max(map(int, saved)), 0
        begun = [
            r["restored_step"] for r in rows if r["attempt"] == attempt and "restored_step" in r
        ]
        assert begun[0] >= last - most, (attempt, begun, last)


@pytest.fixture
def train(place: Place) -> Place:
    (place.folder / "train.py").write_text(TRAIN)
    return place


def creates(place: Place, node: str) -> int:
    """How often it was created, in vain or not."""
    return sum(row["name"].endswith(f"/{node}") for row in place.emulator("ledger")["nodes"])


@pytest.mark.parametrize("moment", ["creates", pytest.param("boots", marks=pytest.mark.stress)])
def test_a_launcher_that_is_killed_while_it_probes_leaves_nothing(
    train: Place, moment: str
) -> None:
    words = (*ELASTIC, "workload.script=train.py", "workload.args.steps=300", "name=k")
    slow = {"fault": "slow-create" if moment == "creates" else "slow-boot", "seconds": "90s"}
    given = rules({"fault": "stockout", "node": "k-s1", "count": 1}, {**slow, "node": "k-s1"})
    process = train.start(*words, given)
    state = "CREATING" if moment == "creates" else "READY"
    wait_until(lambda: states(train).get("k-s1") == state and creates(train, "k-s1") == 2)
    kill_supervisor(train, process)
    assert "k-s1" in train.run("gc")
    shown = train.run(*words)
    assert "went on by itself" in shown
    assert train.result("k")["status"] == "succeeded"
    train.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_an_end_of_the_launcher_while_it_grows_leaves_nothing(train: Place, how: str) -> None:
    words = (*ELASTIC, "workload.script=train.py", "workload.args.steps=200", "name=g")
    process = train.start(*words, rules({"fault": "stockout", "node": "g-s1", "count": 1}))
    wait_until(lambda: (train.folder / "runs/g/verdicts/attempt-0.json").exists(), 100)
    assert train.verdict("g", 0)["outcome"] == "resized"
    if how == "killed":
        kill_supervisor(train, process)
        train.run(*words)
        assert train.result("g")["status"] == "succeeded"
    else:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    train.assert_clean()


@pytest.mark.parametrize("state", ["PREEMPTED", pytest.param("CREATING", marks=pytest.mark.stress)])
def test_a_launcher_that_is_killed_costs_no_healthy_slice(train: Place, state: str) -> None:
    """The other one is lost, or is just being replaced, when the same command comes."""
    words = (*TWO, *QUICK, "workload.script=train.py", "workload.args.steps=100", "name=k")
    process = train.start(*words)
    wait_for_step(train, "k", 3)
    if state == "PREEMPTED":
        kill_supervisor(train, process)
        train.emulator("fault", "preempt", "k-s1")
    else:
        train.emulator("fault", "slow-create", "k-s1", "--seconds", "90s", "--count", "1")
        preempt(train, "k-s1")
        wait_until(lambda: states(train).get("k-s1") == state)
        kill_supervisor(train, process)
    shown = train.run(*words)
    assert "1 host up already" in shown
    assert asked(train).count("k-s0") == 1
    assert train.result("k")["status"] == "succeeded"
    train.assert_clean()


def test_the_death_of_the_ray_head_is_survived_while_a_probe_waits_for_hosts(train: Place) -> None:
    words = (*ELASTIC, "workload.script=train.py", "workload.args.steps=150", "name=h")
    given = rules(
        {"fault": "stockout", "node": "h-s1", "count": 1},
        {"fault": "slow-boot", "seconds": "90s", "node": "h-s1", "count": 1},
    )
    process = train.start(*words, given)
    wait_until(lambda: states(train).get("h-s1") == "READY")
    made = asked(train).count("h-s0")
    train.kill_head()
    assert process.wait(200) == 0
    result = train.result("h")
    assert (result["preemptions"], result["failures"], result["final_step"]) == (1, 0, 150)
    assert asked(train).count("h-s0") == made
    train.assert_clean()


@pytest.mark.stress
def test_a_probe_that_nobody_needs_any_more_is_removed(train: Place) -> None:
    words = (*ELASTIC, "workload.script=train.py", "workload.args.steps=40", "name=p")
    given = rules(
        {"fault": "stockout", "node": "p-s1", "count": 1},
        {"fault": "slow-create", "seconds": "90s", "node": "p-s1"},
    )
    train.run(*words, given)
    assert asked(train).count("p-s1") == 2  # with p-s0 at first, and by the probe
    train.assert_clean()


def test_runs_share_slices_that_are_up_and_never_one(train: Place) -> None:
    train.run("up", *TWO, "name=both")
    head = json.loads((train.home / "heads" / "shared.json").read_text())
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(train.home / "heads" / "shared.token")
    address = f"cluster.coordinator={head['address']}:{head['ports'][-1]}"
    words = ("cluster=v4-8", address, "workload.script=train.py", "mode.slices=1")
    try:
        runs = [train.start(*words, "workload.args.steps=200", f"name=r{i}") for i in range(2)]
        for index in range(2):
            wait_for_step(train, f"r{index}", 1)
        late = ("workload.args.steps=3", "cluster.queue_timeout=1s", "name=r2")
        shown = train.run(*words, *late, expect=4)
        assert "1 x v4-8: none is free; the cluster has:" in shown
        assert shown.count("another run of ours holds it") == 2
        assert [process.wait(90) for process in runs] == [0, 0]
    finally:
        del os.environ["RAY_AUTH_TOKEN_PATH"]
    held = [
        e["text"] for i in range(2) for e in train.events(f"r{i}") if "holds" in e.get("text", "")
    ]
    assert sorted(held) == ["holds both-s0", "holds both-s1"]
    train.run("down", "both")
    train.assert_clean()


# --- every moment at which slices can go, against a run that was left alone ----------------------


LOSSES = {
    "1": ["x-s1"],
    "0": ["x-s0"],
    "both": ["x-s0", "x-s1"],
}


def curve(place: Place, name: str) -> dict[int, str]:
    """The loss of each step; what was made twice must be equal, bit for bit."""
    found: dict[int, str] = {}
    for row in metrics(place, name):
        if "loss" in row:
            loss = float(row["loss"]).hex()
            assert found.setdefault(row["step"], loss) == loss, row
    return found


def test_a_slice_that_is_lost_comes_back_alone(place: Place) -> None:
    """Its metadata speaks of another job, as that of its predecessor did."""
    stale = rules({"fault": "stale-multislice"})
    process = place.start(*TWO, *QUICK, *TRAINING, "workload.args.steps=60", stale, "name=x")
    wait_for_metric(place, "x", lambda row: row.get("step") == 25)
    preempt(place, "x-s1")
    assert process.wait(120) == 0
    assert asked(place) == ["x-s0", "x-s1", "x-s1"]
    require_steps_go_on(place, "x", lost=[LAST_SAVE])
    assert sorted(curve(place, "x")) == list(range(1, 61))
    assert place.result("x")["preemptions"] == 1
    place.assert_clean()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The losses of a run that nothing befell."""
    with opened(tmp_path_factory.mktemp("place")) as place:
        place.run(*TWO, *QUICK, *TRAINING, "workload.args.steps=60", "name=alone", timeout=400)
        return curve(place, "alone")


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("when", ["running", "creating", "creating again"])
def test_whatever_is_lost_the_losses_are_the_same(
    place: Place, alone: dict[int, str], lost: str, when: str
) -> None:
    slow = rules({"fault": "slow-create", "seconds": "6s"})
    process = place.start(*TWO, *QUICK, *TRAINING, "workload.args.steps=60", slow, "name=x")
    expected = ["x-s0", "x-s1"]
    if when == "creating":
        wait_until(lambda: set(states(place)) >= set(LOSSES[lost]))
    else:
        wait_for_metric(place, "x", lambda row: row.get("step") == 25)
    if when == "creating again":
        preempt(place, "x-s1")
        expected += ["x-s1"]
        wait_until(lambda: states(place).get("x-s1") == "CREATING", 60)
        time.sleep(1)
    for node in LOSSES[lost]:
        preempt(place, node)
    assert process.wait(400) == 0
    assert asked(place) == sorted([*expected, *LOSSES[lost]])
    assert curve(place, "x") == alone
    place.assert_clean()


@pytest.mark.stress
def test_the_size_of_a_real_multislice_job(place: Place) -> None:
    """Two slices of four hosts: Ray sees what it sees on TPUs."""
    shown = place.run("up", "cluster=v6e-16", "mode=multislice", "name=big", timeout=240)
    assert "  TPU: 32\n  TPU-v6e-16-head: 2\n  big-s0: 4\n  big-s1: 4\n" in shown
    shown = place.run(
        "cluster=v6e-16", "mode=multislice", "workload=basic", "name=big", timeout=240
    )
    for rank in range(8):
        slice_, host = divmod(rank, 4)
        assert f"[s{slice_} h{host}] process {rank} of 8: device_count 32, 4 local" in shown
        assert f"slice {slice_} of 2 (big-s{slice_})" in shown
    place.run("down", "big")
    place.assert_clean()
