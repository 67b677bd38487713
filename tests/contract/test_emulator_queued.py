"""Queued resources of the emulator, through both versions of the real client, and over REST.

Every test ends by asserting that nothing is left: no queued resource, no node, no host, no process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport as AlphaTransport
from google.rpc import error_details_pb2
from google.type import interval_pb2

from launcher.emulator import client
from launcher.emulator.machine.guest import project_number
from launcher.errors import ConfigError
from tests.contract.test_emulator import ZONE, Cloud, ended, processes, wait_for

State = tpu_v2.Node.State
Queued: Any = tpu_v2.QueuedResourceState.State
Initiator = tpu_v2.QueuedResourceState.StateInitiator
NUMBERED = f"projects/{project_number('p')}/locations/us-east5-a"
VERSION = "v2-alpha-tpuv6e"


def node_body(kind: str = "v6e-1", script: str = "", **fields: Any) -> dict[str, Any]:
    metadata = {"startup-script": script, **fields.pop("metadata", {})}
    return {
        "accelerator_type": kind,
        "runtime_version": VERSION,
        "metadata": metadata,
        **fields,
    }


def spec(node_id: str, **fields: Any) -> dict[str, Any]:
    """A node spec with one node."""
    return {"parent": ZONE, "node_id": node_id, "node": node_body(**fields)}


def slices(count: int, prefix: str = "", **fields: Any) -> dict[str, Any]:
    """A node spec of a multislice request."""
    params = {"node_count": count, "node_id_prefix": prefix}
    return {"parent": ZONE, "multislice_params": params, "node": node_body(**fields)}


class Queue(Cloud):
    """An emulator, and shorthands for queued resources in v2."""

    def __init__(self, attachment: client.Attachment, state_dir: Path) -> None:
        super().__init__(attachment, state_dir)
        self.alpha = tpu_v2alpha1.TpuClient(transport=AlphaTransport(channel=self.channel))
        self.rest = json.loads((state_dir / "endpoint.json").read_text())["rest"]

    def ask(self, name: str, *specs: Mapping[str, Any], request_id: str = "", **fields: Any) -> Any:
        """The operation of a create; a queued resource for the node `name-n` if not said else."""
        given = list(specs) or [spec(f"{name}-n")]
        resource = tpu_v2.QueuedResource(tpu={"node_spec": given}, **fields)
        request = {
            "parent": ZONE,
            "queued_resource_id": name,
            "queued_resource": resource,
            "request_id": request_id,
        }
        return self.tpu.create_queued_resource(request=request)

    def queued(self, name: str) -> tpu_v2.QueuedResource:
        return self.tpu.get_queued_resource(name=f"{ZONE}/queuedResources/{name}")

    def state(self, name: str) -> Any:
        return self.queued(name).state.state

    def reach(self, name: str, state: Any) -> tpu_v2.QueuedResource:
        wait_for(lambda: self.state(name) == state)
        return self.queued(name)

    def activate(self, name: str, *specs: Mapping[str, Any], **fields: Any) -> Any:
        self.ask(name, *specs, **fields)
        return self.reach(name, Queued.ACTIVE)

    def drop(self, name: str, *, force: bool = True, request_id: str = "") -> Any:
        """The operation of a delete."""
        request = {
            "name": f"{ZONE}/queuedResources/{name}",
            "force": force,
            "request_id": request_id,
        }
        return self.tpu.delete_queued_resource(request=request)

    def dropped(self, name: str, *, force: bool = True) -> None:
        self.finish(self.drop(name, force=force))

    def nodes(self) -> list[str]:
        return [node.name.rpartition("/")[2] for node in self.tpu.list_nodes(parent=ZONE)]

    def history(self, name: str) -> dict[str, Any]:
        """The queued resource's latest line in the ledger."""
        rows = self.control("ledger")["queued_resources"]
        full = f"{ZONE}/queuedResources/{name}"
        return next(row for row in reversed(rows) if row["name"] == full)

    def http(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of one call of v2alpha1 over REST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.rest}/v2alpha1/{ZONE}/{path}", data=data, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    state_dir = tmp_path_factory.mktemp("emulator")
    with client.connect(state_dir) as attachment:
        queue = Queue(attachment, state_dir)
        yield queue
        queue.channel.close()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    yield shared
    ledger = shared.control("ledger")
    assert (ledger["left"], ledger["hosts"]) == ([], [])
    assert not list(shared.tpu.list_queued_resources(parent=ZONE))
    assert shared.processes() == []


