"""The coordinator's own VM on Compute Engine: made, used again, stopped or deleted.

It is on record before it exists, and found by its name: so a death at any instant leaves nothing
that the same command does not use and `down` does not find. Its token is in its metadata, where
whoever may read the VM may read it, and in a file of this user's.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import platform
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.api_core import exceptions

from launcher import registry
from launcher.config.values import as_name
from launcher.errors import ConfigError, ProvisioningError
from launcher.invocation import owner
from launcher.providers import KINDS, Pause, project_of
from launcher.providers.calls import CALL_SECONDS, read, read_if_there
from launcher.providers.states import GONE
from launcher.provisioning import prices
from launcher.provisioning.requests import CLOUD_PLATFORM, LABEL_MACHINE, LABEL_OWNER, TAG
from launcher.remote import firewall
from launcher.remote.operations import await_operation, told
from launcher.spec import ProviderSpec, Spec
from launcher.startup import VM, startup_script

if TYPE_CHECKING:
    from google.cloud.compute_v1 import Instance

LABEL = "launcher-coordinator"
SETTINGS = "launcher-settings"  # of its metadata
NETWORK, MACHINE_TYPE = "cluster.network", "cluster.vm.machine_type"
CHANGE_SECONDS = 300.0  # for a VM to be made, started, stopped or deleted
AGAIN_SECONDS = 0.5  # until another look at it
LONGEST_NAME = 63
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


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM on record. `address`, `ports` and `settings` are known once it is there, `runs` all it
    served.
    """

    name: str
    project: str
    zone: str
    provider: Mapping[str, Any]  # kind, project and options, as in the record of a run
    machine_type: str
    on_down: str  # delete | stop
    address: str = ""
    ports: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # by their keys, as it was made with

    @property
    def key(self) -> str:
        """Tells it from VMs of the same name in other projects and emulators."""
        where = json.dumps(self.provider, sort_keys=True, default=str)
        return f"{self.name}-{sha256(where.encode()).hexdigest()[:8]}"

    @property
    def token_file(self) -> Path:
        return path_of(self.key).with_suffix(".token")

    @property
    def title(self) -> str:
        return f"VM {self.name} ({self.machine_type} in {self.zone}{self._price})"

    @property
    def _price(self) -> str:
        if not KINDS[self.provider["kind"]].billed:
            return ""
        price = prices.machine_price(self.machine_type, self.zone)
        return f", {price.usd:.2f} USD/h" if price else ", price unknown"


def path_of(key: str) -> Path:
    return registry.home() / "coordinators" / f"{key}.json"


def find(key: str) -> Vm | None:
    found = registry.read_json(path_of(key))
    if found is None:
        return None
    return Vm(**{**found, "ports": tuple(found["ports"]), "runs": tuple(found["runs"])})


def on_record() -> list[Vm]:
    paths = sorted((registry.home() / "coordinators").glob("[a-z]*.json"))
    return [vm for path in paths if (vm := find(path.stem))]


def note(vm: Vm) -> Vm:
    registry.write_json(path_of(vm.key), asdict(vm))
    return vm


def name_of(spec: Spec, owner: str) -> str:
    return spec.cluster.vm.name or as_name(f"launcher-{owner}", LONGEST_NAME)


def zone_of(spec: Spec) -> str:
    return spec.cluster.vm.zone or spec.cluster.offers[0].zone


def wanted(spec: Spec, provider: Mapping[str, Any], owner: str) -> Vm:
    """The VM that a configuration asks for; the one on record if it has that name.

    Raises ConfigError when it is where it is of no use.
    """
    asked = spec.cluster.vm
    vm = Vm(
        name=name_of(spec, owner),
        project=project_of(spec.provider),
        zone=zone_of(spec),
        provider=provider,
        machine_type=asked.machine_type,
        on_down=asked.on_down,
    )
    known = find(vm.key)
    if known and asked.zone and asked.zone != known.zone:
        down = f"`python -m launcher down {known.name}` first, or cluster.vm.name=…"
        raise ConfigError(f"cluster.vm.zone: {known.name} is in {known.zone}; {down}")
    if known and (network := known.settings.get(NETWORK)) not in (None, settings_of(spec)[NETWORK]):
        down = f"`python -m launcher down {known.name}` first, or cluster.vm.name=…"
        raise ConfigError(f"{NETWORK}: {known.name}, the coordinator, is in {network}; {down}")
    if known is None or not known.address:  # what it was asked for with may have been refused
        return replace(vm, zone=known.zone, runs=known.runs) if known else vm
    return replace(known, on_down=asked.on_down)


def settings_of(spec: Spec) -> dict[str, Any]:
    """What a VM is made with, and keeps."""
    asked = spec.cluster.vm
    names = ("machine_type", "disk_gb", "image", "service_account", "external_ip")
    found = {f"cluster.vm.{name}": getattr(asked, name) for name in names}
    return {**found, NETWORK: firewall.network(spec.cluster.machine)}


def tell_other_settings(vm: Vm, spec: Spec, tell: Callable[[str, str], None]) -> None:
    now = settings_of(spec)
    changed = [
        f"{key}: {then}, not {now[key]}" for key, then in vm.settings.items() if then != now[key]
    ]
    if changed:
        renew = f"`down {vm.name}` and the same command renew it"
        tell("coordinator", f"made with other settings ({', '.join(changed)}); {renew}")


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


