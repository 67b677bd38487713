"""The emulator's REST front, seen through google-cloud-compute and google-auth's own session.

Every test ends by asserting that nothing is left: no VM, no process, no folder.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import TimeoutError as PollTimeout
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.future.polling import DEFAULT_POLLING
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import compute_v1, tpu_v2
from google.cloud.compute_v1.services.instances.transports import InstancesRestTransport
from google.cloud.compute_v1.services.machine_types.transports import MachineTypesRestTransport
from google.cloud.compute_v1.services.zone_operations.transports import ZoneOperationsRestTransport
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from launcher.emulator import client
from launcher.emulator.tpu.node import temp_folder
from launcher.errors import ConfigError
from launcher.providers.compute import firewalls_client, instances_client
from tests.contract.test_emulator import fetch, processes, wait_for

PROJECT, ZONE = "p", "us-east5-a"
QUICK: dict[str, Any] = {"timeout": 30, "polling": DEFAULT_POLLING.with_delay(0.02, 1.0, 1.0)}
SCOPE = f"projects/{PROJECT}/zones/{ZONE}"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
CREDENTIALS = """
import google.auth.compute_engine
from google.auth.transport.requests import Request

found = google.auth.compute_engine.Credentials()
for _ in range(2):  # the second time it asks by the account's address
    found.refresh(Request())
print("account", found.service_account_email, found.token, found._scopes, flush=True)
"""


def instance(name: str, script: str = "", **fields: Any) -> compute_v1.Instance:
    """The request of the coordinator's VM."""
    items = [compute_v1.Items(key="startup-script", value=script)] if script else []
    body: dict[str, Any] = {
        "name": name,
        "machine_type": f"zones/{ZONE}/machineTypes/n1-standard-4",
        "disks": [
            compute_v1.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute_v1.AttachedDiskInitializeParams(
                    source_image=IMAGE, disk_size_gb=200
                ),
            )
        ],
        "network_interfaces": [compute_v1.NetworkInterface(network="global/networks/default")],
        "metadata": compute_v1.Metadata(items=items),
        **fields,
    }
    return compute_v1.Instance(body)