def test_the_life_of_a_queued_resource(queue: Queue) -> None:
    queue.fault("slow-create", "life-n", seconds="2h", count=1)
    operation = queue.ask("life", spec("life-n", script="echo I am $HOSTNAME", labels={"a": "b"}))
    assert operation.metadata.target == f"{ZONE}/queuedResources/life"
    assert (operation.metadata.verb, operation.metadata.api_version) == ("create", "v2")
    made = queue.finish(operation)
    assert made.name == f"{ZONE}/queuedResources/life"
    assert made.state.state == Queued.ACCEPTED
    assert made.state.state_initiator == Initiator.USER
    assert "accepted_data" in made.state
    assert made.create_time
    provisioning = queue.reach("life", Queued.PROVISIONING)
    assert provisioning.state.state_initiator == Initiator.SERVICE
    node = queue.get("life-n")
    assert (node.state, node.queued_resource) == (State.CREATING, made.name)
    assert not node.multislice_node
    queue.dropped("life")
    assert queue.history("life")["reason"] == "deleted"
    assert queue.history("life")["billed_seconds"] == 0

    active = queue.activate("life", spec("life-n", script="echo I am $HOSTNAME"))
    assert "active_data" in active.state
    assert queue.get("life-n").state == State.READY
    wait_for(lambda: "exit status 0" in queue.console("life-n"))
    assert "I am t1v-n-" in queue.console("life-n")
    assert "MEGASCALE" not in queue.metadata("life-n", "instance/attributes/tpu-env")
    (listed,) = queue.tpu.list_queued_resources(parent="projects/p/locations/-")
    assert listed == active
    (shown,) = active.tpu.node_spec
    assert (shown.parent, shown.node_id) == (NUMBERED, "life-n")
    assert shown.node.queued_resource == f"{NUMBERED}/queuedResources/life"
    assert shown.node.accelerator_type == "v6e-1"
    assert shown.node.service_account.email
    assert (shown.node.name, shown.node.state) == ("", 0)
    queue.dropped("life")
    with pytest.raises(exceptions.NotFound):
        queue.queued("life")
    with pytest.raises(exceptions.NotFound):
        queue.drop("life")
    assert queue.nodes() == []


def test_lists_come_in_pages(queue: Queue) -> None:
    queue.fault("queue-wait", "p*", seconds="2h", count=3)
    for name in ("p2", "p0", "p1"):
        queue.ask(name)
    pages = queue.tpu.list_queued_resources(request={"parent": ZONE, "page_size": 1}).pages
    names = [[r.name.rpartition("/")[2] for r in page.queued_resources] for page in pages]
    assert names == [["p0"], ["p1"], ["p2"]]
    for name in ("p0", "p1", "p2"):
        queue.dropped(name, force=False)


def test_the_same_request_id_gives_the_same_answer(queue: Queue) -> None:
    first = queue.ask("again", request_id="c-1")
    assert queue.ask("again", request_id="c-1").operation.name == first.operation.name
    with pytest.raises(exceptions.AlreadyExists):
        queue.ask("again", request_id="c-2")
    with pytest.raises(exceptions.AlreadyExists):
        queue.ask("again")
    queue.reach("again", Queued.ACTIVE)
    deletion = queue.drop("again", request_id="d-1")
    queue.finish(deletion)
    assert queue.drop("again", request_id="d-1").operation.name == deletion.operation.name
    queue.fault("call-error", "again", method="CreateQueuedResource")
    with pytest.raises(exceptions.InternalServerError):
        queue.ask("again", request_id="c-3")
    queue.ask("again", request_id="c-3")  # a call that was refused is not an answer to keep
    queue.dropped("again")


def test_a_multislice_request(queue: Queue) -> None:
    queue.activate("multi", slices(2, kind="v6e-16"), spec("alone"))
    assert queue.nodes() == ["alone", "multi-0", "multi-1"]
    assert [queue.get(name).multislice_node for name in queue.nodes()] == [False, True, True]
    coordinator = queue.get("multi-0").network_endpoints[0].ip_address
    for index in (0, 1):
        for worker in (0, 3):
            text = queue.metadata(f"multi-{index}", "instance/attributes/tpu-env", worker)
            assert f"MEGASCALE_COORDINATOR_ADDRESS: '{coordinator}'\n" in text
            assert "MEGASCALE_NUM_SLICES: '2'\n" in text
            assert f"MEGASCALE_SLICE_ID: '{index}'\n" in text
    queue.dropped("multi")


def test_jax_joins_the_slices_of_a_multislice_request(queue: Queue) -> None:
    """By what `tpu-env` says alone; without a chip on the PCI bus JAX 0.10 would not look there."""
    code = (
        "import jax, os; os.environ.pop('TPU_SKIP_MDS_QUERY', None); jax.distributed.initialize();"
        "print('process', jax.process_index(), 'of', jax.process_count(), jax.device_count())"
    )
    queue.activate("jax", slices(2, script=f'python3 -c "{code}"'))
    for index in (0, 1):
        wait_for(lambda n=f"jax-{index}": "exit status" in queue.console(n), 60)
        assert f"process {index} of 2 2\n" in queue.console(f"jax-{index}")
    queue.dropped("jax")


def test_a_multislice_request_is_granted_whole_or_not_at_all(queue: Queue) -> None:
    with client.arm(queue.endpoint, [{"fault": "stockout"}], ["whole"]):
        queue.ask("whole", slices(3, "w"))
        queue.create("w-1")  # takes the name of one while the request waits
    failed = queue.reach("whole", Queued.FAILED)
    assert failed.state.failed_data.error.code == 6
    assert "w-1" in failed.state.failed_data.error.message
    assert queue.nodes() == ["w-1"]
    assert queue.get("w-1").queued_resource == ""
    queue.dropped("whole")
    assert queue.nodes() == ["w-1"], "it does not delete what is not its own"
    queue.delete("w-1")


