"""The coordinator's VM is made, or used again; stopped or deleted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher import registry
from launcher.errors import ConfigError, ProvisioningError
from launcher.invocation import owner
from launcher.providers import Pause
from launcher.providers.states import GONE
from launcher.provisioning.requests import LABEL_MACHINE, LABEL_OWNER
from launcher.remote import firewall
from launcher.remote.vm import Vm, note, path_of, users_of
from launcher.remote.vm_instances import (
    AGAIN_SECONDS,
    CHANGE_SECONDS,
    LABEL,
    SETTINGS,
    Instances,
    body,
    compute_root,
    script,
)
from launcher.spec import Spec

if TYPE_CHECKING:
    from google.cloud.compute_v1 import Instance

MACHINE_TYPE = "cluster.vm.machine_type"


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
