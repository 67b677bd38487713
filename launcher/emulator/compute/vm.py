"""One VM of Compute Engine: the body that the API shows, its host, and the changes under way."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import StatusCode

from launcher.emulator.changing import Changing
from launcher.emulator.compute.machine_types import MachineType
from launcher.emulator.compute.names import link, path
from launcher.emulator.compute.operations import now
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.machine import guest
from launcher.emulator.machine.host import Host
from launcher.emulator.machine.metadata import claim_addresses
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.node import temp_folder

Json = dict[str, Any]
_GIVEN = ("name", "description", "labels", "minCpuPlatform", "guestAccelerators", "canIpForward")


@dataclass(frozen=True, slots=True)
class VmIdentity:
    """Which VM this is; a `guest.Guest` of one worker."""

    project: str
    zone: str
    node: str
    address: str
    worker: int = 0

    @property
    def instance(self) -> str:
        return self.node

    @property
    def label(self) -> str:
        return self.node


class Vm(Changing):
    """One VM. `body` is the truth of the API; `scope` is `projects/P/zones/Z`."""

    def __init__(
        self,
        scope: str,
        given: Mapping[str, Any],
        machine: MachineType,
        folder: Path,
        ledger: Ledger,
    ) -> None:
        super().__init__()
        self.scope = scope
        _, self.project, _, self.zone = scope.split("/")
        self.vm_id: str = given["name"]
        self.name = f"{scope}/instances/{self.vm_id}"
        self.deleting = False
        self._staged = False
        self._uid = secrets.token_hex(4)
        self._folder = folder / self._uid
        try:
            listener = claim_addresses(1)[0]
        except OSError as error:
            raise ApiError(StatusCode.FAILED_PRECONDITION, f"emulator: {error}") from error
        address = str(listener.getsockname()[0])
        self.body = _filled(self, given, address)
        self._folder.mkdir(parents=True, mode=0o700)
        self._me = VmIdentity(self.project, self.zone, self.vm_id, address)
        values = {**self._values(machine), **self._attributes()}
        temp = temp_folder(self._uid) / "vm"
        self.host = Host(self._me, values, {}, listener, self._folder, temp)
        self._ledger = ledger
        self._entry = ledger.open(self.name, self.zone, machine.name, kind="instance")
        self.become("PROVISIONING")

    @property
    def status(self) -> str:
        return str(self.body["status"])

    def become(self, status: str, reason: str = "") -> None:
        """Changes the status that the API shows; `reason` is for the ledger."""
        self.body["status"] = status
        if status == "RUNNING":
            self.body["lastStartTimestamp"] = now()
        if status == "TERMINATED":
            self.body["lastStopTimestamp"] = now()
        self._ledger.enter(self._entry, status, reason)

    async def stage(self) -> None:
        """Readies it for its first boot; the others find that done."""
        if not self._staged:
            self._staged = True
            await self.host.metadata.start()

    def boot(self) -> None:
        """Starts the host and its startup script."""
        self.host.metadata.set(guest.PREEMPTED, "FALSE")
        items = self.body["metadata"].get("items", ())
        values = {item["key"]: item.get("value", "") for item in items}
        self.host.boot(values.get("startup-script", ""))

    @property
    def restarts(self) -> bool:
        """Whether it comes back after the failure of its machine."""
        return bool(self.body["scheduling"]["automaticRestart"])

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.body["metadata"] = _metadata(metadata)
        self.host.metadata.replace(guest.ATTRIBUTES, self._attributes())

    def set_labels(self, labels: Mapping[str, str]) -> None:
        self.body |= _labels(labels)

    def serial_output(self, start: int, most: int) -> tuple[int, str, int]:
        """Where it begins, the last bytes of the console log from there on, where it ends."""
        found = b""
        with contextlib.suppress(FileNotFoundError), self.host.console.open("rb") as file:
            start = max(start, os.fstat(file.fileno()).st_size - most)
            file.seek(start)
            found = file.read()
        return start, found.decode(errors="replace"), start + len(found)

    async def remove(self, reason: str) -> None:
        """Ends the host, gives back address and folders, and closes the ledger's entry."""
        await self.host.end()
        self.host.metadata.close()
        for folder in (self._folder, temp_folder(self._uid)):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._ledger.enter(self._entry, GONE, reason)

    def _attributes(self) -> dict[str, str]:
        return {
            guest.ATTRIBUTES + item["key"]: item.get("value", "")
            for item in self.body["metadata"].get("items", ())
        }

    def _values(self, machine: MachineType) -> dict[str, str]:
        number = guest.project_number(self.project)
        scheduling = self.body["scheduling"]
        values = {
            **guest.about(self._me, self.body["id"], preemptible=scheduling["preemptible"]),
            "instance/machine-type": f"projects/{number}/machineTypes/{machine.name}",
            "instance/scheduling/automatic-restart": str(self.restarts).upper(),
            "instance/tags": json.dumps(self.body["tags"].get("items", [])),
        }
        for index, config in enumerate(self.body["networkInterfaces"][0].get("accessConfigs", ())):
            where = f"instance/network-interfaces/0/access-configs/{index}"
            values[f"{where}/external-ip"] = config["natIP"]
        for account in self.body["serviceAccounts"][:1]:
            values |= guest.account(account["email"], account["scopes"])
        return values