class Cloud:
    """One emulator and the real clients on it."""

    def __init__(self, attachment: client.Attachment, state_dir: Path) -> None:
        self.endpoint, self.rest = attachment.endpoint, attachment.rest
        self.state_dir = state_dir
        self.instances = instances_client(self.rest)
        self.firewalls = firewalls_client(self.rest)
        self.session = AuthorizedSession(AnonymousCredentials())
        self.session.trust_env = False

    def insert(self, name: str, script: str = "", **fields: Any) -> compute_v1.Instance:
        self.begin(name, script, **fields).result(**QUICK)
        return self.get(name)

    def begin(self, name: str, script: str = "", **fields: Any) -> Any:
        return self.instances.insert(
            project=PROJECT, zone=ZONE, instance_resource=instance(name, script, **fields)
        )

    def get(self, name: str) -> compute_v1.Instance:
        return self.instances.get(project=PROJECT, zone=ZONE, instance=name)

    def delete(self, name: str) -> None:
        self.instances.delete(project=PROJECT, zone=ZONE, instance=name).result(**QUICK)

    def serial(self, name: str, start: int = 0) -> compute_v1.SerialPortOutput:
        request = {"project": PROJECT, "zone": ZONE, "instance": name, "start": start}
        return self.instances.get_serial_port_output(request=request)

    def await_line(self, name: str, text: str) -> str:
        """The console log once it holds the text."""
        return str(wait_for(lambda: text in (log := self.serial(name).contents) and log))

    def call(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """The status and the JSON of one request."""
        reply = self.session.request(method, self.rest + path, json=body, params=query, timeout=30)
        return reply.status_code, reply.json()

    def fault(self, fault: str, node: str | None = None, **options: Any) -> dict[str, Any]:
        given = {**options, **({"node": node} if node else {})}
        return self.control("fault", fault=fault, **given)

    def control(self, command: str, **given: Any) -> dict[str, Any]:
        return client.control(self.endpoint, {"command": command, **given})

    def entry(self, name: str) -> dict[str, Any]:
        """The VM's latest line in the ledger."""
        rows = self.control("ledger")["instances"]
        return next(row for row in reversed(rows) if row["name"] == f"{SCOPE}/instances/{name}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    state_dir = tmp_path_factory.mktemp("emulator")
    with client.connect(state_dir) as attachment:
        yield Cloud(attachment, state_dir)
    wait_for(lambda: not client.is_alive(state_dir))


@pytest.fixture
def cloud(shared: Cloud) -> Iterator[Cloud]:
    """The shared emulator; after the test, nothing of it may be left."""
    yield shared
    for vm in shared.instances.list(project=PROJECT, zone=ZONE):
        shared.delete(vm.name)
    found = shared.control("ledger")
    assert (found["left"], found["hosts"]) == ([], [])
    assert processes(shared.state_dir) == []
    assert list((shared.state_dir / "nodes").iterdir()) == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cloud]:
    """An emulator of its own, for rules that hold for as long as it lives."""
    with client.connect(tmp_path) as attachment:
        yield Cloud(attachment, tmp_path)
    wait_for(lambda: not client.is_alive(tmp_path))
    assert processes(tmp_path) == []


def test_a_vm_runs_its_startup_script_and_is_what_was_asked_for(cloud: Cloud) -> None:
    vm = cloud.insert(
        "coord",
        'echo "I am $HOSTNAME at $PWD with $(ls $TMPDIR | wc -l) files"',
        labels={"run": "r1"},
        tags=compute_v1.Tags(items=["ray-head"]),
        service_accounts=[compute_v1.ServiceAccount(email="default", scopes=["a", "b"])],
    )
    log = cloud.await_line("coord", "exit status")
    assert "I am coord at " in log
    assert "startup-script exit status 0" in log
    assert vm.status == "RUNNING"
    assert vm.machine_type.endswith(f"compute/v1/{SCOPE}/machineTypes/n1-standard-4")
    assert vm.zone.endswith(SCOPE)
    assert dict(vm.labels) == {"run": "r1"}
    assert list(vm.tags.items) == ["ray-head"]
    assert vm.service_accounts[0].email.endswith("-compute@developer.gserviceaccount.com")
    assert list(vm.service_accounts[0].scopes) == ["a", "b"]
    assert (vm.disks[0].boot, vm.disks[0].disk_size_gb) == (True, 200)
    assert vm.network_interfaces[0].network_i_p.startswith("127.0.")
    assert not vm.network_interfaces[0].access_configs
    assert vm.metadata.fingerprint
    assert vm.label_fingerprint
    assert vm.last_start_timestamp >= vm.creation_timestamp


def test_only_who_asks_gets_an_external_address(cloud: Cloud) -> None:
    nat = compute_v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")
    interface = compute_v1.NetworkInterface(network="global/networks/n", access_configs=[nat])
    vm = cloud.insert("nat", network_interfaces=[interface])
    shown = vm.network_interfaces[0]
    assert shown.network.endswith("projects/p/global/networks/n")
    assert shown.access_configs[0].nat_i_p == shown.network_i_p
    path = "instance/network-interfaces/0/access-configs/0/external-ip"
    assert fetch(shown.network_i_p, path) == shown.network_i_p


def test_operations_are_polled_where_the_client_is_aimed(cloud: Cloud) -> None:
    """A client made without the helper asks Google itself for its operations."""
    transport = InstancesRestTransport(host=cloud.rest, credentials=AnonymousCredentials())
    naive = compute_v1.InstancesClient(transport=transport)
    assert "googleapis.com" in naive.transport._zone_operations_client.transport._host
    for made, name in (
        (instances_client(cloud.rest), "_zone_operations_client"),
        (firewalls_client(cloud.rest), "_global_operations_client"),
    ):
        assert getattr(made.transport, name).transport._host == cloud.rest
    operation = cloud.begin("polled")
    operation.result(**QUICK)
    assert operation.done()
    assert operation.status == compute_v1.Operation.Status.DONE


def test_operations_are_got_waited_for_and_listed(cloud: Cloud) -> None:
    operations = compute_v1.ZoneOperationsClient(
        transport=ZoneOperationsRestTransport(host=cloud.rest, credentials=AnonymousCredentials())
    )
    name = cloud.begin("waited").name
    place = {"project": PROJECT, "zone": ZONE}
    found = operations.wait(**place, operation=name)
    assert (found.status, found.progress) == (compute_v1.Operation.Status.DONE, 100)
    assert (found.operation_type, found.target_link.split("/")[-1]) == ("insert", "waited")
    assert operations.get(**place, operation=name).end_time == found.end_time
    assert name in [one.name for one in operations.list(**place)]
    with pytest.raises(exceptions.NotFound):
        operations.get(**place, operation="operation-none")


def test_the_statuses_of_a_vm(cloud: Cloud) -> None:
    """PROVISIONING, RUNNING, TERMINATED, RUNNING again with its script, gone; billed if RUNNING."""
    cloud.fault("slow-create", "life", seconds="200ms", count=1)
    operation = cloud.begin("life", "echo boot >> $HOME/boots; cat $HOME/boots | wc -l")
    assert cloud.get("life").status == "PROVISIONING"
    operation.result(**QUICK)
    assert cloud.get("life").status == "RUNNING"
    cloud.await_line("life", "exit status 0")
    cloud.instances.stop(project=PROJECT, zone=ZONE, instance="life").result(**QUICK)
    assert cloud.get("life").status == "TERMINATED"
    assert processes(cloud.state_dir) == []
    billed = cloud.entry("life")["billed_seconds"]
    assert cloud.entry("life")["billing_since"] is None
    cloud.instances.stop(project=PROJECT, zone=ZONE, instance="life").result(**QUICK)
    first = cloud.get("life").last_start_timestamp
    cloud.instances.start(project=PROJECT, zone=ZONE, instance="life").result(**QUICK)
    assert cloud.get("life").last_start_timestamp > first
    wait_for(lambda: cloud.serial("life").contents.count("exit status 0") == 2)
    assert "\n2\n" in cloud.serial("life").contents
    cloud.delete("life")
    with pytest.raises(exceptions.NotFound, match=f"{SCOPE}/instances/life' was not found"):
        cloud.get("life")
    entry = cloud.entry("life")
    assert (entry["state"], entry["machine_type"]) == ("DELETED", "n1-standard-4")
    assert entry["billed_seconds"] > billed > 0


def test_serial_output_goes_on_where_it_was_left(cloud: Cloud) -> None:
    cloud.insert("serial", "echo one; until [ -e $HOME/go ]; do sleep 0.01; done; echo two")
    cloud.await_line("serial", "one\n")
    first = cloud.serial("serial")
    home = next((cloud.state_dir / "nodes").iterdir()) / "home"
    (home / "go").touch()
    cloud.await_line("serial", "two")
    assert cloud.serial("serial", first.next_).contents.startswith("two\n")


def test_metadata_serves_google_auth(cloud: Cloud) -> None:
    account = compute_v1.ServiceAccount(email="a@p.iam.gserviceaccount.com", scopes=["s1", "s2"])
    script = f"python3 - <<'END'\n{CREDENTIALS}END\necho end"
    vm = cloud.insert("auth", script, service_accounts=[account])
    log = cloud.await_line("auth", "end\n")
    assert "account a@p.iam.gserviceaccount.com emulated ['s1', 's2']" in log
    address = vm.network_interfaces[0].network_i_p
    assert fetch(address, "instance/name") == "auth"
    assert fetch(address, "instance/zone").endswith(f"/zones/{ZONE}")
    assert fetch(address, "instance/id") == str(vm.id)
    assert fetch(address, "project/project-id") == PROJECT
    assert fetch(address, "instance/attributes/startup-script") == script
    path = "instance/service-accounts/default/?recursive=true"
    shown = {"aliases": ["default"], "email": account.email, "scopes": ["s1", "s2"]}
    assert json.loads(fetch(address, path)) == shown


def test_metadata_and_labels_change_under_their_fingerprints(cloud: Cloud) -> None:
    vm = cloud.insert("changed", labels={"a": "1"})
    place = {"project": PROJECT, "zone": ZONE, "instance": "changed"}
    items = [compute_v1.Items(key="stage", value="two")]
    new = compute_v1.Metadata(items=items, fingerprint=vm.metadata.fingerprint)
    cloud.instances.set_metadata(**place, metadata_resource=new).result(**QUICK)
    address = vm.network_interfaces[0].network_i_p
    assert fetch(address, "instance/attributes/stage") == "two"
    with pytest.raises(exceptions.PreconditionFailed, match="fingerprint"):
        cloud.instances.set_metadata(**place, metadata_resource=new)
    labels = compute_v1.InstancesSetLabelsRequest(
        labels={"b": "2"}, label_fingerprint=vm.label_fingerprint
    )
    request = {"instances_set_labels_request_resource": labels}
    cloud.instances.set_labels(**place, **request).result(**QUICK)
    assert dict(cloud.get("changed").labels) == {"b": "2"}
    with pytest.raises(exceptions.PreconditionFailed, match="fingerprint"):
        cloud.instances.set_labels(**place, **request)


def test_lists_pages_and_filters(cloud: Cloud) -> None:
    for name, run in (("l1", "a"), ("l2", "b"), ("l3", "a")):
        cloud.insert(name, labels={"run": run})

    def names(**query: Any) -> list[str]:
        request = compute_v1.ListInstancesRequest(project=PROJECT, zone=ZONE, **query)
        return [vm.name for vm in cloud.instances.list(request=request)]

    assert names() == ["l1", "l2", "l3"]
    assert names(max_results=1) == ["l1", "l2", "l3"]
    assert names(filter="labels.run=a") == ["l1", "l3"]
    assert names(filter='(labels.run = "a") AND (name != l1)') == ["l3"]
    assert names(filter="labels.none:*") == []
    with pytest.raises(exceptions.BadRequest, match="filter"):
        names(filter="what?")
    request = compute_v1.AggregatedListInstancesRequest(project=PROJECT, filter="labels.run=b")
    zones = {key: list(found.instances) for key, found in cloud.instances.aggregated_list(request)}
    assert [vm.name for vm in zones[f"zones/{ZONE}"]] == ["l2"]
    assert zones["zones/us-central1-f"] == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "Bad_Name"}, "resource.name"),
        ({"machine_type": f"zones/{ZONE}/machineTypes/n1-standard-3"}, "resource.machineType"),
        ({"machine_type": "zones/us-east1-b/machineTypes/n1-standard-1"}, "resource.machineType"),
        ({"disks": []}, "resource.disks"),
        ({"network_interfaces": []}, "resource.networkInterfaces"),
        ({"labels": {"run": "R1"}}, "resource.labels"),
    ],
)
def test_bad_requests_say_which_field(cloud: Cloud, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=f"Invalid value for field '{field}"):
        cloud.begin(**{"name": "bad", **fields})