@pytest.mark.parametrize("gone", ["deleted", "preempted"])
def test_a_lost_node_suspends(queue: Queue, gone: str) -> None:
    queue.activate("lost", slices(2))
    if gone == "deleted":
        queue.fault("slow-delete", "lost-0", seconds="300ms", count=1)
        deletion = queue.tpu.delete_node(name=f"{ZONE}/nodes/lost-0")
        assert queue.state("lost") in (Queued.SUSPENDING, Queued.SUSPENDED)
        queue.finish(deletion)
    else:
        queue.fault("preempt", "lost-0")
    suspended = queue.reach("lost", Queued.SUSPENDED)
    initiator = Initiator.USER if gone == "deleted" else Initiator.SERVICE
    assert suspended.state.state_initiator == initiator
    assert queue.nodes() == ([] if gone == "deleted" else ["lost-0"])
    if gone == "preempted":
        assert queue.get("lost-0").state == State.PREEMPTED
    queue.dropped("lost", force=False)
    assert queue.nodes() == []


def test_a_preempted_node_can_be_deleted_before_its_queued_resource(queue: Queue) -> None:
    queue.activate("first")
    queue.fault("preempt", "first-n")
    queue.reach("first", Queued.SUSPENDED)
    queue.delete("first-n")
    assert queue.state("first") == Queued.SUSPENDED
    queue.dropped("first")


def test_delete_without_force(queue: Queue) -> None:
    queue.fault("slow-create", "careful-n", seconds="2h", count=1)
    queue.ask("careful")
    queue.reach("careful", Queued.PROVISIONING)
    with pytest.raises(exceptions.FailedPrecondition, match="set force"):
        queue.drop("careful", force=False)
    queue.dropped("careful")
    queue.activate("careful")
    with pytest.raises(exceptions.FailedPrecondition, match="ACTIVE"):
        queue.drop("careful", force=False)
    queue.fault("slow-delete", "careful", seconds="1s", count=1)
    deletion = queue.drop("careful")
    assert queue.state("careful") == Queued.DELETING
    with pytest.raises(exceptions.Aborted):
        queue.drop("careful")
    with pytest.raises(exceptions.AlreadyExists):
        queue.ask("careful")
    queue.finish(deletion)
    for state in ("ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"):
        queue.activate("careful")
        queue.fault("set-state", "careful", state=state)
        queue.dropped("careful", force=False)
        assert queue.nodes() == []


def test_delete_while_it_is_being_created(queue: Queue) -> None:
    queue.fault("slow-boot", "mid-*", seconds="2h")
    queue.fault("slow-create", "mid-0", seconds="2h", count=1)
    queue.ask("mid", slices(3))
    wait_for(lambda: queue.nodes() == ["mid-0", "mid-1", "mid-2"])
    queue.dropped("mid")


def test_a_deletion_survives_what_a_rule_does_to_a_node(queue: Queue) -> None:
    queue.activate("shaken")
    queue.fault("set-state", "shaken-n", state="DELETING")
    deletion = queue.drop("shaken")
    queue.fault("set-state", "shaken-n", state="STOPPED")
    queue.finish(deletion)
    assert queue.nodes() == []


def test_reset(queue: Queue) -> None:
    queue.activate("reset")
    with pytest.raises(exceptions.InvalidArgument, match="reset is not supported"):
        queue.tpu.reset_queued_resource(name=f"{ZONE}/queuedResources/reset")
    queue.fault("preempt", "reset-n")
    queue.reach("reset", Queued.SUSPENDED)
    operation = queue.tpu.reset_queued_resource(name=f"{ZONE}/queuedResources/reset")
    assert queue.finish(operation).state.state == Queued.WAITING_FOR_RESOURCES
    queue.reach("reset", Queued.ACTIVE)
    assert queue.get("reset-n").state == State.READY
    queue.dropped("reset")


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("a b", [spec("n")], "queued_resource_id"),
        ("q", [], "needs a node_spec"),
        ("q", [spec("N_1")], "node_id"),
        ("q", [spec("n"), spec("n")], "asked for 2 times"),
        ("q", [slices(1)], "node_count"),
        ("Q_1", [slices(2)], "node_id"),
        ("q", [{**spec("n"), "parent": "projects/p/locations/us-east5-b"}], "parent"),
        ("q", [spec("n", kind="v6e-17")], "could not be found"),
        ("q", [spec("n", labels={"k": "a.b"})], "invalid character"),
        ("q", [spec("n", runtime_version="none")], "runtime_version"),
    ],
)
def test_what_is_refused_at_once(
    queue: Queue, name: str, given: list[dict[str, Any]], text: str
) -> None:
    resource = tpu_v2.QueuedResource(tpu={"node_spec": given})
    with pytest.raises(exceptions.InvalidArgument, match=text):
        queue.tpu.create_queued_resource(
            parent=ZONE, queued_resource=resource, queued_resource_id=name
        )


def test_names_that_are_taken_and_names_that_are_free(queue: Queue) -> None:
    queue.create("taken")
    with pytest.raises(exceptions.AlreadyExists, match="nodes/taken"):
        queue.ask("q", spec("taken"))
    queue.activate("Mixed_1.0~+%", spec("mixed"))
    assert queue.state("Mixed_1.0~+%") == Queued.ACTIVE
    with pytest.raises(exceptions.AlreadyExists):
        queue.begin("mixed")
    queue.dropped("Mixed_1.0~+%")
    queue.delete("taken")