def fingerprint(value: object) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _filled(vm: Vm, given: Mapping[str, Any], address: str) -> Json:
    """What was asked for, with all that the API adds."""
    zone, project = vm.scope, vm.project
    body: Json = {
        "kind": "compute#instance",
        "id": str(secrets.randbits(62)),
        "creationTimestamp": now(),
        **{key: given[key] for key in _GIVEN if key in given},
        **_labels(given.get("labels") or {}),
        "zone": link(zone),
        "selfLink": link(vm.name),
        "machineType": link(f"{zone}/machineTypes/{path(given['machineType']).split('/')[-1]}"),
        "cpuPlatform": "Intel Skylake",
        "status": "PROVISIONING",
        "tags": _tags(given.get("tags") or {}),
        "metadata": _metadata(given.get("metadata") or {}),
        "scheduling": _scheduling(given.get("scheduling") or {}),
        "serviceAccounts": [_account(project, row) for row in given.get("serviceAccounts") or ()],
        "networkInterfaces": [
            _interface(vm, index, row, address)
            for index, row in enumerate(given["networkInterfaces"])
        ],
        "disks": [_disk(vm, index, row) for index, row in enumerate(given["disks"])],
        "startRestricted": False,
        "deletionProtection": False,
    }
    return {**body, "fingerprint": fingerprint(body)}


def _labels(labels: Mapping[str, str]) -> Json:
    return {"labels": dict(labels), "labelFingerprint": fingerprint(labels)}


def _tags(tags: Mapping[str, Any]) -> Json:
    items = list(tags.get("items") or ())
    return {**({"items": items} if items else {}), "fingerprint": fingerprint(items)}


def _metadata(metadata: Mapping[str, Any]) -> Json:
    items = [
        {"key": item["key"], "value": item.get("value", "")} for item in metadata.get("items") or ()
    ]
    shown = {"items": items} if items else {}
    return {"kind": "compute#metadata", "fingerprint": fingerprint(items), **shown}


def _scheduling(given: Mapping[str, Any]) -> Json:
    spot = bool(given.get("preemptible")) or given.get("provisioningModel") == "SPOT"
    return {
        "onHostMaintenance": "TERMINATE" if spot else "MIGRATE",
        "provisioningModel": "SPOT" if spot else "STANDARD",
        **given,
        "automaticRestart": not spot and bool(given.get("automaticRestart", True)),
        "preemptible": spot,
    }


def _account(project: str, given: Mapping[str, Any]) -> Json:
    email = given.get("email", "default")
    return {
        "email": guest.default_account(project) if email == "default" else email,
        "scopes": list(given.get("scopes") or ()),
    }


def _interface(vm: Vm, index: int, given: Mapping[str, Any], address: str) -> Json:
    region = vm.zone.rpartition("-")[0]
    network = path(given.get("network") or "global/networks/default")
    name = network.rpartition("/")[2]
    subnetwork = path(given.get("subnetwork") or f"regions/{region}/subnetworks/{name}")
    shown = {
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "network": link(_within(vm.project, network)),
        "subnetwork": link(_within(vm.project, subnetwork)),
        "networkIP": address,
        "stackType": "IPV4_ONLY",
    }
    configs = [
        {
            "kind": "compute#accessConfig",
            "type": "ONE_TO_ONE_NAT",
            "name": config.get("name", "External NAT"),
            "networkTier": "PREMIUM",
            "natIP": address,
        }
        for config in given.get("accessConfigs") or ()
    ]
    external = {"accessConfigs": configs} if configs else {}
    return {**shown, **external, "fingerprint": fingerprint(shown)}


def _within(project: str, name: str) -> str:
    return name if name.startswith("projects/") else f"projects/{project}/{name}"


def _disk(vm: Vm, index: int, given: Mapping[str, Any]) -> Json:
    asked = given.get("initializeParams") or {}
    name = vm.vm_id if given.get("boot") else f"{vm.vm_id}-{index}"
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "source": given.get("source") or link(f"{vm.scope}/disks/{asked.get('diskName') or name}"),
        "deviceName": given.get("deviceName") or f"persistent-disk-{index}",
        "index": index,
        "boot": bool(given.get("boot")),
        "autoDelete": bool(given.get("autoDelete")),
        "interface": "SCSI",
        "diskSizeGb": str(asked.get("diskSizeGb") or 10),
    }
