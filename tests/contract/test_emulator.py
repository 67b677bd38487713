"""The emulator, seen through the unmodified Cloud TPU client: what a user of the API sees.

Every test ends by asserting that nothing is left: no node, no host, no process, no temp folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as PollTimeout
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.longrunning import operations_pb2
from google.protobuf import field_mask_pb2

from launcher.emulator import client
from launcher.emulator.machine import guest
from launcher.emulator.machine.host import Host
from launcher.errors import ConfigError, ProvisioningError

ZONE = "projects/p/locations/us-east5-a"
TEMP = Path(tempfile.gettempdir())
State = tpu_v2.Node.State
QUICK = Retry(initial=0.02, multiplier=1.0, predicate=lambda _: False)
DAEMON = """
(setsid bash -c 'trap "" TERM HUP; echo $$ > $HOME/daemon; while :; do sleep 60; done' &)
until [ -s $HOME/daemon ]; do sleep 0.01; done
echo started
"""


def processes(state_dir: Path) -> list[int]:
    """Every live process that a host of that emulator ever started."""
    home = f"HOME={state_dir}/".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if any(line.startswith(home) for line in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
    return value


class Cloud:
    """One emulator and the real client on it, with shorthands for what most tests do."""

    def __init__(self, attachment: client.Attachment, state_dir: Path) -> None:
        self.endpoint = attachment.endpoint
        self.state_dir = state_dir
        self.uids: set[str] = set()
        self.channel = client.open_channel(self.endpoint)
        self.tpu = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=self.channel))

    def begin(self, node_id: str, accelerator_type: str = "v6e-1", **fields: Any) -> Any:
        fields.setdefault("runtime_version", "v2-alpha-tpuv6e")
        script = fields.pop("script", "")
        metadata = {"startup-script": script, **fields.pop("metadata", {})}
        node = tpu_v2.Node(accelerator_type=accelerator_type, metadata=metadata, **fields)
        operation = self.tpu.create_node(parent=ZONE, node_id=node_id, node=node)
        self.uids |= {folder.name for folder in (self.state_dir / "nodes").iterdir()}
        return operation

    def create(self, node_id: str, accelerator_type: str = "v6e-1", **fields: Any) -> tpu_v2.Node:
        return self.finish(self.begin(node_id, accelerator_type, **fields))

    def finish(self, operation: Any) -> Any:
        """`operation.result()`, polled faster than the client's one second."""
        wait_for(lambda: operation.done(retry=QUICK))
        return operation.result(timeout=1)

    def delete(self, node_id: str) -> None:
        self.finish(self.tpu.delete_node(name=f"{ZONE}/nodes/{node_id}"))

    def get(self, node_id: str) -> tpu_v2.Node:
        return self.tpu.get_node(name=f"{ZONE}/nodes/{node_id}")

    def fault(self, fault: str, node: str, **options: Any) -> dict[str, Any]:
        return self.control("fault", fault=fault, node=node, **options)

    def processes(self) -> list[int]:
        return processes(self.state_dir)

    def temp_folders(self) -> list[Path]:
        return [path for uid in self.uids if (path := TEMP / f"tpu-{uid}").exists()]

    def control(self, command: str, **given: Any) -> dict[str, Any]:
        return client.control(self.endpoint, {"command": command, **given})

    def console(self, node: str, worker: int = 0) -> str:
        return str(self.control("console", node=node, worker=worker)["text"])

    def entry(self, node_id: str) -> dict[str, Any]:
        """The node's latest line in the ledger."""
        nodes = self.control("ledger")["nodes"]
        return next(row for row in reversed(nodes) if row["name"] == f"{ZONE}/nodes/{node_id}")

    def metadata(self, node_id: str, path: str, worker: int = 0, **headers: str) -> str:
        hosts = [host for host in self.control("hosts")["hosts"] if host["node"] == node_id]
        return fetch(hosts[worker]["address"], path, **headers)


