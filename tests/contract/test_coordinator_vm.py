"""The coordinator's VM through google-cloud-compute: made once, used again, never a stranger's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1

from launcher import ending, registry
from launcher.compose import compose
from launcher.emulator import client as emulator
from launcher.emulator.compute.names import NAME
from launcher.errors import ClusterError, ConfigError, Interrupted, ProvisioningError
from launcher.invocation import owner
from launcher.plan import make_plan
from launcher.providers import Deadlines
from launcher.providers.compute import firewalls_client, instances_client
from launcher.provisioning.requests import LABEL_MACHINE, LABEL_OWNER, TAG, Identity
from launcher.remote import firewall, sites, standing, vm, vm_instances, vm_making
from launcher.remote.vm import Vm
from launcher.remote.vm_instances import LABEL
from launcher.spec import Spec
from launcher.verbs import take_apart
from launcher.verbs.down import down

OWNER = owner()


def quiet(_topic: str, _text: str) -> None:
    pass


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of an emulator that runs for the test, and that the launcher's home is beside."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    with emulator.connect(tmp_path / "emulator") as attached:
        yield tmp_path / "emulator"
        assert emulator.control(attached.endpoint, {"command": "ledger"})["left"] == []


@pytest.fixture
def spec(state_dir: Path, tmp_path: Path) -> Spec:
    words = [
        "cluster=v6e-4",
        "mode=jax",
        "cluster.coordinator=vm",
        f"provider.state_dir={state_dir}",
    ]
    return compose(words, cwd=tmp_path, require_workload=False)


@pytest.fixture
def wanted(spec: Spec) -> Vm:
    options = dict(spec.provider.options)
    return vm.wanted(spec, {"kind": "local", "project": None, "options": options}, OWNER)


def make(wanted: Vm, spec: Spec) -> Vm:
    return vm_making.make(wanted, spec, OWNER, quiet, time.sleep)


def instance(made: Vm) -> compute_v1.Instance:
    found = vm_instances.Instances(made).get()
    assert found is not None
    return found


def test_it_is_made_once_with_its_firewall_and_deleted(wanted: Vm, spec: Spec) -> None:
    made = make(wanted, spec)
    found = instance(made)
    assert found.status == "RUNNING"
    assert found.labels[LABEL_OWNER] == OWNER
    assert list(found.tags.items) == [TAG]
    assert found.network_interfaces[0].network_i_p == made.address
    assert len(made.ports) == 8
    token = made.token_file.read_text()
    assert made.token_file.stat().st_mode & 0o777 == 0o600
    assert token not in vm.path_of(made.key).read_text()
    root = vm_instances.compute_root(made)
    rules = {rule.name for rule in firewalls_client(root).list(project=made.project)}
    assert rules == {"launcher-default-inside", "launcher-default-iap"}

    again = make(wanted, spec)
    assert instance(again).id == found.id
    assert again == made
    assert again.token_file.read_text() == token

    assert "is deleted" in vm_making.take_down(made, time.sleep)
    assert vm_instances.Instances(made).get() is None
    assert vm.on_record() == []
    assert not made.token_file.exists()


def test_without_its_firewall_none_is_made(wanted: Vm, spec: Spec) -> None:
    """A VM that nobody can reach would be billed until somebody looks."""
    address = emulator.read_endpoint(Path(str(spec.provider.options["state_dir"])))
    assert address is not None
    rule = {"fault": "call-error", "method": "firewalls.insert", "node": "*", "count": 1}
    denied = {**rule, "code": "PERMISSION_DENIED", "message": "no compute.firewalls.create"}
    with (
        emulator.arm(address, [denied], ()),
        pytest.raises(ProvisioningError, match=r"no compute.firewalls.create; .*doctor"),
    ):
        make(wanted, spec)
    assert vm_instances.Instances(wanted).get() is None


@pytest.mark.parametrize("length", [7, 47, 48, 63])
def test_the_rules_of_a_network_have_names_of_their_own(spec: Spec, length: int) -> None:
    networks = [replace(spec.cluster.machine, network="n" * (length - 1) + last) for last in "ab"]
    names = {rule["name"] for machine in networks for rule in firewall.rules(machine)}
    assert len(names) == 4
    assert all(NAME.fullmatch(name) for name in names)


def test_a_stopped_one_is_started(wanted: Vm, spec: Spec) -> None:
    made = make(replace(wanted, on_down="stop"), spec)
    first = instance(made).id
    assert "is stopped" in vm_making.take_down(made, time.sleep)
    assert instance(made).status == "TERMINATED"
    assert vm.on_record() == [vm.find(made.key)]
    assert instance(make(wanted, spec)).id == first
    vm_making.take_down(wanted, time.sleep)


def test_one_that_boots_is_stopped_once_it_can_be(wanted: Vm, spec: Spec) -> None:
    """Its launcher died after the insert; Compute Engine stops no VM that is not RUNNING."""
    asked = vm.note(replace(wanted, on_down="stop"))
    address = emulator.read_endpoint(Path(str(spec.provider.options["state_dir"])))
    assert address is not None
    slow = {"fault": "slow-create", "node": asked.name, "seconds": "1s"}
    with emulator.arm(address, [slow], ()):
        client = instances_client(vm_instances.compute_root(asked))
        body = compute_v1.Instance(vm_instances.body(asked, spec, OWNER))
        client.insert(project=asked.project, zone=asked.zone, instance_resource=body)
        assert "is stopped" in vm_making.take_down(asked, time.sleep)
    assert instance(asked).status == "TERMINATED"
    vm_making.take_down(replace(asked, on_down="delete"), time.sleep)


def test_what_is_gone_is_not_said_to_be_stopped(wanted: Vm, spec: Spec) -> None:
    made = vm.note(replace(wanted, on_down="stop"))
    assert "is gone already" in vm_making.take_down(made, time.sleep)
    assert vm.on_record() == []


def test_one_that_a_run_on_record_uses_stays(wanted: Vm, spec: Spec) -> None:
    made = make(wanted, spec)
    registry.write_record("busy", {"name": "busy", "remote": {"vm": made.key}})
    with pytest.raises(ConfigError, match="serves busy"):
        vm_making.take_down(made, time.sleep)
    assert instance(made).status == "RUNNING"
    registry.forget("busy")
    vm_making.take_down(made, time.sleep)


def test_a_run_that_cannot_be_ended_keeps_no_vm_that_serves_others(
    wanted: Vm, spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `down --all` leaves up goes on costing."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    made = make(wanted, spec)
    there = {"name": "there", "head": "run-there", "owner": OWNER, "supervisor": None}
    there["resources"] = ["projects/my-project/locations/us-east5-b/nodes/there-s0"]
    there["provider"] = {"kind": "google", "project": "my-project", "options": {}}
    registry.write_record("there", there)
    with pytest.raises(ProvisioningError, match=r"there: .* log in with"):
        down(take_apart("down", ["--all"]))
    assert vm_instances.Instances(made).get() is None
    assert [record["name"] for record in registry.records()] == ["there"]


def test_ctrl_c_ends_the_wait_for_another_that_makes_it(wanted: Vm) -> None:
    def interrupted(_seconds: float) -> None:
        raise Interrupted("stopped by SIGINT")

    vm.note(wanted)
    with vm_making.held(wanted, time.sleep), pytest.raises(Interrupted):
        vm_making.take_down(wanted, interrupted)
    vm_making.take_down(wanted, time.sleep)


def test_a_run_whose_vm_answers_no_more_can_be_ended(
    wanted: Vm, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute Engine says RUNNING, but no Ray head is there: VM and slices would cost for ever."""
    monkeypatch.setattr(sites, "REACH_SECONDS", 0.0)
    address = emulator.read_endpoint(Path(str(spec.provider.options["state_dir"])))
    assert address is not None
    never = {"fault": "never-boots", "node": wanted.name}
    with emulator.arm(address, [never, {**never, "node": "one-*"}], ()):
        made = vm.note(make(wanted, spec))
        for name in ("one", "two"):
            put_on_record(name, made, spec)
        ends = partial(ending.end, tell=lambda _: None)
        with pytest.raises(ClusterError, match="down one` gives it up"):
            ends("one")
        with pytest.raises(ConfigError, match="serves two; `python -m launcher down one two`"):
            ends("one", for_good={"one"})
        assert instance(made).status == "RUNNING"
        for name in ("one", "two"):
            ends(name, for_good={"one", "two"})
    assert vm_instances.Instances(made).get() is None
    assert registry.records() == []


