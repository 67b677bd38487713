"""Firewall rules between the coordinator's VM and the TPU VMs, by network tag.

Two of a network, shared by all its users, made when absent and never deleted: they cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from google.api_core import exceptions

from launcher.providers import Pause
from launcher.providers.calls import CALL_SECONDS, read_if_there
from launcher.provisioning.prices import region_of
from launcher.provisioning.requests import TAG
from launcher.remote.operations import await_operation, told
from launcher.spec import Machine

# https://cloud.google.com/iap/docs/using-tcp-forwarding#create-firewall-rule
IAP_RANGE = "35.235.240.0/20"
RULE_SECONDS = 120.0  # for a rule to be made
LONGEST_NETWORK = 63 - len("launcher--inside")  # in the name of a rule


def network(machine: Machine) -> str:
    name = machine.network or "default"
    return name if "/" in name else f"global/networks/{name}"


def subnetwork(machine: Machine, zone: str) -> str:
    name = machine.subnetwork or "default"
    return name if "/" in name else f"regions/{region_of(zone)}/subnetworks/{name}"


def rules(machine: Machine) -> tuple[Mapping[str, Any], ...]:
    """All TCP among the VMs: Ray's workers, JAX and the launcher take ports as they are free."""
    path = network(machine)
    short = shortened(path.rpartition("/")[2])
    common = {"network": path, "direction": "INGRESS", "target_tags": [TAG]}
    return (
        {
            **common,
            "name": f"launcher-{short}-inside",
            "source_tags": [TAG],
            "allowed": [{"I_p_protocol": "tcp"}],
        },
        {
            **common,
            "name": f"launcher-{short}-iap",
            "source_ranges": [IAP_RANGE],
            "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}],
        },
    )


def shortened(name: str) -> str:
    """A network's name, or what tells a long one apart and leaves room for the rest."""
    if len(name) <= LONGEST_NETWORK:
        return name
    return f"{name[: LONGEST_NETWORK - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def require(project: str, root: str | None, machine: Machine, pause: Pause) -> None:
    """Make the rules that are not there. Raises ProvisioningError."""
    from google.cloud import compute_v1

    from launcher.providers.compute import firewalls_client

    client: Any = firewalls_client(root)
    for rule in rules(machine):
        if read_if_there(client.get, project=project, firewall=rule["name"]):
            continue
        call = {"project": project, "firewall_resource": compute_v1.Firewall(rule)}
        taken = contextlib.suppress(exceptions.Conflict)  # another launcher has been faster
        with told(f"firewall rule {rule['name']}"), taken:
            operation = client.insert(**call, timeout=CALL_SECONDS)
            await_operation(operation, RULE_SECONDS, pause)
