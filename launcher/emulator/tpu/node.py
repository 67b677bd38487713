"""One node: the message that the API shows, its hosts, and the changes under way."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpc import StatusCode

from launcher.accelerators import Accelerator
from launcher.emulator.changing import Changing
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.machine import guest
from launcher.emulator.machine.host import Host
from launcher.emulator.machine.metadata import claim_addresses
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.names import Place
from launcher.emulator.tpu.wire import NO_EXTRAS, AcceleratorKind, Extras, Health, State, v2
from launcher.errors import ConfigError

SOCKET_BYTES = 107
"""The longest path of an AF_UNIX socket (sun_path in unix(7), without its final zero)."""
LONGEST_BELOW = "w999/ray/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store"
"""The longest path of a socket that Ray 2.60 makes below the folder of a node."""
TPU_PORT = 8470
_NOWHERE = "192.0.2."  # reserved for documentation: https://www.rfc-editor.org/rfc/rfc5737
_OUTPUT_ONLY = (
    "health_description",
    "health",
    "network_endpoints",
    "symptoms",
    "queued_resource",
    "multislice_node",
)
_API_VERSION: Any = v2.Node.ApiVersion.V2
SCOPES = (
    "devstorage.read_write",
    "logging.write",
    "service.management",
    "servicecontrol",
    "cloud-platform",
    "pubsub",
)


def temp_folder(uid: str) -> Path:
    """The folder of a node's temp folders; known from the uid, so that a restart can remove it.

    Below TMPDIR of the emulator, or below /tmp if that leaves no room for the sockets of Ray.
    """
    folder = Path(tempfile.gettempdir(), f"tpu-{uid}")
    fits = len(os.fsencode(folder / LONGEST_BELOW)) <= SOCKET_BYTES
    return folder if fits else Path("/tmp", folder.name)


@dataclass(frozen=True, slots=True)
class Membership:
    """What binds a node to its queued resource; `changed` is told of each change of its state."""

    queued_resource: str
    changed: Callable[[], None]
    megascale: guest.Megascale | None = None


class EmulatedNode(Changing):
    """One node. `message` is the truth of the API, but for what v2 lacks: `extras`."""

    def __init__(
        self,
        place: Place,
        node_id: str,
        request: v2.Node,
        accelerator: Accelerator,
        nodes_folder: Path,
        ledger: Ledger,
        member: Membership | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> None:
        super().__init__()
        self.place = place
        self.node_id = node_id
        self.member = member
        self.extras = extras
        self.accelerator = accelerator
        self._uid = secrets.token_hex(4)
        self._folder = nodes_folder / self._uid
        self.message = filled(place, node_id, request, accelerator)
        self.message.queued_resource = member.queued_resource if member else ""
        self.message.multislice_node = bool(member and member.megascale)
        self._identities: list[guest.Identity] = []
        self.hosts = self._make_hosts()
        self._ledger = ledger
        self._entry = ledger.open(self.name, place.zone, accelerator.accelerator_type)

    def _make_hosts(self) -> tuple[Host, ...]:
        try:
            listeners = claim_addresses(self.accelerator.hosts)
        except OSError as error:
            raise ApiError(StatusCode.FAILED_PRECONDITION, f"emulator: {error}") from error
        addresses = tuple(str(listener.getsockname()[0]) for listener in listeners)
        self.message.cidr_block = addresses[0].rpartition(".")[0] + ".0/24"
        self._folder.mkdir(parents=True, mode=0o700)
        return tuple(
            self._make_host(worker, listener, addresses)
            for worker, listener in enumerate(listeners)
        )

    def _make_host(self, worker: int, listener: socket.socket, addresses: tuple[str, ...]) -> Host:
        place, folder = self.place, f"w{worker}"
        me = guest.Identity(
            place.project,
            place.zone,
            self.node_id,
            self._uid,
            worker,
            addresses,
            self.member.megascale if self.member else None,
        )
        self._identities.append(me)
        return Host(
            me,
            guest.metadata(me, self.accelerator, self.message),
            guest.tpu_variables(self.accelerator),
            listener,
            self._folder / folder,
            temp_folder(self._uid) / folder,
        )

    @property
    def name(self) -> str:
        return str(self.message.name)

    @property
    def state(self) -> str:
        """The API's name of the state."""
        return str(State(self.message.state).name)

    def become(self, state: int, reason: str = "") -> None:
        """Changes the state that the API shows; `reason` is for the ledger."""
        self.message.state = State(state)
        self.message.health = Health.HEALTHY if state == State.READY else Health.HEALTH_UNSPECIFIED
        self._ledger.enter(self._entry, self.state, reason)
        self.tell()

    def tell(self) -> None:
        """Lets the queued resource that it belongs to, if any, look at it again."""
        if self.member:
            self.member.changed()

    @property
    def script(self) -> str:
        return str(self.message.metadata.get("startup-script", ""))

    def host(self, worker: int | None) -> Host:
        """The host of that worker id; ConfigError if there is none."""
        if worker is None or worker >= len(self.hosts):
            raise ConfigError(f"{self.node_id} has the workers 0 to {len(self.hosts) - 1}")
        return self.hosts[worker]

    def publish_endpoints(self, count: int | None = None) -> None:
        """One endpoint a host, in the order of worker ids; a node being created shows none.

        Another `count` than that of the hosts leaves out the last, or adds some where nobody is.
        """
        count = len(self.hosts) if count is None else count
        addresses = [host.identity.address for host in self.hosts]
        addresses += [f"{_NOWHERE}{number}" for number in range(len(addresses), count)]
        self.message.network_endpoints = [self._endpoint(each) for each in addresses[:count]]

    def _endpoint(self, address: str) -> v2.NetworkEndpoint:
        external = self.message.network_config.enable_external_ips
        return v2.NetworkEndpoint(
            ip_address=address,
            port=TPU_PORT,
            access_config=v2.AccessConfig(external_ip=address) if external else None,
        )

    def mislead(self, worker: int, slices: int) -> None:
        """Has the metadata of a host speak of another job, of so many slices."""
        other = guest.Megascale(slices - 1, slices, f"{_NOWHERE}1")
        self._pretend(worker, replace(self._identities[worker], megascale=other))

    def misstate(self, worker: int, key: str, value: str) -> None:
        """Has the metadata of a host say something else of one key."""
        me = self._identities[worker]
        self._pretend(worker, replace(me, wrong={**me.wrong, key: value}))

    def _pretend(self, worker: int, me: guest.Identity) -> None:
        self._identities[worker] = me
        values = guest.attributes(me, self.accelerator, self.message)
        self.hosts[worker].metadata.replace(guest.ATTRIBUTES, values)

    def announce(self, path: str, value: str) -> None:
        """Changes a metadata value of every host."""
        for host in self.hosts:
            host.metadata.set(path, value)

    def update(self, source: v2.Node, paths: Sequence[str]) -> None:
        """Takes over the fields of those paths, and hands metadata to the hosts."""
        for path in paths:
            old, new = self.message, source
            *parents, field = path.split(".")
            for parent in parents:
                old, new = getattr(old, parent), getattr(new, parent)
            setattr(old, field, getattr(new, field))
        for me, host in zip(self._identities, self.hosts, strict=True):
            values = guest.attributes(me, self.accelerator, self.message)
            host.metadata.replace(guest.ATTRIBUTES, values)

    async def end_hosts(self) -> None:
        """Switches all hosts off, at once; returns when no process of theirs is left."""
        await asyncio.gather(*(host.end() for host in self.hosts))

    async def remove(self, reason: str) -> None:
        """Ends the hosts, gives back addresses and folders, and closes the ledger's entry."""
        await self.end_hosts()
        for host in self.hosts:
            host.metadata.close()
        for folder in (self._folder, temp_folder(self._uid)):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._ledger.enter(self._entry, GONE, reason)