def put_on_record(name: str, made: Vm, spec: Spec) -> None:
    """A run on that VM, with a slice that only the VM's own record tells of."""
    remote = {"vm": made.key, "job": f"{name}-0", "submitted": True}
    record = {"name": name, "owner": OWNER, "provider": made.provider, "remote": remote}
    registry.write_record(name, {**record, "resources": [], "supervisor": None})
    identity = Identity(OWNER, registry.machine_id(), made.project)
    (request,) = make_plan(replace(spec, name=name), identity).first.requests
    with standing.recorded_provider(record) as provider:
        provider.get().create(request, Deadlines(30, 30), time.sleep)


def test_what_was_left_by_a_launcher_that_died_is_used(wanted: Vm, spec: Spec) -> None:
    """It died after the insert, before it knew the address: only the intent is on record."""
    made = make(wanted, spec)
    vm.note(wanted)
    made.token_file.unlink()
    again = make(vm.wanted(spec, wanted.provider, OWNER), spec)
    assert again.address == made.address
    assert len(again.token_file.read_text()) == 64
    vm_making.take_down(made, time.sleep)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({LABEL_OWNER: "you", LABEL: "ray-head"}, "belongs to you"),
        ({}, "was not made by launcher"),
        (
            {LABEL_OWNER: OWNER, LABEL: "x", LABEL_MACHINE: "other"},
            "on another machine",
        ),
    ],
)
def test_a_strangers_is_refused(wanted: Vm, spec: Spec, labels: dict[str, str], words: str) -> None:
    client = instances_client(vm_instances.compute_root(wanted))
    body = {**vm_instances.body(wanted, spec, OWNER), "labels": labels, "metadata": {}}
    where = {"project": wanted.project, "zone": wanted.zone}
    client.insert(**where, instance_resource=compute_v1.Instance(body)).result(30)
    with pytest.raises(ConfigError, match=words):
        make(wanted, spec)
    with pytest.raises(ConfigError, match=words):
        vm_making.take_down(wanted, time.sleep)  # `down` must not take it for ours
    client.delete(**where, instance=wanted.name).result(30)


