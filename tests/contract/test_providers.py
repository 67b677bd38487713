"""What every provider must do, through the real client.

Against the emulator always. Against Google too, when LAUNCHER_TEST_PROJECT names a project in which
v2-8-like slices may be made (LAUNCHER_TEST_ZONE, LAUNCHER_TEST_TYPE): tests that need faults are
left out there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.emulator import client as emulator
from launcher.errors import ProvisioningError, Reason, Refused
from launcher.providers import Deadlines, Provider, Resource, open_provider
from launcher.providers.states import State
from launcher.provisioning import removal
from launcher.provisioning.requests import Request
from launcher.spec import ProviderSpec

PROJECT = os.environ.get("LAUNCHER_TEST_PROJECT")
ZONE = os.environ.get("LAUNCHER_TEST_ZONE", "us-central2-b")
KIND = os.environ.get("LAUNCHER_TEST_TYPE", "v4-8")
SECONDS = 20.0 if PROJECT is None else 1200.0
MINE = {"launcher-run": "r", "launcher-owner": "me", "launcher-machine": "m"}
NO_PROJECT = "LAUNCHER_TEST_PROJECT is not set"


class Opened:
    """A provider with faults to inject, if it is the emulator."""

    def __init__(self, spec: ProviderSpec) -> None:
        self.provider: Provider = open_provider(spec)
        self.emulated = spec.kind == "local"
        self.parent = f"projects/{spec.project or 'emulated'}/locations/{ZONE}"

    def request(self, name: str, attempt: str = "0-a", kind: str = KIND, **labels: str) -> Request:
        return Request(
            "CreateNode", "v2", self.parent, name, self.node(attempt, kind, **labels), (name,)
        )

    def node(self, attempt: str = "0-a", kind: str = KIND, **labels: str) -> dict[str, Any]:
        own = {f"launcher-{key}": value for key, value in labels.items()}
        return {
            "accelerator_type": kind,
            "runtime_version": "tpu-ubuntu2204-base",
            "labels": {**MINE, "launcher-attempt": attempt, **own},
            "metadata": {"startup-script": "exit 0"},
        }

    def queued(self, name: str, slices: int = 1, **policy: Any) -> Request:
        many = {"multislice_params": {"node_count": slices, "node_id_prefix": f"{name}-s"}}
        one = {"node_id": f"{name}-s0"}
        spec = {"parent": self.parent, **(many if slices > 1 else one), "node": self.node()}
        nodes = tuple(f"{name}-s-{i}" for i in range(slices)) if slices > 1 else (f"{name}-s0",)
        body = {"tpu": {"node_spec": [spec]}, "spot": {}, **policy}
        return Request("CreateQueuedResource", "v2", self.parent, name, body, nodes)

    def flex(self, name: str, seconds: int) -> Request:
        node = self.node()
        node["acceleratorType"] = node.pop("accelerator_type")
        node["runtimeVersion"] = node.pop("runtime_version")
        spec = {"parent": self.parent, "nodeId": f"{name}-s0", "node": node}
        body = {
            "tpu": {"nodeSpec": [spec]},
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": f"{seconds}s"},
        }
        return Request("CreateQueuedResource", "v2alpha1", self.parent, name, body, (f"{name}-s0",))

    def fault(self, **rule: Any) -> None:
        emulator.control(self.provider.endpoint, {"command": "fault", **rule})

    def create(
        self, wanted: Request, provision: float = SECONDS, queue: float = SECONDS
    ) -> Sequence[Resource]:
        return self.provider.create(wanted, Deadlines(queue, provision), time.sleep)

    def refused(self, wanted: Request, **deadlines: float) -> Refused:
        with pytest.raises(Refused) as caught:
            self.create(wanted, **deadlines)
        return caught.value

    def ledger(self) -> dict[str, Any]:
        return emulator.control(self.provider.endpoint, {"command": "ledger"})

    def created(self) -> int:
        return len(self.ledger()["nodes"])


@pytest.fixture(params=["local", "google"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Every test begins and ends with an empty project, as far as our label goes."""
    if request.param == "google" and PROJECT is None:
        pytest.skip(NO_PROJECT)
    options = {"state_dir": str(tmp_path)} if request.param == "local" else {}
    made = Opened(ProviderSpec(request.param, PROJECT, options))
    yield made
    for resource in made.provider.list({}).resources if made.emulated else ():
        made.provider.delete(resource.name, {}, SECONDS)
    for resource in made.provider.list(MINE).resources:
        made.provider.delete(resource.name, {}, SECONDS)
    if made.emulated:
        assert made.ledger()["left"] == []
    made.provider.close()


