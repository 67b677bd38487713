"""Where TPU slices come from: one small protocol, and its implementations, loaded on use.

A provider is idempotent by node name: creating what is there adopts it, deleting what is gone
succeeds. It knows nothing of Ray, of runs or of processes.
"""

from __future__ import annotations

import enum
import importlib
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from launcher.plan import NodeRequest
    from launcher.spec import ProviderSpec


class NodeState(enum.StrEnum):
    """The states of a Cloud TPU node, by what they mean to a run.

    `PENDING` becomes `READY` by itself; `DEAD` never does, though the name stays taken until the
    node is deleted; `DELETING` ends in no node at all.
    """

    PENDING = enum.auto()
    READY = enum.auto()
    DEAD = enum.auto()
    DELETING = enum.auto()


@dataclass(frozen=True, slots=True)
class Node:
    """What the provider says of one slice. `raw_state` is the API's own word."""

    name: str
    state: NodeState
    raw_state: str
    accelerator_type: str
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    created: str = ""


class Provider(Protocol):
    """Creates, finds and deletes slices. Errors are `ProvisioningError`."""

    @property
    def endpoint(self) -> str:
        """`host:port` of the API, so that other clients can talk to it too."""

    @property
    def title(self) -> str:
        """How the screen calls it."""

    def create(self, request: NodeRequest, timeout: float, pause: Callable[[float], None]) -> Node:
        """Create the node, or adopt it, and wait until it is READY. `pause` sleeps or raises."""

    def get(self, name: str) -> Node | None:
        """The node, or None when the API says that there is none."""

    def list(self, labels: Mapping[str, str]) -> Sequence[Node]:
        """Every node, in all zones, that carries all of `labels`."""

    def delete(self, name: str, timeout: float) -> None:
        """Delete the node and return when it is really gone."""

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


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be known of a provider before it is opened.

    `place` is how the first line on screen calls it; `project` the one that is used when none is
    named; `shares_disk` whether its hosts see this machine's files; `head_address` gives an address
    of this machine that its hosts can reach.
    """

    module: str
    place: str
    billed: bool
    shares_disk: bool
    project: str
    head_address: Callable[[], str]


KINDS: Mapping[str, Kind] = {
    "google": Kind(
        module="launcher.providers.google",
        place="Google Cloud",
        billed=True,
        shares_disk=False,
        project="",
        head_address=routed_address,
    ),
    "local": Kind(
        module="launcher.providers.local",
        place="emulated on this machine; provider=google for real TPUs",
        billed=False,
        shares_disk=True,
        project="emulated",
        head_address=loopback_address,
    ),
}


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