def test_a_name_that_is_taken_by_something_else_is_told_at_the_deadline(
    wanted: Vm, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a disk of that name was left: no such VM, and yet a conflict."""
    address = emulator.read_endpoint(Path(str(spec.provider.options["state_dir"])))
    assert address is not None
    words = "The resource 'disks/launcher-me' already exists"
    rule = {"fault": "call-error", "method": "instances.insert", "node": "*", "count": 99}
    given = {**rule, "code": "ALREADY_EXISTS", "message": words}
    for module in (vm_instances, vm_making):
        monkeypatch.setattr(module, "CHANGE_SECONDS", 1.2)
    told: list[str] = []
    with (
        emulator.arm(address, [given], ()),
        pytest.raises(ProvisioningError, match=f"is not RUNNING after 1.2 s: .*{words}"),
    ):
        vm_making.make(wanted, spec, OWNER, lambda _, text: told.append(text), time.sleep)
    assert told == [f"making {wanted.title}"]


def test_what_a_new_one_needs_and_is_not_there_is_told_at_once(wanted: Vm, spec: Spec) -> None:
    address = emulator.read_endpoint(Path(str(spec.provider.options["state_dir"])))
    assert address is not None
    words = "The resource 'projects/emulated/global/networks/mien' was not found"
    rule = {"fault": "call-error", "method": "instances.insert", "node": "*", "count": 1}
    with (
        emulator.arm(address, [{**rule, "code": "NOT_FOUND", "message": words}], ()),
        pytest.raises(ProvisioningError, match=words),
    ):
        make(wanted, spec)


def test_what_was_refused_is_asked_for_otherwise(wanted: Vm, spec: Spec) -> None:
    odd, words = with_vm(spec, machine_type="e2-standard-3"), "e2-standard-3"
    with pytest.raises(ProvisioningError, match=words):
        make(vm.wanted(odd, wanted.provider, OWNER), odd)
    made = make(vm.wanted(spec, wanted.provider, OWNER), spec)
    assert made.machine_type == "e2-standard-4"
    vm_making.take_down(made, time.sleep)


def with_vm(spec: Spec, **settings: Any) -> Spec:
    return replace(spec, cluster=replace(spec.cluster, vm=replace(spec.cluster.vm, **settings)))


def test_one_with_other_settings_serves_and_says_so(wanted: Vm, spec: Spec) -> None:
    """As with the account that `create-service-account` has made since."""
    made = vm.note(make(wanted, spec))
    asked = with_vm(
        spec, machine_type="e2-standard-8", service_account="a@b.iam.gserviceaccount.com"
    )
    again = vm.wanted(asked, wanted.provider, OWNER)
    assert again == made
    told: list[str] = []
    vm.tell_other_settings(again, asked, lambda _, text: told.append(text))
    changed = (
        "cluster.vm.machine_type: e2-standard-4, not e2-standard-8,"
        " cluster.vm.service_account: None, not a@b.iam.gserviceaccount.com"
    )
    assert told[0].startswith(f"made with other settings ({changed}); `down {made.name}`")
    vm.tell_other_settings(made, spec, lambda _, text: told.append(text))
    assert len(told) == 1
    vm_making.take_down(made, time.sleep)


def test_one_in_another_network_is_refused(wanted: Vm, spec: Spec) -> None:
    """The hosts of slices could not reach it, and would be waited for in vain."""
    made = vm.note(make(wanted, spec))
    machine = replace(spec.cluster.machine, network="mine")
    asked = replace(spec, cluster=replace(spec.cluster, machine=machine))
    with pytest.raises(ConfigError, match=f"cluster.network: {made.name}, the coordinator, is in"):
        vm.wanted(asked, wanted.provider, OWNER)
    vm_making.take_down(made, time.sleep)


def test_another_zone_than_the_one_on_record_is_refused(wanted: Vm, spec: Spec) -> None:
    vm.note(wanted)
    elsewhere = replace(spec.cluster.vm, zone="us-east5-b")
    asked = replace(spec, cluster=replace(spec.cluster, vm=elsewhere))
    with pytest.raises(ConfigError, match="is in us-"):
        vm.wanted(asked, wanted.provider, OWNER)