@pytest.fixture
def emulated(opened: Opened) -> Opened:
    if not opened.emulated:
        pytest.skip("faults can be injected on the emulator alone")
    return opened


def test_create_get_list_delete(opened: Opened) -> None:
    (node,) = opened.create(opened.request("a"))
    assert (node.state, node.accelerator_type) == (State.READY, KIND)
    assert len(node.addresses) == 1
    assert opened.provider.get(node.name) == node
    assert [n.name for n in opened.provider.list(MINE).resources] == [node.name]
    assert opened.provider.list({**MINE, "launcher-run": "other"}).resources == ()
    opened.provider.delete(node.name, MINE, SECONDS)
    assert opened.provider.get(node.name) is None
    opened.provider.delete(node.name, MINE, SECONDS)  # what is gone is deleted


@pytest.mark.parametrize("code", ["NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT"])
@pytest.mark.parametrize("method", ["List*", "Get*"])
def test_a_read_that_is_refused_is_told_in_the_words_of_the_server(
    emulated: Opened, method: str, code: str
) -> None:
    (node,) = emulated.create(emulated.request("r"))
    emulated.fault(fault="call-error", method=method, code=code, count=1, message="no such thing")
    if (method, code) == ("Get*", "NOT_FOUND"):
        assert emulated.provider.get(node.name) is None
        return
    with pytest.raises(ProvisioningError, match="no such thing"):
        emulated.provider.list(MINE) if method == "List*" else emulated.provider.get(node.name)


def test_a_queued_resource_gives_its_node_and_takes_it_away(opened: Opened) -> None:
    wanted = opened.queued("q")
    (node,) = opened.create(wanted)
    assert (node.name, node.state) == (wanted.node_names[0], State.READY)
    assert node.queued_resource.endswith("/queuedResources/q")
    queued = opened.provider.get(wanted.name)
    assert queued is not None
    assert (queued.state, queued.raw_state, queued.labels) == (State.READY, "ACTIVE", node.labels)
    found = {resource.name for resource in opened.provider.list(MINE).resources}
    assert found == {wanted.name, node.name}
    opened.provider.delete(wanted.name, MINE, SECONDS)
    assert opened.provider.list(MINE).resources == ()


def test_several_slices_are_one_queued_resource(emulated: Opened) -> None:
    nodes = emulated.create(emulated.queued("q", slices=2))
    assert [node.name.rpartition("/")[2] for node in nodes] == ["q-s-0", "q-s-1"]
    assert all(node.state is State.READY for node in nodes)


def test_flex_start_ends_with_its_run_time(emulated: Opened) -> None:
    wanted = emulated.flex("f", seconds=2)
    (node,) = emulated.create(wanted)
    assert node.state is State.READY
    deadline = time.monotonic() + SECONDS
    while (queued := emulated.provider.get(wanted.name)) and queued.state is not State.DEAD:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert queued is not None
    assert queued.raw_state in ("SUSPENDING", "SUSPENDED")


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_the_very_same_request_is_adopted(emulated: Opened, kind: str) -> None:
    first = emulated.create(getattr(emulated, kind)("a"))
    assert [n.name for n in emulated.create(getattr(emulated, kind)("a"))] == [first[0].name]
    assert emulated.created() == 1


def test_a_leftover_of_an_earlier_attempt_is_replaced(emulated: Opened) -> None:
    emulated.create(emulated.request("a"))
    (node,) = emulated.create(emulated.request("a", attempt="1-b"))
    assert node.labels["launcher-attempt"] == "1-b"
    assert emulated.created() == 2


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_a_foreign_resource_is_refused_with_its_owner(emulated: Opened, kind: str) -> None:
    theirs = getattr(emulated, kind)("a").with_node(
        lambda node: node["labels"].update({"launcher-owner": "them", "launcher-run": "theirs"})
    )
    emulated.create(theirs)
    refused = emulated.refused(getattr(emulated, kind)("a"))
    assert refused.reason is Reason.TAKEN
    assert "belongs to them (run theirs)" in str(refused)
    assert emulated.created() == 1