def test_errors_of_calls(cloud: Cloud) -> None:
    with pytest.raises(exceptions.BadRequest, match="Unknown zone"):
        cloud.instances.get(project=PROJECT, zone="moon-a", instance="x")
    with pytest.raises(exceptions.NotFound):
        cloud.instances.delete(project=PROJECT, zone=ZONE, instance="none")
    cloud.insert("twice")
    with pytest.raises(exceptions.Conflict, match="already exists") as caught:
        cloud.begin("twice")
    assert caught.value.errors[0]["reason"] == "alreadyExists"
    again = instance("thrice")
    request = {"project": PROJECT, "zone": ZONE, "instance_resource": again}
    request_id = str(uuid.uuid4())
    names = [
        cloud.instances.insert(request={**request, "request_id": request_id}).name for _ in "12"
    ]
    assert names[0] == names[1]


def test_machine_types(cloud: Cloud) -> None:
    types = compute_v1.MachineTypesClient(
        transport=MachineTypesRestTransport(host=cloud.rest, credentials=AnonymousCredentials())
    )
    place = {"project": PROJECT, "zone": ZONE}
    found = types.get(**place, machine_type="n1-standard-4")
    assert (found.guest_cpus, found.memory_mb) == (4, 15360)
    assert {"e2-micro", "n2-standard-128"} <= {one.name for one in types.list(**place)}
    with pytest.raises(exceptions.NotFound):
        types.get(**place, machine_type="n1-standard-3")