def held(vm: Vm, pause: Pause) -> contextlib.AbstractContextManager[None]:
    """While a VM is looked for, made or taken down, nobody else does any of this."""
    return registry.lock(f"vm-{vm.key}", f"{vm.title} is busy", CHANGE_SECONDS, pause)


def make(vm: Vm, spec: Spec, owner: str, tell: Callable[[str, str], None], pause: Pause) -> Vm:
    """Until it is RUNNING, and ours. Returns it with its address and ports.

    The firewall comes first: it costs nothing, and without it a VM would, and be of no use.
    """
    note(vm)
    instances = Instances(vm)
    firewall.require(vm.project, compute_root(vm), spec.cluster.machine, pause)
    instance = running(instances, lambda: body(vm, spec, owner), owner, tell, pause)
    values = {item.key: item.value for item in instance.metadata.items}
    tell_other_versions(values.get("startup-script", ""), tell)
    try:
        ports = json.loads(values["launcher-head"])["ports"]
        token, settings = values["launcher-token"], json.loads(values.get(SETTINGS, "{}"))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{vm.title} was not made by launcher; cluster.vm.name=…") from error
    vm.token_file.touch(0o600)
    vm.token_file.write_text(token)
    address = instance.network_interfaces[0].network_i_p
    machine_type = settings.get(MACHINE_TYPE, vm.machine_type)
    made = replace(vm, machine_type=machine_type, settings=settings)
    return replace(made, address=address, ports=tuple(ports))


def tell_other_versions(made_with: str, tell: Callable[[str, str], None]) -> None:
    if made_with != script():
        tell("coordinator", "made by another version; `down` and the same command renew it")


def running(
    instances: Instances,
    new: Callable[[], Mapping[str, Any]],
    owner: str,
    tell: Callable[[str, str], None],
    pause: Pause,
) -> Instance:
    """The instance once it is RUNNING, made or started if need be. Raises for a foreign one."""
    deadline, conflict = time.monotonic() + CHANGE_SECONDS, ""
    while time.monotonic() < deadline:
        instance = instances.get()
        if instance is None:
            if not conflict:
                tell("coordinator", f"making {instances.vm.title}")
            conflict = instances.insert(new(), pause)
            continue
        require_ours(instances.vm, instance, owner)
        match instance.status:
            case "RUNNING":
                return instance
            case "TERMINATED":
                if not conflict:
                    tell("coordinator", f"starting {instances.vm.title}, which was stopped")
                conflict = instances.start(pause)
            case _:
                pause(AGAIN_SECONDS)
    late = f"{instances.vm.title} is not RUNNING after {CHANGE_SECONDS:g} s"
    raise ProvisioningError(f"{late}{conflict}")


def require_ours(vm: Vm, instance: Instance, owner: str) -> None:
    found = instance.labels.get(LABEL_OWNER)
    if LABEL not in instance.labels or found != owner:
        whose = f"belongs to {found}" if found else "was not made by launcher"
        raise ConfigError(f"{vm.title} is there and {whose}: choose another cluster.vm.name")
    if instance.labels.get(LABEL_MACHINE) != registry.machine_id():
        # Only the records of that machine tell which runs it serves.
        where = "was made by you on another machine, or with another $LAUNCHER_HOME"
        raise ConfigError(f"{vm.title} is there and {where}: choose another cluster.vm.name")


def take_down(vm: Vm, pause: Pause, but_for: Collection[str] = ()) -> str:
    """Delete or stop it, as it was made for; what was done. The provider must be open.

    Raises ConfigError when it is another's, or serves runs other than these.
    """
    with held(vm, pause):
        if users := [name for name in users_of(vm) if name not in but_for]:
            together = " ".join([*sorted(but_for), *users])
            hint = f"`python -m launcher down {together}` ends all of them"
            raise ConfigError(f"{vm.title} serves {', '.join(users)}; {hint}")
        instances = Instances(vm)
        try:
            if instance := instances.get():
                require_ours(vm, instance, owner())
        except ConfigError:
            path_of(vm.key).unlink(missing_ok=True)  # it has never been made by us
            raise
        if vm.on_down == "stop" and instance:
            ended(instances, ("TERMINATED", GONE), instances.stop, pause)
            return f"{vm.title} is stopped; its disk stays"
        ended(instances, (GONE,), instances.delete, pause)
        vm.token_file.unlink(missing_ok=True)
        path_of(vm.key).unlink(missing_ok=True)
        return f"{vm.title} is {'deleted' if instance else 'gone already'}"


def ended(
    instances: Instances, wanted: Sequence[str], change: Callable[[Pause], str], pause: Pause
) -> None:
    """Until its status is a wanted one; a change that is under way may have to end first."""
    deadline = time.monotonic() + CHANGE_SECONDS
    while (status := status_of(instances.get())) not in wanted:
        conflict = change(pause)
        if time.monotonic() > deadline:
            late = f"{instances.vm.title} is still {status} after {CHANGE_SECONDS:g} s"
            raise ProvisioningError(f"{late}{conflict}")


def status_of(instance: Instance | None) -> str:
    return instance.status if instance else GONE


def users_of(vm: Vm) -> list[str]:
    """Names of the runs on record that it serves."""
    used = (r for r in registry.records() if (r.get("remote") or {}).get("vm") == vm.key)
    return [record["name"] for record in used]
