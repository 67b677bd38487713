"""Where TPU slices come from: one small protocol, and its implementations, loaded on use.

A provider is idempotent by name: creating what is there adopts it, deleting what is gone
succeeds. It knows nothing of Ray, of runs or of processes.
"""

from __future__ import annotations

import importlib
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from launcher import raynode
from launcher.providers.states import State

if TYPE_CHECKING:
    from launcher.provisioning.requests import Request
    from launcher.spec import ProviderSpec


@dataclass(frozen=True, slots=True)
class Resource:
    """What the provider says of a node or a queued resource. `raw_state` is the API's own word.

    `error` is the gRPC code and the message that a queued resource failed with; `addresses` are
    those of a node's hosts by worker id; `queued_resource` names the one that made the node;
    `symptoms` are kind, worker id and details.
    """

    name: str
    state: State
    raw_state: str
    accelerator_type: str
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    created: str = ""
    queued_resource: str = ""
    error: tuple[int, str] | None = None
    health: str = ""
    symptoms: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is, and the zones that did not answer."""

    resources: tuple[Resource, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In seconds: how long to wait for capacity, and from the grant until READY."""

    queue: float
    provision: float


Pause = Callable[[float], None]
"""Sleeps for that many seconds, or raises when the wait is to end."""
Watch = Callable[[str, State], None]
"""Is told the API's word for the state, and its meaning, at every look."""


def not_watched(_word: str, _state: State) -> None:
    pass


class Provider(Protocol):
    """Creates, finds and deletes nodes and queued resources, told apart by their full names.

    Errors are `ProvisioningError`; of `create` they are `Refused`, which says why.
    """

    @property
    def endpoint(self) -> str:
        """`host:port` of the API, so that other clients can talk to it too."""

    @property
    def title(self) -> str:
        """How the screen calls it."""

    @property
    def client(self) -> Any:
        """The `TpuClient` of google-cloud-tpu behind it, for reads that a run does not need."""

    def create(
        self,
        request: Request,
        deadlines: Deadlines,
        pause: Pause,
        watch: Watch = not_watched,
        *,
        asked: bool = False,
    ) -> Sequence[Resource]:
        """Create what is asked for, or adopt it, and wait until its nodes are READY: these.

        With `asked` it may have been asked for before: what is there is not asked for again.
        """

    def get(self, name: str) -> Resource | None:
        """The resource, or None when the API says that there is none."""

    def list(self, labels: Mapping[str, str]) -> Listing:
        """Every node and queued resource, in all zones, that carries all of `labels`."""

    def delete(
        self, name: str, labels: Mapping[str, str], timeout: float, pause: Pause = time.sleep
    ) -> None:
        """Delete it, the nodes of a queued resource included; return when it is really gone.

        What lacks one of `labels` belongs to another: it is left alone, as if it were not there.
        """

    def console(self, name: str, worker: int) -> str:
        """The end of the host's console log; a hint where to read it when there is no call."""

    def close(self) -> None:
        """Let go of the API."""


def loopback_address() -> str:
    """Neither 127.0.0.1, which Ray replaces by an outside address, nor an emulated host's."""
    return f"127.0.{random.randint(100, 199)}.{random.randint(2, 254)}"


def routed_address() -> str:
    """The address from which this machine would send to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # a documentation address; UDP: nothing is sent
        return str(probe.getsockname()[0])


def known_ports() -> Sequence[int]:
    """For a head with a machine of its own, in the order of `raynode.port_block`.

    The last two are those that Ray's documentation gives to the GCS and the dashboard.
    """
    return (*range(6381, 6387), 6379, 8265)


def free_ports() -> Sequence[int]:
    """For a head that shares this machine with others."""
    return raynode.port_block("127.0.0.1", head=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be known of a provider before it is opened.

    `place` is how the first line on screen calls it; `project` the one that is used when none is
    named; `shares_disk` whether its hosts see this machine's files; `head_address` gives an address
    of this machine that its hosts can reach, `vm_ports` the ports of a head on a VM of its own;
    `tunnelled` whether such a VM is reached through a tunnel only; `news_seconds` by how much the
    API may lag behind the death of a host (a minute at Google: skypilot#849).
    """

    module: str
    place: str
    news_seconds: float
    billed: bool
    shares_disk: bool
    project: str
    head_address: Callable[[], str]
    vm_ports: Callable[[], Sequence[int]]
    tunnelled: bool


KINDS: Mapping[str, Kind] = {
    "google": Kind(
        module="launcher.providers.google",
        place="Google Cloud",
        news_seconds=60.0,
        billed=True,
        shares_disk=False,
        project="",
        head_address=routed_address,
        vm_ports=known_ports,
        tunnelled=True,
    ),
    "local": Kind(
        module="launcher.providers.local",
        place="emulated on this machine; provider=google for real TPUs",
        news_seconds=3.0,
        billed=False,
        shares_disk=True,
        project="emulated",
        head_address=loopback_address,
        vm_ports=free_ports,
        tunnelled=False,
    ),
}


def project_of(spec: ProviderSpec) -> str:
    """The project that is named, or else that of the kind."""
    return spec.project or KINDS[spec.kind].project


def find_provider(spec: ProviderSpec) -> Provider | None:
    """The provider, unless it would have to be started first: then nothing is in it."""
    module = importlib.import_module(KINDS[spec.kind].module)
    return open_provider(spec) if module.is_running(spec) else None


def open_provider(spec: ProviderSpec, nodes: Sequence[str] = ()) -> Provider:
    """The provider of `spec.kind`; only its own libraries are imported.

    `nodes` are the ids of the run that it is opened for: emulated faults strike no others.
    """
    module = importlib.import_module(KINDS[spec.kind].module)
    opened: Provider = module.open_provider(spec, nodes)
    return opened