def test_firewalls(cloud: Cloud) -> None:
    allowed = compute_v1.Allowed(I_p_protocol="tcp", ports=["6379", "10000-19999"])
    rule = compute_v1.Firewall(
        name="ray", allowed=[allowed], source_tags=["ray"], target_tags=["ray-head"]
    )
    insert = {"project": PROJECT, "firewall_resource": rule}
    cloud.firewalls.insert(**insert).result(**QUICK)
    found = cloud.firewalls.get(project=PROJECT, firewall="ray")
    assert list(found.allowed[0].ports) == ["6379", "10000-19999"]
    assert (found.direction, found.priority) == ("INGRESS", 1000)
    assert found.network.endswith("projects/p/global/networks/default")
    assert [one.name for one in cloud.firewalls.list(project=PROJECT)] == ["ray"]
    with pytest.raises(exceptions.Conflict):
        cloud.firewalls.insert(**insert)
    cloud.firewalls.delete(project=PROJECT, firewall="ray").result(**QUICK)
    with pytest.raises(exceptions.NotFound):
        cloud.firewalls.get(project=PROJECT, firewall="ray")
    empty = compute_v1.Firewall(name="empty")
    with pytest.raises(exceptions.BadRequest, match="allowed"):
        cloud.firewalls.insert(project=PROJECT, firewall_resource=empty)


