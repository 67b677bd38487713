"""Coordinators other than this machine: the launcher may go away, and the run goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.providers.states import GONE
from launcher.remote import vm, vm_instances, vm_making
from launcher.remote.launch import STEADY_SECONDS
from launcher.remote.standing import recorded_provider
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

ON_VM = ("cluster=v6e-4", "mode=jax", "cluster.coordinator=vm")
PATIENT = """\
import os, pathlib, sys, time
gate = pathlib.Path(sys.argv[1].partition("=")[2])
with open(os.environ["LAUNCHER_METRICS"], "a") as metrics:
    metrics.write('{"step": 7}\\n')
print("has begun", len(os.environ.get("TOKEN", "")), flush=True)
while not gate.exists():
    time.sleep(0.05)
sys.stdout.buffer.write(b"any byte \\xff\\n")
sys.stdout.flush()
print("may end", flush=True)
"""


def patient(place: Place, name: str) -> tuple[tuple[str, ...], Path]:
    """The words for a program that runs until a file is there, and the file."""
    (place.folder / "patient.py").write_text(PATIENT)
    gate = place.temp / f"gate-{name}"
    return (f"name={name}", "workload.script=patient.py", f"workload.args.gate={gate}"), gate


def status(place: Place, name: str) -> dict[str, Any]:
    number = len(place.started)
    assert place.start("status", name, "--json").wait(60) == 0
    return dict(json.loads(place.screen(number).read_text()))


def ledger(place: Place) -> list[str]:
    return list(place.emulator("ledger")["left"])


def test_a_run_outlives_its_launcher_and_its_vm_serves_the_next_run(place: Place) -> None:
    words, gate = patient(place, "one")
    secret = "s3cr3t-of-the-test"
    os.environ["TEST_TOKEN"] = secret
    try:
        launcher = place.start(*ON_VM, *words, "workload.env.TOKEN=${oc.env:TEST_TOKEN}")
    finally:
        del os.environ["TEST_TOKEN"]
    place.wait_for_output("one", "has begun")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()

    found = status(place, "one")
    assert (found["phase"], found["last_step"], len(found["nodes"])) == ("running", 7, 1)
    follower = place.start("logs", "-f", "one")
    gate.touch()
    assert follower.wait(60) == 0
    shown = place.screen(len(place.started) - 1).read_text()
    assert f"[s0 h0] has begun {len(secret)}\n[s0 h0] any byte \ufffd\n[s0 h0] may end\n" in shown
    assert status(place, "one")["phase"] == "succeeded"

    result = place.result("one")
    assert (result["status"], result["exit_code"], result["final_step"]) == ("succeeded", 0, 7)
    (log,) = (place.folder / "runs" / "one" / "logs").glob("*/*")
    assert log.read_bytes() == f"has begun {len(secret)}\n".encode() + b"any byte \xff\nmay end\n"
    files = [path for root in (place.folder, place.home) for path in root.rglob("*")]
    assert [p for p in files if p.is_file() and secret.encode() in p.read_bytes()] == []

    assert len(ledger(place)) == 1, "the VM stays for the next run"
    (record,) = (place.home / "coordinators").glob("*.json")
    began = record.read_text()
    shown = place.run(*ON_VM, "workload=basic", "name=two")
    assert "sum over all chips 10" in shown
    assert "making" not in shown
    assert json.loads(record.read_text())["address"] == json.loads(began)["address"]

    place.run("down", "two")
    assert ledger(place) == []
    place.assert_clean()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_cancel_from_elsewhere_leaves_no_slice(place: Place, stop: signal.Signals) -> None:
    """After a launcher was stopped that had followed for a while."""
    words, _ = patient(place, "long")
    attached = place.start(*ON_VM, *words)
    place.wait_for_output("long", "has begun")
    time.sleep(STEADY_SECONDS + 1)
    attached.send_signal(stop)
    assert attached.wait(20) == 130
    shown = place.screen(len(place.started) - 1).read_text()
    assert "detached from long, which goes on" in shown
    assert status(place, "long")["phase"] == "running"

    place.run("cancel", "long")
    assert place.result("long")["status"] == "cancelled"
    assert status(place, "long")["phase"] == "cancelled"
    assert [name for name in ledger(place) if "/nodes/" in name] == []

    shown = place.run("down", "--all")
    assert "is deleted" in shown
    place.assert_clean()


def test_a_run_that_has_lost_its_coordinator(place: Place) -> None:
    words, gate = patient(place, "orphan")
    launcher = place.start(*ON_VM, *words)
    place.wait_for_output("orphan", "has begun")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    (record,) = (place.home / "coordinators").glob("*.json")
    name = json.loads(record.read_text())["name"]
    place.emulator("fault", "kill-vm", name)  # it boots again, and knows no jobs
    gate.touch()
    deadline = 60
    while "has lost its coordinator" not in status(place, "orphan")["phase"]:
        deadline -= 1
        assert deadline, status(place, "orphan")

    shown = place.run(*ON_VM, *words)
    assert "attempt 1" in shown
    assert place.result("orphan")["status"] == "succeeded"
    assert [name for name in ledger(place) if "/nodes/" in name] == []
    place.run("down", "orphan")
    place.assert_clean()


def test_slices_of_a_cluster_that_exists_are_borrowed(place: Place) -> None:
    place.run("up", "cluster=v6e-4", "mode=jax", "name=theirs")
    head = json.loads((place.home / "heads" / "shared.json").read_text())
    there = f"cluster.coordinator={head['address']}:{head['ports'][-1]}"
    shown = place.run("mode=jax", "cluster=v6e-4", there, "workload=basic", "name=lone", expect=4)
    assert "wants a token" in shown

    os.environ["RAY_AUTH_TOKEN_PATH"] = str(place.home / "heads" / "shared.token")
    try:
        words, gate = patient(place, "one")
        holder = place.start("mode=jax", "cluster=v6e-4", there, *words)
        place.wait_for_output("one", "has begun")
        busy = ("mode=jax", there, "workload=basic", "cluster.queue_timeout=1s")
        shown = place.run(*busy, "cluster=v6e-4", "name=two", expect=4)
        assert "theirs-s0: v6e-4, hosts [0]; another run of ours holds it" in shown
        shown = place.run(*busy, "cluster=v6e-16", "name=three", expect=4)
        assert "1 x v6e-16: none is free; the cluster has:" in shown
        gate.touch()
        assert holder.wait(60) == 0
    finally:
        del os.environ["RAY_AUTH_TOKEN_PATH"]
    assert place.result("one")["status"] == "succeeded"
    assert status(place, "theirs")["phase"] == "up"
    place.run("down", "--all")
    place.assert_clean()


SLOW = "provider.rules=[{fault: slow-create, seconds: 60s}]"
SLOW_VM = "provider.rules=[{fault: slow-create, node: 'launcher-*', seconds: 60s}]"


@pytest.mark.parametrize(
    ("coordinator", "rule", "verb"),
    [("host0", SLOW, "cancel"), ("host0", SLOW, "down"), ("vm", SLOW_VM, "down")],
)
def test_a_launch_under_way_is_left_alone_by_gc_and_ended_by_cancel(
    place: Place, coordinator: str, rule: str, verb: str
) -> None:
    words, _ = patient(place, "early")
    where = f"cluster.coordinator={coordinator}"
    launcher = place.start("cluster=v6e-4", "mode=jax", where, *words, rule)
    wait_until(lambda: exists(place))
    left = ledger(place)
    shown = place.run("gc", "--yes")
    assert "early" not in shown
    assert ledger(place) == left
    assert launcher.poll() is None

    assert "early: nothing is left" in place.run(verb, "early")
    assert launcher.wait(60) == 130
    assert not (place.home / "runs" / "early.json").exists()
    place.assert_clean()


@pytest.mark.parametrize(("coordinator", "rule"), [("host0", SLOW), ("vm", SLOW_VM)])
@pytest.mark.parametrize("mend", [("down", "early"), ("gc", "--yes")])
def test_what_a_killed_launch_has_begun_is_removed(
    place: Place, coordinator: str, rule: str, mend: tuple[str, str]
) -> None:
    words, _ = patient(place, "early")
    where = f"cluster.coordinator={coordinator}"
    launcher = place.start("cluster=v6e-4", "mode=jax", where, *words, rule)
    wait_until(lambda: exists(place))
    launcher.kill()
    launcher.wait()
    place.run(*mend)
    if mend[0] == "gc":
        assert [name for name in ledger(place) if "/instances/" not in name] == []
        assert not (place.home / "runs" / "early.json").exists()
        place.run("down", "--all")
    place.assert_clean()


def test_a_vm_and_a_run_may_have_one_name_and_two_launches_may_not(place: Place) -> None:
    words, _ = patient(place, "same")
    on_vm = (*ON_VM, "cluster.vm.name=same", *words)
    launcher = place.start(*on_vm, SLOW_VM.replace("launcher-*", "same"))
    wait_until(lambda: exists(place))
    assert "going on in another process" in place.run(*on_vm, expect=2)
    assert launcher.poll() is None
    shown = place.run("down", "same")
    assert "same: nothing is left" in shown
    assert "VM same" in shown
    assert "is deleted" in shown
    assert launcher.wait(60) == 130
    place.assert_clean()


@pytest.mark.parametrize("coordinator", ["host0", "vm"])
def test_the_same_command_begins_anew_when_coordinator_and_launcher_are_gone(
    place: Place, coordinator: str
) -> None:
    words, gate = patient(place, "both")
    command = ("cluster=v6e-4", "mode=jax", f"cluster.coordinator={coordinator}", *words)
    launcher = place.start(*command)
    place.wait_for_output("both", "has begun")
    launcher.kill()
    launcher.wait()
    if coordinator == "host0":
        place.emulator("fault", "preempt", "both-s0")
    else:
        delete_vm(place)
    gate.touch()
    assert "has lost its coordinator, and begins anew" in place.run(*command)
    assert place.result("both")["status"] == "succeeded"
    place.run("down", "--all")
    place.assert_clean()


def delete_vm(place: Place) -> None:
    """As by the console, without a word to the launcher."""
    (path,) = (place.home / "coordinators").glob("*.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCHER_HOME", str(place.home))
        found = vm.find(path.stem)
        assert found is not None
        with recorded_provider({"provider": found.provider}) as provider:
            provider.get()
            instances = vm_instances.Instances(found)
            vm_making.ended(instances, (GONE,), instances.delete, time.sleep)


MOMENTS = 12


@pytest.mark.stress
@pytest.mark.parametrize("coordinator", ["host0", "vm"])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_any_moment(place: Place, coordinator: str, moment: int) -> None:
    """From the first second of a launch to the last of its run, which takes about 24."""
    words, gate = patient(place, "k")
    gate.touch()
    command = ("cluster=v6e-4", "mode=jax", f"cluster.coordinator={coordinator}", *words)
    launcher = place.start(*command)
    time.sleep(24 * (moment + 0.5) / MOMENTS)
    launcher.kill()
    launcher.wait()
    place.run(*command)
    assert place.result("k")["status"] == "succeeded"
    place.run("down", "--all")
    place.assert_clean()


def exists(place: Place) -> bool:
    return (place.home / "emulator" / "ledger.json").exists() and bool(ledger(place))


def wait_until(true: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_host0_is_followed_to_a_new_slice(place: Place) -> None:
    words, gate = patient(place, "mobile")
    launcher = place.start("cluster=v6e-4", "mode=jax", "cluster.coordinator=host0", *words)
    place.wait_for_output("mobile", "has begun")
    place.emulator("fault", "preempt", "mobile-s0")
    gate.touch()
    assert launcher.wait(120) == 0
    shown = place.screen(len(place.started) - 1).read_text()
    assert "has lost its slice, and the Ray head on it (1 of " in shown
    assert "nothing is left of mobile" in shown
    assert place.result("mobile")["status"] == "succeeded"
    assert [event["attempt"] for event in place.events("mobile") if event["kind"] == "started"] == [
        0,
        1,
    ]
    place.assert_clean()
    assert list((place.home / "coordinators").iterdir()) == []
