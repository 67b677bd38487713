"""What a VM sees: the environment of its startup script and the values of its metadata.

Paths and keys are those of real TPU VMs (a v4-256 and a v5litepod-8 were recorded in public).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher import user
from launcher.accelerators import Accelerator
from launcher.emulator.machine.metadata import PORT
from launcher.emulator.tpu.wire import v2

MARKER = "LAUNCHER_EMULATED_HOST"
"""The variable that marks every process of an emulated host; its value is the host's label."""
ATTRIBUTES = "instance/attributes/"
PREEMPTED = "instance/preempted"
MAINTENANCE = "instance/maintenance-event"
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE")
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


class Guest(Protocol):
    """Which VM this is. `node` is what the API's users call it, `instance` its host name."""

    @property
    def project(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def worker(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Megascale:
    """Which slice of a multislice request; `coordinator` is the address of the first host of all.

    None if that is this slice's own first host.
    """

    index: int
    slices: int
    coordinator: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which TPU VM this is."""

    project: str
    zone: str
    node: str
    uid: str
    worker: int
    addresses: tuple[str, ...]
    megascale: Megascale | None = None
    wrong: Mapping[str, str] = field(default_factory=dict)  # what its metadata says instead

    @property
    def address(self) -> str:
        return self.addresses[self.worker]

    @property
    def instance(self) -> str:
        """The VM's name in Compute Engine."""
        return f"t1v-n-{self.uid}-w-{self.worker}"

    @property
    def label(self) -> str:
        return f"{self.node}/w{self.worker}"


def project_number(project: str) -> str:
    """A number that is always the same for a project, as the real ones are."""
    digest = hashlib.sha256(project.encode()).digest()
    return str(10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11))


def environment(me: Guest, home: Path, temp: Path) -> dict[str, str]:
    """The environment of the startup script; nothing of the emulator's own comes through.

    The interpreter of the emulator is the image's `python3`.
    """
    name = user.name()
    metadata = f"{me.address}:{PORT}"
    return {
        **{name: os.environ[name] for name in _LOCALE if name in os.environ},
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), *_SYSTEM_PATH)),
        "HOME": str(home),
        "TMPDIR": str(temp),
        "USER": name,
        "LOGNAME": name,
        "SHELL": "/bin/bash",
        "HOSTNAME": me.instance,
        "GCE_METADATA_HOST": metadata,
        "GCE_METADATA_IP": metadata,
        MARKER: me.label,
    }


