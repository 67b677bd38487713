"""The coordinator's VM as Compute Engine has it: what is asked for, and the calls that it takes.

Its token is in its metadata, where whoever may read the VM may read it.
"""

from __future__ import annotations

import importlib
import json
import platform
import secrets
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from google.api_core import exceptions

from launcher import registry
from launcher.errors import ProvisioningError
from launcher.providers import KINDS, Pause
from launcher.providers.calls import CALL_SECONDS, read, read_if_there
from launcher.provisioning.requests import CLOUD_PLATFORM, LABEL_MACHINE, LABEL_OWNER, TAG
from launcher.remote import firewall
from launcher.remote.operations import await_operation, told
from launcher.remote.vm import Vm, settings_of
from launcher.spec import ProviderSpec, Spec
from launcher.startup import VM, startup_script

if TYPE_CHECKING:
    from google.cloud.compute_v1 import Instance

LABEL = "launcher-coordinator"
SETTINGS = "launcher-settings"  # of its metadata
CHANGE_SECONDS = 300.0  # for a VM to be made, started, stopped or deleted
AGAIN_SECONDS = 0.5  # until another look at it
# What a supervisor needs beside Ray, at the versions that it has here.
PACKAGES = (
    "google-api-core",
    "google-auth",
    "google-cloud-tpu",
    "grpcio",
    "psutil",
    "requests",
    "tenacity",
)


def body(vm: Vm, spec: Spec, owner: str) -> dict[str, Any]:
    """What is asked of Compute Engine, as an `Instance`; token and ports are new."""
    asked, machine = spec.cluster.vm, spec.cluster.machine
    interface: dict[str, Any] = {"network": firewall.network(machine)}
    if machine.subnetwork:
        interface["subnetwork"] = firewall.subnetwork(machine, vm.zone)
    if asked.external_ip:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    metadata = {
        "startup-script": script(),
        "launcher-token": secrets.token_hex(32),
        "launcher-head": json.dumps({"ports": list(KINDS[vm.provider["kind"]].vm_ports())}),
        SETTINGS: json.dumps(settings_of(spec)),
    }
    disk = {"source_image": asked.image, "disk_size_gb": asked.disk_gb}
    account = {"email": asked.service_account or "default", "scopes": [CLOUD_PLATFORM]}
    return {
        "name": vm.name,
        "machine_type": f"zones/{vm.zone}/machineTypes/{vm.machine_type}",
        "labels": {
            LABEL_OWNER: owner,
            LABEL_MACHINE: registry.machine_id(),
            LABEL: "ray-head",
        },
        "tags": {"items": [TAG]},
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "network_interfaces": [interface],
        "service_accounts": [account],
        "metadata": {"items": [{"key": key, "value": metadata[key]} for key in metadata]},
    }


def script() -> str:
    """Its startup script: Ray, and what a supervisor needs, at this machine's versions."""
    packages = {name: version(name) for name in PACKAGES}
    config = {
        "python": platform.python_version(),
        "packages": {**packages, "ray": version("ray")},
        "object_store_memory": 200_000_000,
    }
    return startup_script(config, [f"{name}=={packages[name]}" for name in packages], run=VM)


class Instances:
    """The calls that one VM takes. The provider must be open. Errors are ProvisioningError."""

    def __init__(self, vm: Vm) -> None:
        from launcher.providers.compute import instances_client

        self.vm = vm
        self._client: Any = instances_client(compute_root(vm))
        self._zone = {"project": vm.project, "zone": vm.zone}

    def get(self) -> Instance | None:
        found: Instance | None = read_if_there(
            self._client.get, **self._zone, instance=self.vm.name
        )
        return found

    def insert(self, instance: Mapping[str, Any], pause: Pause) -> str:
        """Another launcher may have been faster: then it is there."""
        from google.cloud import compute_v1

        resource = compute_v1.Instance(instance)
        return self._change(
            self._client.insert, pause, instance_resource=resource, late=(exceptions.Conflict,)
        )

    def start(self, pause: Pause) -> str:
        return self._change(self._client.start, pause, instance=self.vm.name)

    def stop(self, pause: Pause) -> str:
        return self._change(self._client.stop, pause, instance=self.vm.name)

    def delete(self, pause: Pause) -> str:
        return self._change(self._client.delete, pause, instance=self.vm.name)

    def console(self, size: int = 3000) -> str:
        """The end of its serial port's output."""
        call = {**self._zone, "instance": self.vm.name}
        try:
            return str(read(self._client.get_serial_port_output, **call).contents)[-size:]
        except ProvisioningError as error:
            return f"(not to be had: {error})"

    def _change(
        self,
        method: Callable[..., Any],
        pause: Pause,
        late: tuple[type[exceptions.ClientError], ...] = (exceptions.Conflict, exceptions.NotFound),
        **what: Any,
    ) -> str:
        """Make a change; "" once it is made.

        One that the server says is made already, or is being made, by whomever, is no error: its
        words are returned then, after a pause, since only a look tells what there is.
        """
        with told(self.vm.title):
            try:
                operation = method(**self._zone, **what, timeout=CALL_SECONDS)
                await_operation(operation, CHANGE_SECONDS, pause)
            except exceptions.ClientError as error:
                if not (isinstance(error, late) or is_not_ready(error)):
                    raise
                pause(AGAIN_SECONDS)
                return f": {error.message}"
        return ""


def is_not_ready(error: exceptions.ClientError) -> bool:
    """Whether another change is under way: resourceNotReady, 400."""
    return isinstance(error, exceptions.BadRequest) and "is not ready" in error.message


def compute_root(vm: Vm) -> str | None:
    module = importlib.import_module(KINDS[vm.provider["kind"]].module)
    root: str | None = module.compute_root(ProviderSpec(**vm.provider))
    return root