def fetch(address: str, path: str, **headers: str) -> str:
    request = urllib.request.Request(
        f"http://{address}:7979/computeMetadata/v1/{path}",
        headers=headers or {"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as reply:
        assert reply.headers["Metadata-Flavor"] == "Google"
        return str(reply.read().decode())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    state_dir = tmp_path_factory.mktemp("emulator")
    with client.connect(state_dir) as attachment:
        cloud = Cloud(attachment, state_dir)
        yield cloud
        cloud.channel.close()


@pytest.fixture
def cloud(shared: Cloud) -> Iterator[Cloud]:
    yield shared
    ledger = shared.control("ledger")
    assert (ledger["left"], ledger["hosts"]) == ([], [])
    assert (shared.processes(), shared.temp_folders()) == ([], [])


def test_the_life_of_a_slice(cloud: Cloud) -> None:
    operation = cloud.begin(
        "life",
        "v5p-32",
        runtime_version="v2-alpha-tpuv5",
        script="echo I am $HOSTNAME",
        labels={"run": "r1"},
    )
    assert operation.metadata.target == f"{ZONE}/nodes/life"
    assert (operation.metadata.verb, operation.metadata.api_version) == ("create", "v2")
    assert not operation.operation.done
    made = cloud.finish(operation)
    assert (made.state, made.health) == (State.READY, 0)
    node = cloud.get("life")
    assert node.health == tpu_v2.Node.Health.HEALTHY
    assert node.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V5P
    assert (node.accelerator_config.topology, node.accelerator_type) == ("2x2x4", "v5p-32")
    assert len({end.ip_address for end in node.network_endpoints}) == 4
    assert {end.port for end in node.network_endpoints} == {8470}
    assert node.service_account.email.endswith("-compute@developer.gserviceaccount.com")
    assert node.network_config.subnetwork == "projects/p/regions/us-east5/subnetworks/default"
    assert "scheduling_config" in node
    assert "shielded_instance_config" in node
    assert node.id > 0
    assert (node.api_version, node.labels) == (tpu_v2.Node.ApiVersion.V2, {"run": "r1"})
    for worker in range(4):
        wait_for(lambda w=worker: "exit status 0" in cloud.console("life", w))
        assert f"-w-{worker}\n" in cloud.console("life", worker)
    with pytest.raises(exceptions.AlreadyExists):
        cloud.begin("life", "v5p-32", runtime_version="v2-alpha-tpuv5")
    cloud.delete("life")
    with pytest.raises(exceptions.NotFound):
        cloud.get("life")
    with pytest.raises(exceptions.NotFound):
        cloud.tpu.delete_node(name=f"{ZONE}/nodes/life")
    entry = cloud.entry("life")
    assert (entry["state"], entry["reason"]) == ("DELETED", "deleted")
    assert 0 < entry["billed_seconds"] < 30


def test_lists_come_in_pages_and_over_all_zones(cloud: Cloud) -> None:
    for node_id in ("b", "a", "c"):
        cloud.create(node_id)
    for parent in (ZONE, "projects/p/locations/-"):
        pages = cloud.tpu.list_nodes(request={"parent": parent, "page_size": 1}).pages
        names = [[node.name.rpartition("/")[2] for node in page.nodes] for page in pages]
        assert names == [["a"], ["b"], ["c"]]
    assert not list(cloud.tpu.list_nodes(parent="projects/other/locations/-"))
    with pytest.raises(exceptions.InvalidArgument):
        list(cloud.tpu.list_nodes(request={"parent": ZONE, "page_token": "no token"}))
    for node_id in ("a", "b", "c"):
        cloud.delete(node_id)


@pytest.mark.parametrize(
    ("node_id", "fields", "error", "text"),
    [
        ("My_Run", {}, exceptions.InvalidArgument, "node_id"),
        ("run-", {}, exceptions.InvalidArgument, "node_id"),
        ("a" * 64, {}, exceptions.InvalidArgument, "node_id"),
        ("", {}, exceptions.InvalidArgument, "node_id"),
        ("n", {"accelerator_type": "v6e-17"}, exceptions.InvalidArgument, '"v6e-17", could not'),
        ("n", {"accelerator_type": "v4-8"}, exceptions.InvalidArgument, "zone us-east5-a"),
        ("n", {"accelerator_type": ""}, exceptions.InvalidArgument, "exactly one"),
        ("n", {"runtime_version": "2.4"}, exceptions.InvalidArgument, "runtime_version"),
        (
            "n",
            {"labels": {"test-name": "pt-r1.9"}},
            exceptions.InvalidArgument,
            "invalid character '.' at index 5 for key \"test-name\"",
        ),
        ("n", {"labels": {"Run": "x"}}, exceptions.InvalidArgument, 'key "Run"'),
        ("n", {"labels": {"run": "x" * 64}}, exceptions.InvalidArgument, "longer than 63"),
        ("n", {"description": "x" * 513}, exceptions.InvalidArgument, "description"),
        ("n", {"metadata": {"big": "x" * 300_000}}, exceptions.InvalidArgument, "metadata"),
    ],
)
def test_what_the_api_refuses(
    cloud: Cloud, node_id: str, fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text.replace(".", r"\.")):
        cloud.begin(node_id, **fields)


def test_places_and_catalog(cloud: Cloud) -> None:
    with pytest.raises(exceptions.PermissionDenied, match="or it may not exist"):
        list(cloud.tpu.list_nodes(parent="projects/p/locations/mars-a"))
    with pytest.raises(exceptions.InvalidArgument):
        list(cloud.tpu.list_nodes(parent="p"))
    types = {found.type_: found for found in cloud.tpu.list_accelerator_types(parent=ZONE)}
    assert types["v6e-16"].accelerator_configs[0].topology == "4x4"
    assert "v4-8" not in types
    one = cloud.tpu.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v6e-16")
    assert one == types["v6e-16"]
    versions = {found.version for found in cloud.tpu.list_runtime_versions(parent=ZONE)}
    assert {"v2-alpha-tpuv6e", "tpu-ubuntu2204-base"} <= versions
    assert cloud.tpu.get_runtime_version(name=f"{ZONE}/runtimeVersions/v2-alpha-tpuv5")
    found = cloud.tpu.list_locations(locations_pb2.ListLocationsRequest(name="projects/p"))
    assert "us-east5-a" in {location.location_id for location in found.locations}
    assert cloud.tpu.get_location({"name": ZONE}).location_id == "us-east5-a"
    with pytest.raises(exceptions.MethodNotImplemented):
        cloud.tpu.get_guest_attributes({"name": f"{ZONE}/nodes/any"})


def test_accelerator_config_in_place_of_a_type(cloud: Cloud) -> None:
    config = tpu_v2.AcceleratorConfig(type_="V6E", topology="2x2")
    node = cloud.create("config", "", accelerator_config=config)
    assert node.accelerator_type == "v6e-4"
    cloud.delete("config")


def test_operations_are_listed_cancelled_and_forgotten(cloud: Cloud) -> None:
    operation = cloud.begin("op").operation
    listed = cloud.tpu.list_operations(operations_pb2.ListOperationsRequest(name=ZONE))
    assert operation.name in {found.name for found in listed.operations}
    cloud.tpu.cancel_operation({"name": operation.name})
    polled = cloud.tpu.get_operation({"name": operation.name})
    metadata = tpu_v2.OperationMetadata.pb()()
    polled.metadata.Unpack(metadata)
    assert metadata.cancel_requested
    cloud.tpu.delete_operation({"name": operation.name})
    with pytest.raises(exceptions.NotFound):
        cloud.tpu.get_operation({"name": operation.name})
    cloud.delete("op")


def test_update_stop_and_start(cloud: Cloud) -> None:
    cloud.create("upd", script="echo boot", metadata={"colour": "red"})
    change = tpu_v2.Node(
        name=f"{ZONE}/nodes/upd", labels={"a": "b"}, metadata={"colour": "blue"}, description="d"
    )
    mask = field_mask_pb2.FieldMask(paths=["labels", "metadata"])
    node = cloud.finish(cloud.tpu.update_node(node=change, update_mask=mask))
    assert (dict(node.labels), node.description) == ({"a": "b"}, "")
    assert cloud.metadata("upd", "instance/attributes/colour") == "blue"
    with pytest.raises(exceptions.InvalidArgument, match="update_mask"):
        cloud.tpu.update_node(node=change, update_mask={"paths": ["accelerator_type"]})
    node = cloud.finish(cloud.tpu.stop_node(request={"name": change.name}))
    assert (node.state, cloud.processes()) == (State.STOPPED, [])
    node = cloud.finish(cloud.tpu.start_node(request={"name": change.name}))
    assert node.state == State.READY
    cloud.delete("upd")
    cloud.create("slice", "v6e-16")
    with pytest.raises(exceptions.InvalidArgument, match="more than one host"):
        cloud.tpu.stop_node(request={"name": f"{ZONE}/nodes/slice"})
    cloud.delete("slice")


def test_a_delete_ends_daemons_that_ignore_sigterm(cloud: Cloud) -> None:
    cloud.create("daemon", "v6e-16", script=DAEMON)
    for worker in range(4):
        wait_for(lambda w=worker: "exit status 0" in cloud.console("daemon", w))
    assert len(cloud.processes()) >= 4 * 2
    began = time.monotonic()
    cloud.delete("daemon")
    assert time.monotonic() - began < 3.0


def test_environment_of_the_startup_script(cloud: Cloud) -> None:
    cloud.create("env", "v6e-4", script="env; pwd; python3 -c 'import sys; print(sys.prefix)'")
    wait_for(lambda: "exit status 0" in cloud.console("env"))
    lines = cloud.console("env").splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert environment["JAX_NUM_CPU_DEVICES"] == "4"
    assert environment["LAUNCHER_EMULATED_HOST"] == "env/w0"
    assert environment["GCE_METADATA_HOST"].endswith(":7979")
    assert len(environment["TMPDIR"]) < 25
    assert sys.prefix in lines
    assert environment["HOME"] in lines
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "PYTEST_CURRENT_TEST"} & set(environment)
    cloud.delete("env")


def test_metadata_server(cloud: Cloud) -> None:
    cloud.create("meta", "v6e-16", script="true", metadata={"key": "a\nb  c"})
    attributes = "instance/attributes/"
    assert cloud.metadata("meta", attributes + "key") == "a\nb  c"
    assert cloud.metadata("meta", attributes + "accelerator-type") == "v6e-16"
    assert cloud.metadata("meta", attributes + "agent-worker-number", worker=2) == "2"
    assert cloud.metadata("meta", attributes + "instance-id") == "meta"
    endpoints = cloud.metadata("meta", attributes + "worker-network-endpoints").split(",")
    addresses = [end.ip_address for end in cloud.get("meta").network_endpoints]
    assert [triple.split(":")[2] for triple in endpoints] == addresses
    env = cloud.metadata("meta", attributes + "tpu-env", worker=3)
    assert "WORKER_ID: '3'\n" in env
    assert "HOST_BOUNDS: '2,2,1'\n" in env
    assert "CHIPS_PER_HOST_BOUNDS: '2,2,1'\n" in env
    assert "key\n" in cloud.metadata("meta", attributes)
    token = json.loads(cloud.metadata("meta", "instance/service-accounts/default/token"))
    assert token["token_type"] == "Bearer"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        cloud.metadata("meta", "instance/name", Accept="*/*")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        cloud.metadata("meta", attributes + "no-such-key")
    cloud.delete("meta")


def test_preemption_is_told_first_and_keeps_the_name(cloud: Cloud) -> None:
    cloud.create("spot", script=DAEMON, scheduling_config={"spot": True})
    wait_for(lambda: "exit status 0" in cloud.console("spot"))
    assert cloud.metadata("spot", "instance/preempted") == "FALSE"
    cloud.fault("preempt", "spot", notice="300ms")
    assert cloud.metadata("spot", "instance/preempted?wait_for_change=true&last_etag=0") == "TRUE"
    assert cloud.get("spot").state == State.READY
    wait_for(lambda: cloud.get("spot").state == State.PREEMPTED)
    assert cloud.processes() == []
    billed = cloud.entry("spot")["billed_seconds"]
    with pytest.raises(exceptions.AlreadyExists):
        cloud.begin("spot")
    with pytest.raises(exceptions.InvalidArgument, match="not supported while in state PREEMPTED"):
        cloud.tpu.update_node(node={"name": f"{ZONE}/nodes/spot"}, update_mask={"paths": ["tags"]})
    cloud.delete("spot")
    assert (cloud.entry("spot")["billed_seconds"], cloud.entry("spot")["reason"]) == (
        billed,
        "preempted",
    )


def test_preemption_during_a_create(cloud: Cloud) -> None:
    cloud.fault("slow-create", "early", seconds="60s", count=1)
    operation = cloud.begin("early")
    assert cloud.get("early").state == State.CREATING
    assert not cloud.get("early").network_endpoints
    cloud.fault("preempt", "early")
    with pytest.raises(exceptions.InvalidArgument):
        cloud.finish(operation)
    assert cloud.get("early").state == State.PREEMPTED
    cloud.delete("early")
    assert cloud.entry("early")["billed_seconds"] == 0


def test_kill_freeze_and_thaw_one_host(cloud: Cloud) -> None:
    ticking = "while :; do date +%N >> $HOME/ticks; sleep 0.02; done"
    cloud.create("hosts", "v6e-16", script=ticking)
    hosts = cloud.control("hosts")["hosts"]
    ticks = [Path(host["console"]).with_name("home") / "ticks" for host in hosts]
    wait_for(lambda: all(path.exists() for path in ticks))
    cloud.fault("kill-host", "hosts", worker=3)
    cloud.fault("freeze-host", "hosts", worker=1)
    sizes = [path.stat().st_size for path in ticks]
    wait_for(lambda: ticks[0].stat().st_size > sizes[0] + 30)
    assert [path.stat().st_size for path in ticks][1::2] == sizes[1::2]
    states = [host["state"] for host in cloud.control("hosts")["hosts"]]
    assert states == ["running", "frozen", "running", "off"]
    cloud.fault("thaw-host", "hosts", worker=1)
    wait_for(lambda: ticks[1].stat().st_size > sizes[1])
    cloud.fault("freeze-host", "hosts", worker=1)  # a frozen host can be deleted
    assert cloud.get("hosts").state == State.READY
    with pytest.raises(ConfigError, match="is off"):
        cloud.fault("freeze-host", "hosts", worker=3)
    with pytest.raises(ConfigError, match="workers 0 to 3"):
        cloud.fault("kill-host", "hosts", worker=4)
    cloud.delete("hosts")


def test_a_host_whose_init_is_killed_leaves_nothing(cloud: Cloud) -> None:
    cloud.create("init", script=DAEMON)
    wait_for(lambda: "exit status 0" in cloud.console("init"))
    os.kill(cloud.control("hosts")["hosts"][0]["pid"], signal.SIGKILL)
    wait_for(lambda: not cloud.processes())
    assert cloud.control("hosts")["hosts"][0]["state"] == "off"
    cloud.delete("init")


def test_a_host_that_is_being_switched_off_takes_no_orders(tmp_path: Path) -> None:
    async def ordered() -> None:
        me = guest.Identity("p", "z", "n", "0a0b0c0d", 0, ("127.0.0.1",))
        with socket.socket() as unused:
            host = Host(me, {}, {}, unused, tmp_path, tmp_path / "temp")
            host.boot("")
            ending = asyncio.create_task(host.end())
            await asyncio.sleep(0)  # it has begun
            with pytest.raises(ConfigError, match="is being switched off"):
                await host.freeze()
            await ending

    asyncio.run(ordered())


def test_an_init_that_was_stopped_holds_nothing_up(cloud: Cloud) -> None:
    for node_id in ("stopped-0", "stopped-1"):
        cloud.create(node_id, script=DAEMON)
        wait_for(lambda n=node_id: "exit status 0" in cloud.console(n))
    pids = [host["pid"] for host in cloud.control("hosts")["hosts"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        deleting = pool.submit(cloud.delete, "stopped-1")
        with pytest.raises(ConfigError, match="does not answer within 5 s"):
            cloud.fault("freeze-host", "stopped-0", worker=0)
        deleting.result()
    os.kill(pids[0], signal.SIGCONT)  # the order that was given up is obeyed late
    wait_for(lambda: cloud.control("hosts")["hosts"][0]["state"] == "frozen")
    cloud.fault("thaw-host", "stopped-0", worker=0)
    assert cloud.control("hosts")["hosts"][0]["state"] == "running"
    cloud.delete("stopped-0")


def test_slow_boot_and_never_boots(cloud: Cloud) -> None:
    cloud.fault("slow-boot", "boot", worker=1, seconds="300ms")
    cloud.fault("never-boots", "boot", worker=2)
    cloud.create("boot", "v6e-16", script="echo here")
    wait_for(lambda: all("here" in cloud.console("boot", worker) for worker in (0, 3)))
    assert cloud.console("boot", 1) == ""
    wait_for(lambda: "here" in cloud.console("boot", 1))
    assert cloud.console("boot", 2) == ""
    cloud.delete("boot")


def test_stockout_leaves_no_node(cloud: Cloud) -> None:
    cloud.fault("stockout", "stock*", zone="us-east5-*", count=1)
    operation = cloud.begin("stock")
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
        cloud.finish(operation)
    with pytest.raises(exceptions.NotFound):
        cloud.get("stock")
    assert cloud.entry("stock")["reason"] == "stockout"
    cloud.create("stock")
    cloud.delete("stock")


def test_operations_that_fail_or_hang(cloud: Cloud) -> None:
    cloud.fault("operation-error", "oe", code="FAILED_PRECONDITION", message="no reservation")
    with pytest.raises(exceptions.FailedPrecondition, match="no reservation"):
        cloud.create("oe")
    cloud.fault("operation-hangs", "oe")
    operation = cloud.begin("oe")
    wait_for(lambda: cloud.get("oe").state == State.READY)
    with pytest.raises(PollTimeout):
        operation.result(timeout=0.2)
    cloud.fault("operation-error", "oe", method="DeleteNode")
    with pytest.raises(exceptions.InternalServerError):
        cloud.delete("oe")
    assert cloud.get("oe").state == State.READY
    cloud.delete("oe")


def test_calls_that_fail_and_replies_that_are_lost(cloud: Cloud) -> None:
    cloud.fault("lost-reply", "lost")
    with pytest.raises(exceptions.ServiceUnavailable):
        cloud.begin("lost")
    wait_for(lambda: cloud.get("lost").state == State.READY)
    cloud.fault("unavailable", "lost", lasts="200ms")
    with pytest.raises(exceptions.ServiceUnavailable):
        cloud.get("lost")
    time.sleep(0.25)
    assert cloud.get("lost")
    text = "Quota limit 'TPUV6EPreemptible' has been exceeded."
    cloud.fault("call-error", "quota", code="RESOURCE_EXHAUSTED", message=text)
    with pytest.raises(exceptions.ResourceExhausted, match="Quota limit"):
        cloud.begin("quota")
    cloud.delete("lost")


def test_maintenance_and_repair(cloud: Cloud) -> None:
    cloud.create("maint", script="echo boot")
    wait_for(lambda: "exit status 0" in cloud.console("maint"))
    cloud.fault("repair", "maint")
    wait_for(lambda: cloud.console("maint").count("exit status 0") == 2)
    assert cloud.get("maint").state == State.READY
    cloud.fault("maintenance-event", "maint", notice="200ms")
    assert "TERMINATE" in cloud.metadata("maint", "instance/maintenance-event")
    assert cloud.get("maint").health == tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    wait_for(lambda: cloud.get("maint").state == State.TERMINATED)
    cloud.delete("maint")


def test_a_rule_strikes_after_ready(cloud: Cloud) -> None:
    cloud.fault("preempt", "later-*", after="100ms")
    for node_id, state in (("later-0", State.PREEMPTED), ("later-1", State.READY)):
        cloud.create(node_id)
        time.sleep(0.2)
        wait_for(lambda n=node_id, s=state: cloud.get(n).state == s)
        cloud.delete(node_id)


def test_rules_strike_single_hosts(cloud: Cloud) -> None:
    def states() -> list[str]:
        return [host["state"] for host in cloud.control("hosts")["hosts"]]

    rules = [
        {"fault": "kill-host", "worker": 1},
        {"fault": "kill-host", "worker": 3, "after": "100ms"},
        {"fault": "freeze-host", "worker": 2, "after": "100ms"},
        {"fault": "thaw-host", "worker": 2, "after": "600ms"},
        {"fault": "kill-host", "worker": 4},
    ]
    with client.arm(cloud.endpoint, rules, ["single"]):
        cloud.create("single", "v6e-16")
        wait_for(lambda: states() == ["running", "off", "frozen", "off"])
        wait_for(lambda: states() == ["running", "off", "running", "off"])
    assert cloud.get("single").state == State.READY
    cloud.delete("single")


def test_a_host_fault_needs_its_worker(cloud: Cloud) -> None:
    with pytest.raises(ConfigError, match="worker: kill-host needs it"):
        cloud.fault("kill-host", "any", after="1s")


def test_armed_rules_strike_the_nodes_of_their_client_while_it_is_there(cloud: Cloud) -> None:
    rules = [{"fault": "stockout"}, {"fault": "preempt", "node": "written-*", "after": "1ms"}]
    with client.arm(cloud.endpoint, rules, ["mine-s0"]):
        cloud.create("theirs")
        with pytest.raises(exceptions.ResourceExhausted):
            cloud.create("mine-s0")
        cloud.create("written-0")
        wait_for(lambda: cloud.get("written-0").state == State.PREEMPTED)
    wait_for(lambda: can_create(cloud, "mine-s0"))
    for node_id in ("theirs", "written-0", "mine-s0"):
        cloud.delete(node_id)
    with pytest.raises(ConfigError, match=r"rules\.1\.fault.*\n.*did you mean repair"):
        client.arm(cloud.endpoint, [{"fault": "repair"}, {"fault": "repairs"}], [])


def can_create(cloud: Cloud, node_id: str) -> bool:
    try:
        cloud.create(node_id)
    except exceptions.GoogleAPICallError:
        return False
    return True


def test_the_rules_of_a_client_that_is_killed_are_gone(cloud: Cloud) -> None:
    code = (
        "import sys; from launcher.emulator import client\n"
        "late = {'fault': 'preempt', 'node': 'k-late', 'after': '600ms'}\n"
        "rules = [{'fault': 'stockout'}, late]\n"
        "armed = client.arm(sys.argv[1], rules, ['k-mine']); print(1, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, cloud.endpoint]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as armer:
        assert armer.stdout
        assert armer.stdout.readline() == b"1\n"
        assert not can_create(cloud, "k-mine")
        cloud.create("k-late")
        armer.kill()
    wait_for(lambda: can_create(cloud, "k-mine"))
    time.sleep(0.7)
    assert cloud.get("k-late").state == State.READY, "what waited for its time is dropped"
    cloud.delete("k-mine")
    cloud.delete("k-late")


def test_a_deed_that_takes_time_is_not_waited_for(cloud: Cloud) -> None:
    cloud.create("long")
    began = time.monotonic()
    assert cloud.fault("repair", "long", seconds="2h")["state"] == "REPAIRING"
    assert time.monotonic() - began < 2.0
    cloud.delete("long")


def test_a_delete_in_the_middle_of_things(cloud: Cloud) -> None:
    cloud.fault("slow-create", "mid", seconds="60s", count=1)
    cloud.fault("slow-delete", "mid", seconds="300ms", count=1)
    creating = cloud.begin("mid")
    deleting = cloud.tpu.delete_node(name=f"{ZONE}/nodes/mid")
    assert cloud.get("mid").state == State.DELETING
    with pytest.raises(exceptions.Aborted, match="unable to queue the operation"):
        cloud.tpu.delete_node(name=f"{ZONE}/nodes/mid")
    with pytest.raises(exceptions.AlreadyExists):
        cloud.begin("mid")
    with pytest.raises(exceptions.Aborted):
        cloud.finish(creating)
    cloud.finish(deleting)


def test_command_line(cloud: Cloud) -> None:
    cloud.create("cli")

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launcher.emulator", *argv, "--endpoint", cloud.endpoint]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert json.loads(run("fault", "kill-host", "cli", "0").stdout)["state"] == "READY"
    first = [sys.executable, "-m", "launcher.emulator", "fault", "--endpoint", cloud.endpoint]
    struck = subprocess.run([*first, "repair", "cli"], capture_output=True, timeout=30, check=True)
    assert json.loads(struck.stdout)["struck"] == f"{ZONE}/nodes/cli"
    bad = run("fault", "preempt", "cli", "--after", "3")
    assert (bad.returncode, "after: '3' is no duration" in bad.stderr) == (2, True)
    unknown = run("fault", "preempt", "nobody")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith(
        "emulator: ConfigError\n  • no nodes are named 'nobody'; there are:"
    )
    assert "cli" in unknown.stderr
    assert run("fault", "explode", "cli").returncode == 2
    ledger = json.loads(run("ledger").stdout)
    assert ledger["left"] == [f"{ZONE}/nodes/cli"]
    cloud.delete("cli")


def test_the_ledger_holds_no_metadata(cloud: Cloud) -> None:
    cloud.create("secret", metadata={"token": "canary-8213"})
    assert "canary" not in json.dumps(cloud.control("ledger"))
    cloud.delete("secret")


def ended(state_dir: Path) -> bool:
    return not client.is_alive(state_dir) and client.read_endpoint(state_dir) is None


def test_it_ends_when_the_last_client_leaves_and_nothing_is_left(tmp_path: Path) -> None:
    first = client.connect(tmp_path)
    second = client.connect(tmp_path)
    assert first.endpoint == second.endpoint
    cloud = Cloud(first, tmp_path)
    cloud.create("kept", script=DAEMON)
    first.close()
    second.close()
    time.sleep(0.5)
    assert client.is_alive(tmp_path), "it survives its clients while a node is left"
    with client.connect(tmp_path) as third:
        assert third.endpoint == first.endpoint
        cloud.delete("kept")
        cloud.channel.close()
        left = time.monotonic()
    wait_for(lambda: ended(tmp_path))
    assert time.monotonic() - left < 3.0
    command = [sys.executable, "-m", "launcher.emulator", "ledger", "--state-dir", str(tmp_path)]
    ledger = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [node["reason"] for node in ledger["nodes"]] == ["deleted"]
    assert (ledger["left"], processes(tmp_path)) == ([], [])


def test_a_killed_emulator_leaves_nothing(tmp_path: Path) -> None:
    with client.connect(tmp_path) as attachment:
        cloud = Cloud(attachment, tmp_path)
        cloud.create("doomed", "v6e-16", script=DAEMON)
        wait_for(lambda: all("exit status 0" in cloud.console("doomed", w) for w in range(4)))
        cloud.channel.close()
        pid = json.loads((tmp_path / "endpoint.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
    assert len(cloud.temp_folders()) == 1
    wait_for(lambda: not cloud.processes() and not cloud.temp_folders())
    with pytest.raises(ProvisioningError):
        client.attach(attachment.endpoint)
    with client.connect(tmp_path) as attachment:
        ledger = client.control(attachment.endpoint, {"command": "ledger"})
        assert [node["reason"] for node in ledger["nodes"]] == ["emulator died"]
        assert ledger["left"] == []
        assert not list((tmp_path / "nodes").iterdir())
    wait_for(lambda: ended(tmp_path))


def test_sigterm_ends_the_hosts_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launcher.emulator", "serve", "--state-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout
        told = json.loads(server.stdout.readline())
        assert told == json.loads((tmp_path / "endpoint.json").read_text())
        with client.attach(told["endpoint"]) as attachment:
            cloud = Cloud(attachment, tmp_path)
            cloud.create("term", script=DAEMON)
            cloud.channel.close()
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
    assert processes(tmp_path) == []
    assert ended(tmp_path)


def test_rules_file_and_a_bad_one(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {fault: stockout, zone: us-east5-*}\n- {fault: slow-boot, seconds: 5m}\n")
    options = ("--rules", str(rules))
    with client.connect(tmp_path / "a", options=options) as attachment:
        cloud = Cloud(attachment, tmp_path / "a")
        with pytest.raises(exceptions.ResourceExhausted):
            cloud.create("ruled")
        cloud.channel.close()
    rules.write_text("- {fault: stokout}\n")
    with pytest.raises(ProvisioningError, match="did you mean stockout"):
        client.connect(tmp_path / "b", options=options)
    wait_for(lambda: ended(tmp_path / "a"))


def test_many_processes_start_one_emulator(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from launcher.emulator import client\n"
        "a = client.connect(pathlib.Path(sys.argv[1])); print(a.endpoint, flush=True)\n"
        "sys.stdin.read(); a.close()"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    starters = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    lines = {starter.stdout.readline() for starter in starters if starter.stdout}
    for starter in starters:
        starter.communicate(timeout=10)
    assert len(lines) == 1
    wait_for(lambda: ended(tmp_path))