def tpu_variables(accelerator: Accelerator) -> dict[str, str]:
    """What makes JAX and PyTorch/XLA take the CPU for TPU chips.

    JAX then finds its peers through the metadata server, as it does on a real TPU VM. Many hosts
    share one machine: a thread each is enough for what OpenMP does in PyTorch.
    """
    return {
        "JAX_FORCE_TPU_INIT": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(accelerator.jax_devices_per_host),
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": str(accelerator.jax_devices_per_host),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def metadata(me: Identity, accelerator: Accelerator, node: v2.Node) -> dict[str, str]:
    """Every value of a TPU VM's metadata server, by path."""
    return {
        **attributes(me, accelerator, node),
        **about(me, str(int(me.uid, 16) * 1000 + me.worker), preemptible=_preemptible(node)),
        **account(node.service_account.email, node.service_account.scope),
    }


def about(me: Guest, number: str, *, preemptible: bool) -> dict[str, str]:
    """The values that every VM has; `number` is its numeric id."""
    return {
        "instance/id": number,
        "instance/name": me.instance,
        "instance/hostname": f"{me.instance}.{me.zone}.c.{me.project}.internal",
        "instance/zone": f"projects/{project_number(me.project)}/zones/{me.zone}",
        "instance/network-interfaces/0/ip": me.address,
        PREEMPTED: "FALSE",
        MAINTENANCE: "NONE",
        "instance/scheduling/preemptible": str(preemptible).upper(),
        "project/project-id": me.project,
        "project/numeric-project-id": project_number(me.project),
        "universe/universe-domain": "googleapis.com",
    }


def account(email: str, scopes: Sequence[str]) -> dict[str, str]:
    """The values of a VM's service account, under its address and as the default one."""
    values = {
        "aliases": "default\n",
        "email": email,
        "scopes": "".join(f"{scope}\n" for scope in scopes),
        "token": '{"access_token": "emulated", "expires_in": 3599, "token_type": "Bearer"}',
    }
    return {
        f"instance/service-accounts/{name}/{key}": value
        for name in ("default", email)
        for key, value in values.items()
    }


def default_account(project: str) -> str:
    """The address of the default service account of Compute Engine."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


def attributes(me: Identity, accelerator: Accelerator, node: v2.Node) -> dict[str, str]:
    """The values below `instance/attributes/`: the node's own metadata, and what the API adds."""
    tpu_env = _tpu_env(me, accelerator, node)
    added = {
        "accelerator-type": accelerator.accelerator_type,
        "agent-worker-number": str(me.worker),
        "instance-id": me.node,
        "worker-network-endpoints": _endpoints(me.uid, me.addresses),
        "tpu-env": "".join(
            f"{key}: '{me.wrong.get(key, value)}'\n" for key, value in tpu_env.items()
        ),
    }
    wrong = {key: value for key, value in me.wrong.items() if key not in tpu_env}
    return {ATTRIBUTES + key: value for key, value in (dict(node.metadata) | added | wrong).items()}


def _endpoints(uid: str, addresses: Sequence[str]) -> str:
    """Triples `name:uid:ip`, which torch_xla and JAX both read; JAX alone takes bare addresses."""
    return ",".join(
        f"t1v-n-{uid}-w-{worker}:{uid}{worker}:{address}"
        for worker, address in enumerate(addresses)
    )


def _tpu_env(me: Identity, accelerator: Accelerator, node: v2.Node) -> Mapping[str, str]:
    chips, hosts = accelerator.chips_per_host_bounds, accelerator.host_bounds
    ports = (str(8431 + chip) for chip in range(accelerator.chips_per_host))
    return {
        "ACCELERATOR_TYPE": accelerator.accelerator_type,
        "AGENT_BOOTSTRAP_IMAGE": "",
        "ALT": "false",
        "CHIPS_PER_HOST_BOUNDS": chips,
        "CONSUMER_PROJECT_ID": me.project,
        "CONSUMER_PROJECT_NUMBER": project_number(me.project),
        "ENABLE_ICI_RESILIENCY": "false",
        "FORWARD_LIBTPU_LOGS": "false",
        "HEALTH_AGENT_DOCKER_URL": "",
        "HOST_BOUNDS": hosts,
        "INFERENCE_MODE": "false",
        "INTERNAL": "false",
        "MAINTENANCE_ACTION_FLAG": "",
        "NODE_ID": me.node,
        "PREEMPTIBLE": str(_preemptible(node)).lower(),
        "RUNTIME_VERSION": node.runtime_version,
        "SERVICE_NAME": "tpu.googleapis.com",
        "SOURCE": "",
        "TOPOLOGY": accelerator.topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chips,
        "TPU_PROCESS_BOUNDS": hosts,
        "TPU_RUNTIME_METRICS_PORTS": ",".join(ports),
        "TPU_TOPOLOGY_ALT": "false",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TYPE": accelerator.generation.upper(),
        "UID": me.uid,
        "USE_DIRECT_PATH": "false",
        "WORKER_ID": str(me.worker),
        "WRAP": "false,false,false",
        "ZONE": me.zone,
        **_megascale_env(me),
    }


def _megascale_env(me: Identity) -> Mapping[str, str]:
    if me.megascale is None:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": me.megascale.coordinator or me.addresses[0],
        "MEGASCALE_NUM_SLICES": str(me.megascale.slices),
        "MEGASCALE_SLICE_ID": str(me.megascale.index),
    }


def _preemptible(node: v2.Node) -> bool:
    return node.scheduling_config.preemptible or node.scheduling_config.spot