def test_tiers_and_reservations(queue: Queue) -> None:
    queue.activate("spot", spot={})
    assert queue.get("spot-n").scheduling_config.spot
    assert "PREEMPTIBLE: 'true'" in queue.metadata("spot-n", "instance/attributes/tpu-env")
    reservation = f"{ZONE}/reservations/r"
    made = queue.activate("reserved", guaranteed={}, reservation_name=reservation)
    assert (made.reservation_name, "guaranteed" in made) == (reservation, True)
    config = queue.get("reserved-n").scheduling_config
    assert (config.reserved, config.spot) == (True, False)
    with pytest.raises(exceptions.InvalidArgument, match="reservation_name"):
        queue.ask("bad", reservation_name="r")
    queue.dropped("spot")
    queue.dropped("reserved")


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def interval(start: float, end: float) -> interval_pb2.Interval:
    made = interval_pb2.Interval()
    made.start_time.FromDatetime(in_seconds(start))
    made.end_time.FromDatetime(in_seconds(end))
    return made


def test_a_request_whose_time_is_over_fails(queue: Queue) -> None:
    queue.fault("stockout", "until-*")
    policies: list[dict[str, Any]] = [
        {"valid_until_duration": timedelta(milliseconds=200)},
        {"valid_until_time": in_seconds(0.2)},
        {"valid_until_time": in_seconds(-1)},
        {"valid_interval": interval(0.1, 0.3)},
    ]
    for number, policy in enumerate(policies):
        queue.ask(f"until-{number}", queueing_policy=policy)
    for number in range(len(policies)):
        failed = queue.reach(f"until-{number}", Queued.FAILED)
        assert failed.state.failed_data.error.code == 4
        assert failed.state.state_initiator == Initiator.SERVICE
        queue.dropped(f"until-{number}", force=False)


def test_a_request_waits_until_it_is_valid(queue: Queue) -> None:
    later: list[dict[str, Any]] = [
        {"valid_after_duration": timedelta(hours=1)},
        {"valid_after_time": in_seconds(3600)},
        {"valid_interval": interval(3600, 7200)},
    ]
    for number, policy in enumerate(later):
        queue.ask(f"after-{number}", queueing_policy=policy)
        assert queue.state(f"after-{number}") == Queued.ACCEPTED
        queue.dropped(f"after-{number}", force=False)
    soon: list[dict[str, Any]] = [
        {"valid_after_duration": timedelta(milliseconds=200)},
        {"valid_interval": interval(0.2, 3600)},
    ]
    for policy in soon:
        queue.ask("soon", queueing_policy=policy)
        queue.reach("soon", Queued.ACTIVE)
        queue.dropped("soon")
    with pytest.raises(exceptions.InvalidArgument, match="ends before it begins"):
        queue.ask("never", queueing_policy={"valid_interval": interval(10, 5)})


def test_stockout_keeps_it_waiting(queue: Queue) -> None:
    began = time.monotonic()
    queue.fault("stockout", "dry", lasts="400ms")
    queue.ask("dry")
    queue.reach("dry", Queued.ACTIVE)
    assert time.monotonic() - began >= 0.4
    queue.dropped("dry")
    queue.fault("stockout", "dry-n", count=3)  # by the name of a node, and as often as it asks
    queue.ask("dry")
    queue.reach("dry", Queued.ACTIVE)
    queue.dropped("dry")
    with client.arm(queue.endpoint, [{"fault": "stockout"}], ["dry"]):
        queue.ask("dry")
        queue.ask("wet")
        queue.reach("wet", Queued.ACTIVE)
        waiting = queue.queued("dry")
        assert waiting.state.state == Queued.WAITING_FOR_RESOURCES
        assert waiting.state.state_initiator == Initiator.SERVICE
        assert queue.nodes() == ["wet-n"]
    queue.reach("dry", Queued.ACTIVE)
    queue.dropped("dry")
    queue.dropped("wet")


def test_faults_of_the_queue(queue: Queue) -> None:
    queue.fault("queue-wait", "fq", seconds="2h", count=1)
    queue.ask("fq")
    queue.reach("fq", Queued.WAITING_FOR_RESOURCES)
    queue.dropped("fq")
    queue.fault("queue-fail", "fq", code="RESOURCE_EXHAUSTED", message="no reserved capacity")
    queue.ask("fq", slices(2))
    failed = queue.reach("fq", Queued.FAILED)
    assert failed.state.failed_data.error.code == 8
    assert failed.state.failed_data.error.message == "no reserved capacity"
    assert queue.nodes() == []
    queue.dropped("fq", force=False)
    queue.activate("fq")
    queue.fault("suspend", "fq")
    assert queue.state("fq") == Queued.SUSPENDED
    assert queue.nodes() == []
    with pytest.raises(ConfigError, match="cannot be suspended"):
        queue.fault("suspend", "fq")
    with pytest.raises(ConfigError, match=r"no queued resource is named 'fq-n'; there are: .*fq"):
        queue.fault("suspend", "fq-n")
    queue.dropped("fq")
    rules = [{"fault": "suspend", "after": "1ms"}, {"fault": "set-state", "state": "FAILED"}]
    with client.arm(queue.endpoint, rules[:1], ["fq"]):
        queue.ask("fq")
        queue.reach("fq", Queued.SUSPENDED)
        queue.dropped("fq")
    with client.arm(queue.endpoint, rules[1:], ["fq", "fq-n"]):
        queue.ask("fq")
        queue.reach("fq", Queued.FAILED)
        assert queue.get("fq-n").state == State.READY, "a state that no node has is not for it"
    queue.dropped("fq")