def filled(place: Place, node_id: str, request: v2.Node, accelerator: Accelerator) -> v2.Node:
    """The request's node with all that the API adds, as in recorded answers."""
    node = v2.Node(request)
    for field in _OUTPUT_ONLY:
        v2.Node.pb(node).ClearField(field)
    node.name = place.resource("nodes", node_id)
    node.id = secrets.randbits(62)
    node.state = State.CREATING
    node.api_version = _API_VERSION
    node.create_time = datetime.now(UTC)
    node.accelerator_type = accelerator.accelerator_type
    node.accelerator_config = v2.AcceleratorConfig(
        type_=accelerator_kind(accelerator.generation), topology=accelerator.topology
    )
    node.scheduling_config = v2.SchedulingConfig(request.scheduling_config)
    node.shielded_instance_config = v2.ShieldedInstanceConfig(request.shielded_instance_config)
    if not node.network_configs:
        node.network_config = _network(place, v2.NetworkConfig(request.network_config))
    account = node.service_account
    node.service_account = v2.ServiceAccount(
        email=account.email or guest.default_account(place.project),
        scope=account.scope or [f"https://www.googleapis.com/auth/{scope}" for scope in SCOPES],
    )
    return node


def _network(place: Place, network: v2.NetworkConfig) -> v2.NetworkConfig:
    project, region = place.project, place.zone.rpartition("-")[0]
    network.network = _expanded(network.network, f"projects/{project}/global/networks")
    network.subnetwork = _expanded(
        network.subnetwork, f"projects/{project}/regions/{region}/subnetworks"
    )
    return network


def _expanded(name: str, folder: str) -> str:
    return name if "/" in name else f"{folder}/{name or 'default'}"


def accelerator_kind(generation: str) -> int:
    """The API's enum value; TYPE_UNSPECIFIED for generations that it does not serve (tpu7x)."""
    name = {"v5e": "V5LITE_POD"}.get(generation, generation.upper())
    known = name in AcceleratorKind.__members__
    return int(AcceleratorKind[name if known else "TYPE_UNSPECIFIED"])
