"""Getting slices with the real command line: chains of choices, queues, interrupts, and gc."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from launcher.emulator import client as emulator
from launcher.errors import ProvisioningError
from launcher.providers import open_provider
from launcher.spec import ProviderSpec
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

A, B, C, D = ZONES = ("us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c")
ECHO = "workload.command=[echo,done]"
NODE = ("cluster=v2-8", ECHO)
QUEUED = (*NODE, "cluster.capacity=queued-spot")
NO_CAPACITY = {
    "code": "RESOURCE_EXHAUSTED",
    "message": "There is no more capacity in the zone",
    "count": 99,
}
WRONG_ZONE = {
    "code": "INVALID_ARGUMENT",
    "message": "the accelerator v2-8 was not found in zone",
    "count": 99,
}
DENIED = {"code": "PERMISSION_DENIED", "message": "Permission tpu.nodes.* denied", "count": 99}


def rules(*given: Mapping[str, Any]) -> str:
    """An override in Hydra's grammar: values may be quoted, keys may not."""
    rows = (", ".join(f"{k}: {json.dumps(v)}" for k, v in row.items()) for row in given)
    return f"provider.rules=[{', '.join(f'{{{row}}}' for row in rows)}]"


def wait_until(true: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(place: Place) -> dict[str, str]:
    """What exists in the emulator, by id, and its state; nothing does in one that has ended."""
    endpoint = emulator.read_endpoint(place.home / "emulator")
    if endpoint is None:
        return {}
    try:
        ledger = emulator.control(endpoint, {"command": "ledger"})
    except ProvisioningError:
        wait_until(lambda: not emulator.is_alive(place.home / "emulator"))
        return {}
    rows = ledger["nodes"] + ledger["queued_resources"]
    return {r["name"].rpartition("/")[2]: r["state"] for r in rows if r["ended"] is None}


def test_a_chain_goes_on_from_zone_to_zone_until_a_queue_grants(place: Place) -> None:
    """Each zone refuses in its own way; the last one grants a queued resource after a while."""
    given = rules(
        {"fault": "stockout", "zone": A, "count": 1},
        {"fault": "operation-error", "zone": A, "method": "CreateQueued*", **NO_CAPACITY},
        {"fault": "call-error", "zone": B, "method": "Create*", **WRONG_ZONE},
        {"fault": "call-error", "zone": C, "method": "*", **DENIED},  # looks as well
        {"fault": "stockout", "zone": D, "count": 1},
        {"fault": "queue-wait", "zone": D, "seconds": "2s"},
    )
    choices = (f"cluster.zone=[{','.join(ZONES)}]", "cluster.capacity=[spot,queued-spot]")
    shown = place.run(*NODE, *choices, given, "name=chain")
    assert place.result("chain")["status"] == "succeeded"
    refused = [
        (event["capacity"], event["zone"], event["reason"])
        for event in place.events("chain")
        if event["kind"] == "refused"
    ]
    reasons = ("stockout", "not_in_zone", "permission", "stockout")
    spot = [("spot", zone, reason) for zone, reason in zip(ZONES, reasons, strict=True)]
    queued = [("queued-spot", zone, why) for zone, why in zip(ZONES[:3], reasons, strict=False)]
    assert refused == [*spot, *queued]
    places = [shown.index(f"v2-8 {capacity} in {zone}: ") for capacity, zone, _ in refused]
    assert places == sorted(places)
    assert shown.index("There is no more capacity") < shown.index("chain-s0 is READY")
    ledger = place.emulator("ledger")
    zones = [row["zone"] for row in ledger["nodes"] if row["ready"]]
    assert zones == [D]
    place.assert_clean()


def test_nothing_to_be_had_ends_in_time_and_leaves_nothing(place: Place) -> None:
    choices = ("cluster.capacity=[spot,queued-spot]", "cluster.queue_timeout=3s")
    shown = place.run(*NODE, *choices, rules({"fault": "stockout"}), "name=none", expect=3)
    assert "There is no more capacity in the zone" in shown
    reasons = {e["reason"] for e in place.events("none") if e["kind"] == "refused"}
    assert reasons == {"stockout", "deadline"}
    place.assert_clean()


def test_what_is_granted_after_it_was_given_up_is_deleted(place: Place) -> None:
    """Capacity comes back while the delete of the request does not get through (marin#4724)."""
    away = {"fault": "call-error", "method": "DeleteQueuedResource", "code": "UNAVAILABLE"}
    given = rules({"fault": "stockout", "count": 40}, {**away, "count": 8})  # for two seconds
    words = ("cluster.queue_timeout=1s", "cluster.valid_until=1h")
    place.run(*QUEUED, *words, given, "name=late", expect=3)
    ledger = place.emulator("ledger")
    assert [row["name"].rpartition("/")[2] for row in ledger["nodes"]] == ["late-s0"]
    assert ledger["left"] == []
    place.assert_clean()


MOMENTS = [1.0, 2.5]
TENTHS = [tenth / 10 for tenth in range(60) if tenth / 10 not in MOMENTS]


@pytest.mark.parametrize("capacity", ["on-demand", "queued-spot"])
@pytest.mark.parametrize(
    "seconds", [*MOMENTS, *(pytest.param(s, marks=pytest.mark.stress) for s in TENTHS)]
)
def test_interrupted_at_any_moment_of_provisioning(
    place: Place, capacity: str, seconds: float
) -> None:
    """Until READY, which takes some seconds here; before the launcher heeds signals nothing is."""
    slow = rules(
        {"fault": "queue-wait", "seconds": "2s"}, {"fault": "slow-create", "seconds": "4s"}
    )
    words = ("cluster=v2-8", 'workload.command=[sleep,"60"]', f"cluster.capacity={capacity}")
    process = place.start(*words, slow, "name=stop")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    assert code == 130 or (code == -signal.SIGINT and not place.events("stop"))
    assert states(place) == {}
    place.assert_clean()


AWAY = {"fault": "unavailable", "node": "stuck-s0", "lasts": "20m"}


def test_ctrl_c_while_a_deletion_waits_tells_what_is_left_and_the_next_leaves(
    place: Place,
) -> None:
    gate = place.temp / "gate"
    (place.folder / "wait.sh").write_text(f"while [ ! -e {gate} ]; do sleep 0.1; done")
    process = place.start("cluster=v2-8", "workload.command=[sh,wait.sh]", "name=stuck")
    place.wait_for("stuck", "started")
    endpoint = emulator.read_endpoint(place.home / "emulator")
    assert endpoint is not None
    with emulator.arm(endpoint, [AWAY], ()):
        gate.touch()
        wait_until(lambda: "deleting stuck" in place.screen(0).read_text())
        leave(place, process, "SIGINT: still deletes stuck-s0; once more to leave at once")
        assert "python -m launcher gc --yes" in place.screen(0).read_text()
        for words in (("down", "stuck"), ("gc", "--yes")):
            process = place.start(*words)
            time.sleep(3)
            leave(place, process, "SIGINT: stops here, once more to leave at once")
        assert list(states(place)) == ["stuck-s0"]
    place.run("gc", "--yes")
    gate.unlink()
    place.assert_clean()


def leave(place: Place, process: subprocess.Popen[bytes], words: str) -> None:
    """By Ctrl-C twice, as soon as the first has been heard."""
    screen = place.screen(place.started.index(process))
    process.send_signal(signal.SIGINT)
    wait_until(lambda: words in screen.read_text(), 30)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130


def test_preempted_while_it_is_created_another_is_asked_for(place: Place) -> None:
    slow = rules({"fault": "slow-create", "seconds": "60s", "count": 1})
    process = place.start(*NODE, slow, "name=early")
    wait_until(lambda: states(place).get("early-s0") == "CREATING")
    place.emulator("fault", "preempt", "early-s0")
    assert process.wait(90) == 0
    (refused,) = [event for event in place.events("early") if event["kind"] == "refused"]
    assert refused["reason"] == "lost"
    result = place.result("early")
    assert (result["attempts"], result["preemptions"]) == (1, 0)
    place.assert_clean()


def test_down_ends_a_run_that_waits_in_the_queue(place: Place) -> None:
    process = place.start(*QUEUED, rules({"fault": "stockout"}), "name=wait")
    wait_until(lambda: states(place).get("wait") == "WAITING_FOR_RESOURCES")
    assert "wait: nothing is left" in place.run("down", "wait")
    assert process.wait(60) == 130
    assert place.result("wait")["status"] == "cancelled"
    place.assert_clean()


@pytest.mark.parametrize("alone", [True, False])
def test_the_same_command_after_a_death_keeps_its_place_in_the_queue(
    place: Place, alone: bool
) -> None:
    """The launcher dies alone, or with its Ray head, as when its machine is started anew."""
    process = place.start(*QUEUED, rules({"fault": "stockout"}), "name=held")
    wait_until(lambda: states(place).get("held") == "WAITING_FOR_RESOURCES")
    endpoint = emulator.read_endpoint(place.home / "emulator")
    assert endpoint is not None
    with emulator.arm(endpoint, [{"fault": "stockout", "node": "held"}], ()):
        process.kill()
        process.wait()
        if not alone:
            place.kill_head()
        assert "queuedResources/held (WAITING_FOR_RESOURCES), its Ray head" in place.run("gc")
        again = place.start(*QUEUED, "name=held")
        place.wait_for("held", "adopted")
    assert again.wait(60) == 0
    (queued,) = place.emulator("ledger")["queued_resources"]
    assert queued["name"].endswith("queuedResources/held")
    place.assert_clean()


def test_gc_tells_of_dead_queued_resources_and_deletes_those_of_this_machine(place: Place) -> None:
    process = place.start(*QUEUED, rules({"fault": "stockout"}), "name=dead")
    wait_until(lambda: states(place).get("dead") == "WAITING_FOR_RESOURCES")
    process.kill()
    process.wait()
    wait_until(lambda: states(place).get("dead-s0") == "READY")  # its faults ended with it
    place.emulator("fault", "preempt", "dead-s0")
    (place.home / "runs" / "dead.json").unlink()  # as if another version had forgotten it
    theirs = namesake_elsewhere(place)
    wait_until(lambda: states(place)["dead"] == "SUSPENDED" and states(place)["far"] == "ACTIVE")
    shown = place.run("gc")
    assert "queuedResources/dead (SUSPENDED), not billed, but counted by the quota" in shown
    assert f"left alone: {theirs} (ACTIVE)" in shown
    place.run("gc", "--yes")
    assert sorted(states(place)) == ["far", "far-s0"]
    delete(place, theirs)
    place.assert_clean()


def namesake_elsewhere(place: Place) -> str:
    """A queued resource of this user, made on another machine; its full name."""
    from launcher.invocation import owner

    labels = {"launcher-run": "far", "launcher-owner": owner(), "launcher-machine": "elsewhere"}
    parent = f"projects/emulated/locations/{A}"
    node = {"accelerator_type": "v2-8", "runtime_version": "tpu-ubuntu2204-base", "labels": labels}
    spec = {"parent": parent, "node_id": "far-s0", "node": node}
    call = {"parent": parent, "queued_resource_id": "far"}
    call["queued_resource"] = {"tpu": {"node_spec": [spec]}}
    with closing_provider(place) as provider:
        provider.client.create_queued_resource(request=call)
    return f"{parent}/queuedResources/far"


def delete(place: Place, name: str) -> None:
    with closing_provider(place) as provider:
        provider.delete(name, {}, 60)


def closing_provider(place: Place) -> Any:
    import contextlib

    options = {"state_dir": str(place.home / "emulator")}
    return contextlib.closing(open_provider(ProviderSpec("local", None, options)))