def test_a_node_that_fails_or_is_preempted_early_fails_the_request(queue: Queue) -> None:
    queue.fault("operation-error", "early-0", method="CreateNode", code="FAILED_PRECONDITION")
    queue.ask("early", slices(2))
    assert queue.reach("early", Queued.FAILED).state.failed_data.error.code == 9
    assert queue.nodes() == []
    queue.dropped("early")
    queue.fault("slow-create", "early-1", seconds="2h", count=1)
    queue.ask("early", slices(2))
    wait_for(lambda: queue.nodes() == ["early-0", "early-1"])
    queue.fault("preempt", "early-1")
    failed = queue.reach("early", Queued.FAILED)
    assert failed.state.failed_data.error.code == 3
    assert queue.nodes() == ["early-1"]
    queue.dropped("early", force=False)


def test_call_faults_strike_methods_of_queued_resources(queue: Queue) -> None:
    text = "Location us-east5-a is not found or access is unauthorized."
    queue.fault(
        "call-error", "cf", method="CreateQueuedResource", code="PERMISSION_DENIED", message=text
    )
    with pytest.raises(exceptions.PermissionDenied, match="access is unauthorized"):
        queue.ask("cf")
    queue.fault("lost-reply", "cf")  # of a create, whichever
    with pytest.raises(exceptions.ServiceUnavailable):
        queue.ask("cf")
    queue.reach("cf", Queued.ACTIVE)
    queue.fault("unavailable", "cf", method="GetQueuedResource", count=1)
    with pytest.raises(exceptions.ServiceUnavailable):
        queue.queued("cf")
    queue.fault("operation-error", "cf", method="DeleteQueuedResource")
    with pytest.raises(exceptions.InternalServerError):
        queue.dropped("cf")
    assert queue.state("cf") == Queued.ACTIVE
    queue.fault("operation-hangs", "cf", method="DeleteQueuedResource")
    deletion = queue.drop("cf")
    wait_for(lambda: not list(queue.tpu.list_queued_resources(parent=ZONE)))
    assert not deletion.done()
    queue.fault("operation-error", "cf-n", code="ABORTED")  # by the name of its node
    with pytest.raises(exceptions.Aborted):
        queue.finish(queue.ask("cf"))
    with pytest.raises(exceptions.NotFound):
        queue.queued("cf")
    queue.fault("call-error", "cf-1", code="ABORTED")
    with pytest.raises(exceptions.Aborted):
        queue.ask("cf", slices(2))
    rules = [{"fault": "call-error", "method": "*QueuedResource"}]
    with client.arm(queue.endpoint, rules, ["cf"]):
        with pytest.raises(exceptions.InternalServerError):
            queue.ask("cf")
        queue.ask("other")
    queue.dropped("other")


def test_set_state_health_and_symptoms(queue: Queue) -> None:
    queue.activate("shown", spec("shown-n", kind="v6e-16"))
    queue.fault("set-state", "shown-n", state="REPAIRING")
    assert queue.get("shown-n").state == State.REPAIRING
    assert queue.state("shown") == Queued.ACTIVE
    queue.fault("set-state", "shown-n", state="READY")
    queue.fault("set-health", "shown-n", health="TIMEOUT")
    assert queue.get("shown-n").health == tpu_v2.Node.Health.TIMEOUT
    queue.fault("symptom", "shown-n", worker=2, symptom="HBM_OUT_OF_MEMORY", message="full")
    (symptom,) = queue.get("shown-n").symptoms
    assert symptom.symptom_type == tpu_v2.Symptom.SymptomType.HBM_OUT_OF_MEMORY
    assert (symptom.details, symptom.worker_id.endswith("-w-2")) == ("full", True)
    for state in Queued:
        if state:
            queue.fault("set-state", "shown", state=state.name)
            assert queue.state("shown") == state
    with pytest.raises(ConfigError, match="no state of a node"):
        queue.fault("set-state", "shown-n", state="ACTIVE")
    with pytest.raises(ConfigError, match="no state of a queued resource"):
        queue.fault("set-state", "shown", state="READY")
    queue.fault("set-state", "shown", state="FAILED")
    queue.dropped("shown")


def test_wrong_endpoints(queue: Queue) -> None:
    for count in (3, 6):
        queue.fault("wrong-endpoints", "wrong", endpoints=count)
        assert len(queue.create("wrong", "v6e-16").network_endpoints) == count
        assert len({end.ip_address for end in queue.get("wrong").network_endpoints}) == count
        queue.delete("wrong")