def test_a_namesake_from_another_machine_is_refused(emulated: Opened) -> None:
    emulated.create(emulated.request("a", machine="other"))
    refused = emulated.refused(emulated.request("a"))
    assert refused.reason is Reason.TAKEN
    assert "another machine" in str(refused)


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_a_node_that_stands_in_the_way_of_its_id_is_found(emulated: Opened, kind: str) -> None:
    """The node of a queued resource may have been made by CreateNode before."""
    emulated.create(emulated.request("a-s0", owner="them"))
    wanted = emulated.request("a-s0") if kind == "request" else emulated.queued("a")
    assert emulated.refused(wanted).reason is Reason.TAKEN


def test_a_preempted_leftover_is_replaced(emulated: Opened) -> None:
    emulated.create(emulated.request("a"))
    emulated.fault(fault="preempt", node="a")
    assert emulated.create(emulated.request("a"))[0].state is State.READY
    assert emulated.created() == 2


def test_a_suspended_queued_resource_is_replaced(emulated: Opened) -> None:
    wanted = emulated.queued("q")
    emulated.create(wanted)
    emulated.fault(fault="preempt", node="q-s0")
    deadline = time.monotonic() + SECONDS
    while (queued := emulated.provider.get(wanted.name)) and queued.raw_state != "SUSPENDED":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert emulated.create(wanted)[0].state is State.READY


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_a_lost_reply_is_resolved_by_a_look(emulated: Opened, kind: str) -> None:
    wanted = getattr(emulated, kind)("a")
    emulated.fault(fault="lost-reply", method=wanted.method, count=1)
    assert emulated.create(wanted)[0].state is State.READY
    assert emulated.created() == 1


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_a_service_that_is_away_for_a_moment_is_waited_for(emulated: Opened, kind: str) -> None:
    emulated.fault(fault="unavailable", lasts="1s")
    assert emulated.create(getattr(emulated, kind)("a"))[0].state is State.READY


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_an_operation_that_never_ends_does_not_hide_a_ready_node(
    emulated: Opened, kind: str
) -> None:
    wanted = getattr(emulated, kind)("a")
    emulated.fault(fault="operation-hangs", method=wanted.method, count=1)
    assert emulated.create(wanted)[0].state is State.READY


@pytest.mark.parametrize(
    ("rule", "reason", "words"),
    [
        ({"fault": "stockout"}, Reason.STOCKOUT, "There is no more capacity in the zone"),
        (
            {"fault": "operation-error", "code": "INTERNAL"},
            Reason.INTERNAL,
            "an internal error has occurred",
        ),
        (
            {"fault": "call-error", "code": "PERMISSION_DENIED", "message": "no way"},
            Reason.PERMISSION,
            "no way",
        ),
        ({"fault": "quota", "limit": 1}, Reason.QUOTA, "(?i)quota"),
        ({"fault": "create-rate", "limit": 0}, Reason.RATE, "per minute"),
    ],
)
def test_errors_are_told_apart_in_the_servers_words(
    emulated: Opened, rule: dict[str, Any], reason: Reason, words: str
) -> None:
    emulated.fault(**rule)
    refused = emulated.refused(emulated.request("a"))
    assert refused.reason is reason
    with pytest.raises(ProvisioningError, match=words):
        raise refused


def test_a_type_that_the_zone_does_not_have(emulated: Opened) -> None:
    assert emulated.refused(emulated.request("a", kind="v6e-8")).reason is Reason.NOT_IN_ZONE


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        ("RESOURCE_EXHAUSTED", "There is no more capacity in the zone", Reason.STOCKOUT),
        ("INTERNAL", "an internal error has occurred", Reason.INTERNAL),
    ],
)
def test_a_failed_queued_resource_tells_why(
    emulated: Opened, code: str, message: str, reason: Reason
) -> None:
    emulated.fault(fault="queue-fail", code=code, message=message)
    refused = emulated.refused(emulated.queued("q"))
    assert refused.reason is reason
    assert message in str(refused)


def test_the_queue_and_the_provisioning_have_deadlines_of_their_own(emulated: Opened) -> None:
    emulated.fault(fault="stockout")
    refused = emulated.refused(emulated.queued("q"), queue=1.0, provision=60.0)
    assert refused.reason is Reason.DEADLINE
    assert "WAITING_FOR_RESOURCES at the deadline (cluster.queue_timeout)" in str(refused)