def test_faults_of_calls_and_operations(own: Cloud) -> None:
    own.fault(
        "call-error", method="instances.insert", code="RESOURCE_EXHAUSTED", message="Quota", count=1
    )
    with pytest.raises(exceptions.Forbidden, match="Quota") as caught:
        own.begin("f1")
    assert caught.value.errors[0]["reason"] == "quotaExceeded"
    own.fault("call-error", "f1", method="instances.*", code="PERMISSION_DENIED", count=1)
    with pytest.raises(exceptions.Forbidden):
        own.begin("f1")
    own.fault("lost-reply", method="instances.insert", count=1)
    with pytest.raises(exceptions.ServiceUnavailable):
        own.begin("f1")
    wait_for(lambda: own.get("f1").status == "RUNNING")
    own.fault("unavailable", method="instances.get", count=1)
    status, body = own.call("GET", f"/compute/v1/{SCOPE}/instances/f1")
    assert (status, body["error"]["status"]) == (503, "UNAVAILABLE")
    own.fault("stockout", "f2", count=1)
    with pytest.raises(exceptions.ServiceUnavailable) as stockout:
        own.begin("f2").result(**QUICK)
    assert stockout.value.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    with pytest.raises(exceptions.NotFound):
        own.get("f2")
    own.fault("operation-error", method="instances.delete", code="INTERNAL", count=1)
    with pytest.raises(exceptions.InternalServerError):
        own.delete("f1")
    assert own.get("f1").status == "RUNNING"
    own.fault("operation-hangs", method="instances.insert", count=1)
    hanging = own.begin("f3")
    wait_for(lambda: own.get("f3").status == "RUNNING")
    with pytest.raises(PollTimeout):
        hanging.result(timeout=0.1)
    assert own.control("ledger")["calls"]["instances.insert"] == 5
    own.delete("f1")
    own.delete("f3")


def test_a_vm_is_struck_by_boot_faults_that_name_it_alone(own: Cloud) -> None:
    own.fault("never-boots")
    own.fault("stockout")
    own.fault("never-boots", "mute")
    own.insert("loud", "echo here")
    own.await_line("loud", "exit status 0")
    own.insert("mute", "echo here")
    assert own.get("mute").status == "RUNNING"
    assert own.serial("mute").contents == ""
    own.fault("slow-boot", "late", seconds="100ms")
    own.insert("late", "echo here")
    own.await_line("late", "here")
    for name in ("loud", "mute", "late"):
        own.delete(name)