def test_quota_counts_whatever_exists_and_each_once(queue: Queue) -> None:
    rule = {"fault": "quota", "limit": 4, "zone": "us-east5-*", "node": "qu-*"}
    queue.create("other")
    with client.arm(queue.endpoint, [rule], []):
        queue.create("qu-preempted")
        queue.fault("preempt", "qu-preempted")
        queue.activate("qu-active")
        queue.activate("qu-suspended")
        queue.fault("suspend", "qu-suspended")
        queue.fault("queue-wait", "qu-waiting", seconds="2h", count=1)
        queue.ask("qu-waiting")
        with pytest.raises(exceptions.ResourceExhausted) as caught:
            queue.create("qu-more")
        text = "Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 4 in zone"
        assert text in str(caught.value)
        (detail,) = caught.value.details
        assert isinstance(detail, error_details_pb2.QuotaFailure)
        assert "exhausted. Limit 4 in zone us-east5-a" in detail.violations[0].description
        with pytest.raises(exceptions.ResourceExhausted, match="TPUV6EPreemptiblePer"):
            queue.ask("qu-more", spot={})
        queue.create("free")
        queue.dropped("qu-suspended")
        with pytest.raises(exceptions.ResourceExhausted):
            queue.ask("qu-more", slices(2))
        queue.create("qu-more")
        queue.dropped("qu-waiting")
        queue.dropped("qu-active")
    for node in ("other", "free", "qu-preempted", "qu-more"):
        queue.delete(node)


def test_create_rate(queue: Queue) -> None:
    before = queue.control("ledger")["calls"]["CreateNode"]
    with client.arm(queue.endpoint, [{"fault": "create-rate", "limit": 0}], ["rate"]):
        with pytest.raises(exceptions.ResourceExhausted, match="CreateNode requests per minute"):
            queue.create("rate")
        queue.create("other")
    queue.create("rate")
    assert queue.control("ledger")["calls"]["CreateNode"] == before + 3
    queue.delete("rate")
    queue.delete("other")