def test_time_in_the_queue_does_not_count_as_provisioning(emulated: Opened) -> None:
    emulated.fault(fault="queue-wait", seconds="2s", count=1)
    assert emulated.create(emulated.queued("q"), provision=1.5)[0].state is State.READY


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_a_slow_create_ends_at_the_deadline(emulated: Opened, kind: str) -> None:
    emulated.fault(fault="slow-create", seconds="60s")
    refused = emulated.refused(getattr(emulated, kind)("a"), provision=1.0)
    assert refused.reason is Reason.DEADLINE
    assert "at the deadline (cluster.provision_timeout)" in str(refused)


def test_a_preemption_during_the_create_is_a_loss(emulated: Opened) -> None:
    emulated.fault(fault="slow-create", seconds="60s")
    timer = threading.Timer(0.5, lambda: emulated.fault(fault="preempt", node="a"))
    timer.start()
    assert emulated.refused(emulated.request("a")).reason is Reason.LOST
    timer.join()


@pytest.mark.parametrize("kind", ["request", "queued"])
def test_deletion_is_verified(emulated: Opened, kind: str) -> None:
    wanted = getattr(emulated, kind)("a")
    emulated.create(wanted)
    method = wanted.method.replace("Create", "Delete")
    emulated.fault(fault="lost-reply", method=method, count=1)
    emulated.provider.delete(wanted.name, MINE, SECONDS)
    assert emulated.provider.get(wanted.name) is None


def test_a_request_that_waits_for_capacity_can_be_deleted(emulated: Opened) -> None:
    emulated.fault(fault="stockout", lasts="2s")
    wanted = emulated.queued("q")
    emulated.refused(wanted, queue=0.5)
    emulated.provider.delete(wanted.name, MINE, SECONDS)
    time.sleep(2)  # capacity is back: what was given up must not be granted now
    assert emulated.provider.list(MINE).resources == ()


def test_a_state_of_tomorrow_is_waited_for(emulated: Opened) -> None:
    (node,) = emulated.create(emulated.request("a"))
    emulated.fault(fault="set-state", node="a", state="UNKNOWN")
    found = emulated.provider.get(node.name)
    assert found is not None
    assert (found.state, found.raw_state) == (State.PENDING, "UNKNOWN")


def test_the_console_is_shown(emulated: Opened) -> None:
    wanted = emulated.request("a")
    wanted.node["metadata"]["startup-script"] = "echo hello from the host"
    (node,) = emulated.create(wanted)
    deadline = time.monotonic() + SECONDS
    while "hello from the host" not in emulated.provider.console(node.name, 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_lacks_the_labels_is_not_deleted(emulated: Opened) -> None:
    (node,) = emulated.create(emulated.request("a"))
    emulated.provider.delete(node.name, {**MINE, "launcher-machine": "other"}, SECONDS)
    assert emulated.provider.get(node.name) == node


def test_an_operation_that_cannot_be_read_does_not_hide_a_ready_node(emulated: Opened) -> None:
    denied = {"code": "PERMISSION_DENIED", "message": "no way", "count": 99}
    emulated.fault(fault="call-error", method="GetOperation", **denied)
    assert emulated.create(emulated.request("a"))[0].state is State.READY


def test_a_look_that_is_refused_is_told_as_a_refusal(emulated: Opened) -> None:
    denied = {"code": "PERMISSION_DENIED", "message": "no way", "count": 1}
    emulated.fault(fault="call-error", method="GetNode", **denied)
    assert emulated.refused(emulated.request("a")).reason is Reason.PERMISSION


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_a_service_that_is_away_for_long_hides_no_ready_node(
    emulated: Opened, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Away, or tired of reads: their quota is counted by the minute."""
    monkeypatch.setattr("launcher.providers.calls.AWAY_SECONDS", 0.1)
    emulated.fault(fault="slow-create", seconds="1s")
    emulated.fault(fault="call-error", method="Get*", code=code, count=8)
    assert emulated.create(emulated.request("a"))[0].state is State.READY
    assert emulated.created() == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_a_service_that_is_away_for_long_keeps_nothing_from_being_deleted(
    emulated: Opened, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("LAUNCHER_MACHINE", MINE["launcher-machine"])
    (node,) = emulated.create(emulated.request("a"))
    monkeypatch.setattr("launcher.providers.calls.AWAY_SECONDS", 0.1)
    for method in ("GetNode", "List*"):
        emulated.fault(fault="call-error", method=method, code=code, count=4)
    record = {"name": "r", "owner": "me", "resources": [node.name]}
    removal.delete_resources(record, emulated.provider)
    assert emulated.provider.get(node.name) is None
