"""The coordinator's own VM on Compute Engine: as it is asked for, and as it is on record.

It is on record before it exists, and found by its name: so a death at any instant leaves nothing
that the same command does not use and `down` does not find. Its token is in a file of this user's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.config.values import as_name
from launcher.errors import ConfigError
from launcher.providers import KINDS, project_of
from launcher.provisioning import prices
from launcher.remote import firewall
from launcher.spec import Spec

NETWORK = "cluster.network"
LONGEST_NAME = 63


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


def users_of(vm: Vm) -> list[str]:
    """Names of the runs on record that it serves."""
    used = (r for r in registry.records() if (r.get("remote") or {}).get("vm") == vm.key)
    return [record["name"] for record in used]