def test_faults_from_the_command_line(queue: Queue) -> None:
    def run(*argv: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "launcher.emulator", "fault", *argv]
        command += ["--endpoint", queue.endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return dict(json.loads(done.stdout))

    assert run("quota", "none-*", "0") == {"armed": "quota"}
    with pytest.raises(exceptions.ResourceExhausted):
        queue.ask("none-1")
    queue.activate("line")
    assert run("set-state", "line-n", "REPAIRING")["state"] == "REPAIRING"
    assert run("suspend", "line")["state"] == "SUSPENDED"
    queue.dropped("line")


def alpha_spec(node_id: str, **fields: Any) -> dict[str, Any]:
    return {"parent": ZONE, "node_id": node_id, "node": node_body(**fields)}


def test_v2alpha1_nodes(queue: Queue) -> None:
    node = tpu_v2alpha1.Node(**node_body(), autocheckpoint_enabled=True)
    request = {"parent": ZONE, "node_id": "al", "node": node, "request_id": "1"}
    operation = queue.alpha.create_node(request=request)
    assert queue.alpha.create_node(request=request).operation.name == operation.operation.name
    made = queue.finish(operation)
    assert isinstance(made, tpu_v2alpha1.Node)
    assert operation.metadata.api_version == "v2alpha1"
    assert made.state.name == "READY"
    got = queue.alpha.get_node(name=f"{ZONE}/nodes/al")
    assert got.api_version == tpu_v2alpha1.Node.ApiVersion.V2_ALPHA1
    assert got.autocheckpoint_enabled
    assert got.accelerator_config.topology == "1x1"
    assert [n.name for n in queue.alpha.list_nodes(parent=ZONE)] == [f"{ZONE}/nodes/al"]
    assert queue.get("al").accelerator_config.topology == "1x1"
    queue.finish(
        queue.alpha.simulate_maintenance_event(request={"name": got.name, "worker_ids": ["0"]})
    )
    assert queue.get("al").state == State.TERMINATED
    with pytest.raises(exceptions.InvalidArgument):
        queue.alpha.simulate_maintenance_event(request={"name": got.name})
    request = {"name": got.name, "request_id": "2"}
    deletion = queue.alpha.delete_node(request=request)
    queue.finish(deletion)
    assert queue.alpha.delete_node(request=request).operation.name == deletion.operation.name
    with pytest.raises(exceptions.NotFound):
        queue.alpha.get_node(name=got.name)


def alpha_request(request_id: str) -> dict[str, Any]:
    """For two slices and a node alone, from a reservation."""
    params = {"node_count": 2, "workload_type": 1}
    many = {"parent": ZONE, "multi_node_params": params, "node": node_body()}
    resource = tpu_v2alpha1.QueuedResource(
        tpu={"node_spec": [many, alpha_spec("al-alone")]},
        guaranteed={"reserved": True},
        reservation_name=f"{ZONE}/reservations/-",
    )
    call = {"parent": ZONE, "queued_resource_id": "al", "request_id": request_id}
    return {**call, "queued_resource": resource}


AL = f"{ZONE}/queuedResources/al"


def test_v2alpha1_queued_resources(queue: Queue) -> None:
    request = alpha_request("a")
    operation = queue.alpha.create_queued_resource(request=request)
    same = queue.alpha.create_queued_resource(request=request)
    assert same.operation.name == operation.operation.name
    assert isinstance(queue.finish(operation), tpu_v2alpha1.QueuedResource)
    queue.reach("al", Queued.ACTIVE)
    got = queue.alpha.get_queued_resource(name=f"{ZONE}/queuedResources/al")
    assert got.guaranteed.reserved
    assert got.reservation_name == f"{ZONE}/reservations/-"
    shown = got.tpu.node_spec[0].multi_node_params
    assert (shown.node_count, shown.workload_type) == (2, 1)
    assert got.tpu.node_spec[1].node_id == "al-alone"
    assert got.state.state == tpu_v2alpha1.QueuedResourceState.State.ACTIVE
    assert list(queue.alpha.list_queued_resources(parent=ZONE)) == [got]
    assert queue.queued("al").tpu.node_spec[0].multislice_params.node_count == 2
    node = queue.alpha.get_node(name=f"{ZONE}/nodes/al-1")
    assert (node.multislice_node, node.scheduling_config.reserved) == (True, True)
    assert node.queued_resource == got.name
    queue.dropped("al")


def test_v2alpha1_resets_and_deletes(queue: Queue) -> None:
    queue.alpha.create_queued_resource(request=alpha_request(""))
    queue.reach("al", Queued.ACTIVE)
    queue.fault("suspend", "al")
    reset = queue.alpha.reset_queued_resource(name=AL)
    assert isinstance(queue.finish(reset), tpu_v2alpha1.QueuedResource)
    queue.reach("al", Queued.ACTIVE)
    with pytest.raises(exceptions.FailedPrecondition):
        queue.alpha.delete_queued_resource(name=AL)
    request = {"name": AL, "force": True, "request_id": "b"}
    deletion = queue.alpha.delete_queued_resource(request=request)
    assert isinstance(queue.finish(deletion), tpu_v2alpha1.QueuedResource)
    again = queue.alpha.delete_queued_resource(request=request)
    assert again.operation.name == deletion.operation.name


def test_v2alpha1_has_preemptible_nodes(queue: Queue) -> None:
    preemptible = tpu_v2alpha1.QueuedResource(
        tpu={"node_spec": [alpha_spec("al-n")]}, best_effort={}
    )
    queue.alpha.create_queued_resource(
        parent=ZONE, queued_resource_id="al", queued_resource=preemptible
    )
    queue.reach("al", Queued.ACTIVE)
    assert "best_effort" in queue.alpha.get_queued_resource(name=AL)
    assert queue.get("al-n").scheduling_config.preemptible
    queue.dropped("al")


def rest_spec(node_id: str, **node: Any) -> dict[str, Any]:
    body = {"acceleratorType": "v6e-1", "runtimeVersion": VERSION, **node}
    return {"parent": ZONE, "nodeId": node_id, "node": body}


def test_rest_nodes(queue: Queue) -> None:
    body = {"acceleratorType": "v6e-1", "runtimeVersion": VERSION, "labels": {"k": "v"}}
    body["schedulingConfig"] = {"provisioningModel": "SPOT"}
    status, operation = queue.http("POST", "nodes?nodeId=re-n&requestId=r-1", body)
    assert status == 200
    assert (
        queue.http("POST", "nodes?nodeId=re-n&requestId=r-1", body)[1]["name"] == operation["name"]
    )
    name = operation["name"].rpartition("/")[2]
    done = wait_for(lambda: (o := queue.http("GET", f"operations/{name}")[1]).get("done") and o)
    assert done["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2alpha1.Node"
    assert done["metadata"]["apiVersion"] == "v2alpha1"
    status, node = queue.http("GET", "nodes/re-n")
    assert status == 200, node
    assert (node["state"], node["apiVersion"], node["labels"]) == ("READY", "V2_ALPHA1", {"k": "v"})
    assert node["schedulingConfig"] == {"provisioningModel": "SPOT", "spot": True}
    assert [n["name"] for n in queue.http("GET", "nodes")[1]["nodes"]] == [node["name"]]
    queue.http("DELETE", "nodes/re-n")
    wait_for(lambda: queue.http("GET", "nodes/re-n")[0] == 404)
    assert queue.http("GET", "nodes") == (200, {})


def test_rest_queued_resources(queue: Queue) -> None:
    resource = {"tpu": {"nodeSpec": [rest_spec("re-n")]}, "spot": {}}
    create = "queuedResources?queuedResourceId=re"
    assert queue.http("POST", create, resource)[0] == 200
    queue.reach("re", Queued.ACTIVE)
    assert queue.get("re-n").scheduling_config.spot
    status, shown = queue.http("GET", "queuedResources/re")
    assert (shown["state"]["state"], shown["spot"]) == ("ACTIVE", {})
    assert queue.http("GET", "queuedResources?pageSize=5")[1] == {"queuedResources": [shown]}
    status, error = queue.http("POST", create, resource)
    assert (status, error["error"]["status"]) == (409, "ALREADY_EXISTS")
    assert queue.http("DELETE", "queuedResources/re")[1]["error"]["status"] == "FAILED_PRECONDITION"
    queue.fault("suspend", "re")
    assert queue.http("POST", "queuedResources/re:reset", {})[0] == 200
    queue.reach("re", Queued.ACTIVE)
    queue.fault("call-error", "re", method="DeleteQueuedResource", code="PERMISSION_DENIED")
    assert queue.http("DELETE", "queuedResources/re?force=true")[0] == 403
    first = queue.http("DELETE", "queuedResources/re?force=true&requestId=r-9")[1]
    wait_for(lambda: queue.http("GET", "queuedResources/re")[0] == 404)
    assert (
        queue.http("DELETE", "queuedResources/re?force=true&requestId=r-9")[1]["name"]
        == (first["name"])
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"provisioningModel": "FLEX_START"}, "run_duration must be set"),
        ({"provisioningModel": "FLEX"}, "provisioning_model"),
        ({"runDuration": {"maxRunDuration": "1h"}}, "run_duration"),
        ({"runDuration": {"maxRunDuration": "-5s"}}, "ends before it begins"),
        ({"runDuration": "60s"}, "run_duration"),
        ({"runDration": {}}, 'Unknown name "runDration"'),
        ({"tpu": {"nodeSpec": [{"nodeId": 1, "parent": ZONE}]}}, "Invalid JSON payload"),
        ({"tpu": {"nodeSpec": {}}}, "no list"),
        ({"tpu": []}, "no object"),
    ],
)
def test_rest_refuses(queue: Queue, changes: dict[str, Any], text: str) -> None:
    body = {"tpu": {"nodeSpec": [rest_spec("n")]}, **changes}
    status, error = queue.http("POST", "queuedResources?queuedResourceId=q", body)
    assert (status, error["error"]["code"]) == (400, 400)
    assert text in error["error"]["message"]


