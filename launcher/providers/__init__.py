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
from typing import TYPE_CHECKING, Any, Protocol

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.spec import ProviderSpec

PROVIDERS = {
    "google": "launcher.providers.google:open_provider",
    "local": "launcher.providers.local:open_provider",
}

EMULATED_PROJECT = "emulated"  # where no project is named


class NodeState(enum.StrEnum):
    """The states of a Cloud TPU node, by what they mean to a run.

    `COMING` becomes `READY` by itself; `LOST` never does, though the name stays taken until the
    node is deleted; `GOING` ends in no node at all.
    """

    COMING = enum.auto()
    READY = enum.auto()
    LOST = enum.auto()
    GOING = enum.auto()


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One literal CreateNode call: `body` is a `google.cloud.tpu.v2.Node` in field names."""

    parent: str
    node_id: str
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.parent}/nodes/{self.node_id}"


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


def head_address(kind: str) -> str:
    """An address of this machine that the provider's hosts can reach."""
    return {"local": loopback_address, "google": routed_address}[kind]()


def loopback_address() -> str:
    """Neither 127.0.0.1, which Ray replaces by an outside address, nor an emulated host's."""
    return f"127.0.{random.randint(100, 199)}.{random.randint(2, 254)}"


def routed_address() -> str:
    """The address from which this machine would send to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # a documentation address; UDP: nothing is sent
        return str(probe.getsockname()[0])


def open_provider(spec: ProviderSpec) -> Provider:
    """The provider that `spec.kind` names; only its own libraries are imported."""
    if spec.kind not in PROVIDERS:
        raise ConfigError(f"provider.kind: {spec.kind!r} is none of {', '.join(PROVIDERS)}")
    module, _, function = PROVIDERS[spec.kind].partition(":")
    opened: Provider = getattr(importlib.import_module(module), function)(spec)
    return opened