def test_a_crashed_vm_comes_back_or_stays_off(cloud: Cloud) -> None:
    script = "echo $$ > $HOME/pid; echo up; sleep 600"
    off = compute_v1.Scheduling(automatic_restart=False)
    cloud.insert("back", script)
    cloud.insert("gone", script, scheduling=off)
    for name in ("back", "gone"):
        cloud.await_line(name, "up\n")
        cloud.fault("kill-vm", name)
    assert cloud.get("gone").status == "TERMINATED"
    assert cloud.entry("gone")["reason"] == "crashed"
    wait_for(lambda: cloud.serial("back").contents.count("up\n") == 2)
    assert cloud.get("back").status == "RUNNING"
    with pytest.raises(ConfigError, match="TERMINATED, not RUNNING"):
        cloud.fault("kill-vm", "gone")
    with pytest.raises(ConfigError, match="no VM is named 'none'"):
        cloud.fault("kill-vm", "none")
    cloud.fault("kill-vm", "later", after="100ms")
    cloud.insert("later", script, scheduling=off)
    wait_for(lambda: cloud.get("later").status == "TERMINATED")


def test_a_spot_vm_is_preempted(cloud: Cloud) -> None:
    vm = cloud.insert(
        "spot", "sleep 600", scheduling=compute_v1.Scheduling(provisioning_model="SPOT")
    )
    assert (vm.scheduling.preemptible, vm.scheduling.automatic_restart) == (True, False)
    address = vm.network_interfaces[0].network_i_p
    assert fetch(address, "instance/preempted") == "FALSE"
    cloud.fault("preempt", "spot", notice="300ms")
    assert fetch(address, "instance/preempted") == "TRUE"
    wait_for(lambda: cloud.get("spot").status == "TERMINATED")
    assert processes(cloud.state_dir) == []


def test_commands_know_vms(cloud: Cloud) -> None:
    vm = cloud.insert("seen", "echo hello")
    cloud.await_line("seen", "exit status 0")
    (host,) = cloud.control("hosts")["hosts"]
    assert (host["node"], host["address"]) == ("seen", vm.network_interfaces[0].network_i_p)
    assert "hello" in cloud.control("console", node="seen")["text"]
    cloud.fault("freeze-host", "seen", worker=0)
    assert cloud.control("hosts")["hosts"][0]["state"] == "frozen"
    cloud.delete("seen")


def test_delete_takes_every_process(cloud: Cloud) -> None:
    cloud.insert("daemon", "setsid bash -c 'trap \"\" TERM; sleep 600' & echo up")
    cloud.await_line("daemon", "exit status 0")
    (folder,) = (cloud.state_dir / "nodes").iterdir()
    assert processes(cloud.state_dir)
    assert temp_folder(folder.name).exists()
    cloud.delete("daemon")
    assert processes(cloud.state_dir) == []
    assert not temp_folder(folder.name).exists()