def flex_start(queue: Queue, **run_duration: str) -> None:
    body = {
        "tpu": {"nodeSpec": [rest_spec("fx-0"), rest_spec("fx-1")]},
        "provisioningModel": "FLEX_START",
        "runDuration": run_duration,
    }
    assert queue.http("POST", "queuedResources?queuedResourceId=fx", body)[0] == 200


@pytest.mark.parametrize("kind", ["maxRunDuration", "terminationTime"])
def test_flex_start(queue: Queue, kind: str) -> None:
    end = in_seconds(3600).isoformat().replace("+00:00", "Z")
    run_duration = {kind: "3600s" if kind == "maxRunDuration" else end}
    flex_start(queue, **run_duration)
    queue.reach("fx", Queued.ACTIVE)
    shown = queue.http("GET", "queuedResources/fx")[1]
    assert (shown["provisioningModel"], shown["runDuration"]) == ("FLEX_START", run_duration)
    stamp = queue.http("GET", "nodes/fx-0")[1]["schedulingConfig"]["terminationTimestamp"]
    assert in_seconds(3500) < datetime.fromisoformat(stamp) < in_seconds(3600)
    queue.dropped("fx")


def test_flex_start_ends_in_time(queue: Queue) -> None:
    flex_start(queue, maxRunDuration="0.5s")
    suspended = queue.reach("fx", Queued.SUSPENDED)
    assert suspended.state.state_initiator == Initiator.SERVICE
    assert [queue.get(n).state for n in queue.nodes()] == [State.TERMINATED] * 2
    assert queue.entry("fx-0")["billed_seconds"] >= 0.5
    assert queue.processes() == []
    queue.dropped("fx")
    assert queue.nodes() == []


def test_the_ledger_names_queued_resources_and_counts_calls(queue: Queue) -> None:
    queue.activate("led")
    ledger = queue.control("ledger")
    assert ledger["left"] == [f"{ZONE}/queuedResources/led", f"{ZONE}/nodes/led-n"]
    assert queue.history("led")["state"] == "ACTIVE"
    assert queue.history("led")["accelerator_type"] == "v6e-1"
    before = ledger["calls"]["GetQueuedResource"]
    queue.queued("led")
    queue.alpha.get_queued_resource(name=f"{ZONE}/queuedResources/led")
    queue.http("GET", "queuedResources/led")
    assert queue.control("ledger")["calls"]["GetQueuedResource"] == before + 3
    queue.dropped("led")


def test_an_emulator_stays_up_for_a_queued_resource_and_its_death_ends_it(tmp_path: Path) -> None:
    with client.connect(tmp_path) as attachment:
        queue = Queue(attachment, tmp_path)
        queue.fault("stockout", "kept")
        queue.ask("kept")
        queue.activate("running", spec("running-n", script="sleep 1000"))
        queue.channel.close()
    pid = json.loads((tmp_path / "endpoint.json").read_text())["pid"]
    with client.connect(tmp_path) as attachment:
        queue = Queue(attachment, tmp_path)
        queue.dropped("running")
        queue.channel.close()
    with client.connect(tmp_path) as attachment:
        queue = Queue(attachment, tmp_path)
        assert queue.state("kept") == Queued.WAITING_FOR_RESOURCES
        queue.activate("running", spec("running-n", script="sleep 1000"))
        queue.channel.close()
        assert json.loads((tmp_path / "endpoint.json").read_text())["pid"] == pid
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes(tmp_path))
    with client.connect(tmp_path) as attachment:
        ledger = client.control(attachment.endpoint, {"command": "ledger"})
        assert ledger["left"] == []
        reasons = [row["reason"] for row in ledger["queued_resources"]]
        assert reasons == ["emulator died", "deleted", "emulator died"]
    wait_for(lambda: ended(tmp_path))