def test_nothing_outlives_an_emulator_that_is_killed(tmp_path: Path) -> None:
    with client.connect(tmp_path) as attachment:
        cloud = Cloud(attachment, tmp_path)
        cloud.insert("orphan", "setsid sleep 600 & echo up")
        cloud.await_line("orphan", "exit status 0")
        pid = json.loads((tmp_path / "endpoint.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes(tmp_path))
    with client.connect(tmp_path) as attachment:
        found = Cloud(attachment, tmp_path).control("ledger")
        assert found["left"] == []
        assert found["instances"][0]["reason"] == "emulator died"
        assert not list((tmp_path / "nodes").iterdir())


def test_an_emulator_stays_while_a_vm_exists(tmp_path: Path) -> None:
    argv = ["serve", "--state-dir", str(tmp_path), "--idle-timeout", "1s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.emulator", *argv], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout
        told = json.loads(process.stdout.readline())
        assert told["rest"] == client.rest_endpoint(tmp_path)
        with client.attach(told["endpoint"]) as attachment:
            cloud = Cloud(attachment, tmp_path)
            assert cloud.rest == told["rest"]
            cloud.insert("keeps")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        cloud.delete("keeps")
        assert process.wait(10) == 0


def test_the_form_of_errors(cloud: Cloud) -> None:
    status, body = cloud.call("GET", "/nowhere")
    assert (status, body["error"]["code"], body["error"]["status"]) == (404, 404, "NOT_FOUND")
    path = f"/compute/v1/{SCOPE}/instances"
    for text in ("{", "[]", '{"name": 3}', '{"name": "n", "disks": {}}'):
        reply = cloud.session.post(cloud.rest + path, data=text, timeout=30)
        assert reply.status_code == 400, text
        assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_service_accounts(cloud: Cloud) -> None:
    path = "/v1/projects/p/serviceAccounts"
    given = {"accountId": "tpu-admin", "serviceAccount": {"displayName": "TPU Admin"}}
    status, made = cloud.call("POST", path, given)
    assert status == 200
    assert made["email"] == "tpu-admin@p.iam.gserviceaccount.com"
    assert made["displayName"] == "TPU Admin"
    status, body = cloud.call("POST", path, given)
    assert (status, body["error"]["status"]) == (409, "ALREADY_EXISTS")
    for bad in ("tpuAdmin", "tpu", "t" * 31, "tpu-admin-", "1pu-admin", ""):
        assert cloud.call("POST", path, {"accountId": bad})[0] == 400, bad
    for account in (made["email"], made["uniqueId"]):
        assert cloud.call("GET", f"{path}/{account}") == (200, made)
    assert cloud.call("GET", f"/v1/projects/-/serviceAccounts/{made['email']}") == (200, made)
    assert cloud.call("GET", path) == (200, {"accounts": [made]})
    assert cloud.call("GET", "/v1/projects/other/serviceAccounts") == (200, {})
    member = f"serviceAccount:{made['email']}"
    use = {"bindings": [{"role": "roles/iam.serviceAccountUser", "members": [member]}]}
    assert cloud.call("POST", f"{path}/{made['email']}:setIamPolicy", {"policy": use})[0] == 200
    policy = cloud.call("POST", f"{path}/{made['email']}:getIamPolicy")[1]
    assert policy["bindings"] == use["bindings"]
    assert cloud.call("DELETE", f"{path}/{made['email']}") == (200, {})
    assert cloud.call("GET", f"{path}/{made['email']}")[0] == 404


def test_a_policy_is_changed_under_its_etag(cloud: Cloud) -> None:
    path = "/v1/projects/policy-project"
    status, policy = cloud.call("POST", f"{path}:getIamPolicy", {})
    assert (status, policy["bindings"]) == (200, [])
    policy["bindings"] = [{"role": "roles/tpu.admin", "members": ["user:a@example.com"]}]
    status, new = cloud.call("POST", f"{path}:setIamPolicy", {"policy": policy})
    assert status == 200
    assert new["etag"] != policy["etag"]
    assert cloud.call("POST", f"{path}:getIamPolicy", {}) == (200, new)
    status, body = cloud.call("POST", f"{path}:setIamPolicy", {"policy": policy})
    assert (status, body["error"]["status"]) == (409, "ABORTED")
    nobody = "serviceAccount:nobody@policy-project.iam.gserviceaccount.com"
    for role, member in (("admin", "user:a@b"), ("roles/tpu.admin", nobody), ("roles/x", "a@b")):
        bad = {"bindings": [{"role": role, "members": [member]}]}
        assert cloud.call("POST", f"{path}:setIamPolicy", {"policy": bad})[0] == 400


def test_permissions_are_granted_unless_a_rule_says_no(own: Cloud) -> None:
    asked = ["tpu.nodes.create", "tpu.nodes.list", "compute.instances.create"]
    path = "/v1/projects/p:testIamPermissions"
    assert own.call("POST", path, {"permissions": asked}) == (200, {"permissions": asked})
    own.fault("permission-missing", method="tpu.nodes.*")
    assert own.call("POST", path, {"permissions": asked}) == (200, {"permissions": asked[2:]})
    own.fault("permission-missing", method="*")
    assert own.call("POST", path, {"permissions": asked}) == (200, {})


def test_a_disabled_api_refuses_calls_until_it_is_enabled(own: Cloud) -> None:
    service = "/v1/projects/p/services/tpu.googleapis.com"
    assert own.call("GET", service)[1]["state"] == "ENABLED"
    own.fault("api-disabled", method="tpu.googleapis.com")
    assert own.call("GET", service)[1]["state"] == "DISABLED"
    text = "Cloud TPU API has not been used in project p before or it is disabled."
    with client.open_channel(own.endpoint) as channel:
        tpu = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        with pytest.raises(exceptions.PermissionDenied, match=text):
            list(tpu.list_nodes(parent=f"projects/p/locations/{ZONE}"))
        status, body = own.call("GET", f"/v2alpha1/projects/p/locations/{ZONE}/nodes")
        assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")
        assert body["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
        assert list(own.instances.list(project=PROJECT, zone=ZONE)) == []
        status, operation = own.call("POST", f"{service}:enable", {})
        assert (status, operation["done"]) == (200, True)
        assert operation["response"]["service"]["state"] == "ENABLED"
        assert list(tpu.list_nodes(parent=f"projects/p/locations/{ZONE}")) == []
    own.fault("api-disabled", method="compute.*")
    with pytest.raises(exceptions.Forbidden, match="Compute Engine API has not been used"):
        list(own.instances.list(project=PROJECT, zone=ZONE))
    disabled = own.call("GET", "/v1/projects/p/services", filter="state:DISABLED")[1]["services"]
    assert [one["config"]["name"] for one in disabled] == ["compute.googleapis.com"]
    assert own.call("GET", "/v1/projects/p/services/no.such.api")[0] == 403


def test_quotas_are_what_the_rules_say(own: Cloud) -> None:
    def limits(metric: str) -> dict[str, str]:
        path = "/v1beta1/projects/p/services/tpu.googleapis.com/consumerQuotaMetrics"
        rows = own.call("GET", path)[1]["metrics"]
        (row,) = (one for one in rows if one["displayName"] == metric)
        buckets = row["consumerQuotaLimits"][0]["quotaBuckets"]
        return {one["dimensions"]["zone"]: one["effectiveLimit"] for one in buckets}

    name = "tpu-v6e-preemptible"
    assert int(limits(name)[ZONE]) > 10**5
    own.fault("quota", limit=32, zone=ZONE)
    assert limits(name)[ZONE] == "32"
    assert int(limits(name)["europe-west4-a"]) > 10**5


def test_projects_and_buckets(cloud: Cloud) -> None:
    status, project = cloud.call("GET", "/v1/projects/p")
    assert (status, project["lifecycleState"]) == (200, "ACTIVE")
    assert project["projectNumber"].isdecimal()
    status, body = cloud.call("GET", "/storage/v1/b/checkpoints")
    assert (status, body["error"]["message"]) == (404, "The specified bucket does not exist.")
    cloud.control("bucket", name="checkpoints", location="us-east5")
    status, bucket = cloud.call("GET", "/storage/v1/b/checkpoints")
    assert (status, bucket["location"], bucket["locationType"]) == (200, "US-EAST5", "region")
    made = cloud.call("POST", "/storage/v1/b", {"name": "wide"}, project="p")
    assert made[1]["locationType"] == "multi-region"
    assert cloud.call("GET", "/storage/v1/b/wide") == made
    with pytest.raises(ConfigError, match="already own it"):
        cloud.control("bucket", name="wide")


def test_aiohttp_is_imported_by_the_first_connection_alone(own: Cloud) -> None:
    pid = json.loads((own.state_dir / "endpoint.json").read_text())["pid"]

    def loaded() -> bool:
        return "aiohttp" in Path(f"/proc/{pid}/maps").read_text()

    assert not loaded()
    assert own.call("GET", "/v1/projects/p")[0] == 200
    assert loaded()


def test_a_connection_that_says_nothing_holds_nothing_up(own: Cloud) -> None:
    host, port = own.rest.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))):
        assert own.call("GET", "/v1/projects/p")[0] == 200
