"""One offer → the literal requests to the Cloud TPU API. Pure.

A body is a message of `google.cloud.tpu.v2` in field names, or, for flex-start, JSON of the REST
form of v2alpha1: the client library has no fields for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from launcher.hosts import tpu_env
from launcher.provisioning.capacity import CAPACITIES, FLEX_START, QUEUED_RESERVED
from launcher.spec import Machine, Offer, Queue, Spec

LABEL_RUN, LABEL_OWNER = "launcher-run", "launcher-owner"
LABEL_MACHINE, LABEL_ATTEMPT = "launcher-machine", "launcher-attempt"
OWNERSHIP = (LABEL_RUN, LABEL_OWNER, LABEL_MACHINE)  # labels that tell whose a resource is
TAG = "launcher"  # of VMs that may reach each other, where the coordinator is a VM
AT_RUN_TIME = "<known when the coordinator is up>"
FROM_NOW = "<time of the request> + "
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
NOT_SETTINGS = ("tpu", "queueing_policy", "queueingPolicy", "metadata")  # of a `Request`
NODES, QUEUED_RESOURCES = "nodes", "queuedResources"  # the API's collections


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, as label values, and the project that pays; `machine` is `registry.machine_id`."""

    owner: str
    machine: str
    project: str


@dataclass(frozen=True, slots=True)
class Request:
    """One literal create call. `nodes` are the ids of what comes of it, by slice number."""

    method: str  # CreateNode | CreateQueuedResource
    version: str  # v2 | v2alpha1 (REST)
    parent: str
    id: str
    body: Mapping[str, Any]
    nodes: tuple[str, ...]

    @property
    def queued(self) -> bool:
        return self.method == "CreateQueuedResource"

    @property
    def name(self) -> str:
        """The full name of what is created."""
        return f"{self.parent}/{QUEUED_RESOURCES if self.queued else NODES}/{self.id}"

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{self.parent}/{NODES}/{node}" for node in self.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """Of everything that comes of it."""
        return tuple(dict.fromkeys((self.name, *self.node_names)))

    @property
    def node(self) -> Mapping[str, Any]:
        """The node that is asked for, once or several times."""
        if not self.queued:
            return self.body
        node: Mapping[str, Any] = self.body["tpu"][self._specs][0]["node"]
        return node

    @property
    def settings(self) -> Mapping[str, Any]:
        """What it asks for that does not change afterwards: all but the metadata, which may tell of
        one program or another, and how long it may wait.
        """
        whole = {k: v for k, v in self.body.items() if k not in NOT_SETTINGS} if self.queued else {}
        return {**whole, **{k: v for k, v in self.node.items() if k not in NOT_SETTINGS}}

    @property
    def _specs(self) -> str:
        return "node_spec" if self.version == "v2" else "nodeSpec"

    def to_json(self) -> dict[str, Any]:
        """As `plan --json` prints it."""
        key = "queued_resource_id" if self.queued else "node_id"
        return {
            "method": self.method,
            "version": self.version,
            "parent": self.parent,
            key: self.id,
            "body": self.body,
        }

    def with_node(self, change: Callable[[dict[str, Any]], None]) -> Request:
        """The same request with `change` made to a copy of its node."""
        node = copied(self.node)
        change(node)
        if not self.queued:
            return replace(self, body=node)
        body = copied(self.body)
        body["tpu"][self._specs][0]["node"] = node
        return replace(self, body=body)


def copied(value: Any) -> Any:
    """A deep copy that can be written to."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list | tuple) else value


def requests_for(
    spec: Spec, offer: Offer, identity: Identity, script: str, slices: int
) -> tuple[Request, ...]:
    """One CreateNode a slice, or one queued resource for all of them; one a slice where the number
    may change, since a queued resource is granted, and lost, as a whole.
    """
    parent = f"projects/{identity.project}/locations/{offer.zone}"
    node = node_body(spec, offer, identity, script)
    ids = [node_id(spec.name, index) for index in range(slices)]
    if CAPACITIES[offer.capacity].queued and spec.mode.is_elastic:
        return tuple(queued_request(spec, offer, parent, node, id, (id,)) for id in ids)
    if CAPACITIES[offer.capacity].queued:
        nodes = multislice_ids(spec.name, slices) if slices > 1 else tuple(ids)
        return (queued_request(spec, offer, parent, node, spec.name, nodes),)
    count = 0 if spec.mode.is_elastic else slices
    return tuple(
        Request("CreateNode", "v2", parent, id, numbered(node, count, index), (id,))
        for index, id in enumerate(ids)
    )


def numbered(node: Mapping[str, Any], slices: int, index: int) -> Mapping[str, Any]:
    """The node with word of how many slices there are, and which this is, where that is one of
    several and remains so. Google says it of those of one queued resource alone.
    """
    if slices < 2:
        return node
    words = {tpu_env.SLICES: tpu_env.numbering(slices, index)}
    return {**node, "metadata": {**node["metadata"], **words}}


def is_queued(name: str) -> bool:
    """Whether a full name is that of a queued resource; else it is a node's."""
    return f"/{QUEUED_RESOURCES}/" in name


def node_id(name: str, index: int) -> str:
    return f"{name}-s{index}"


def multislice_ids(name: str, slices: int) -> tuple[str, ...]:
    """Those that the API makes of the prefix `NAME-s`."""
    return tuple(f"{name}-s-{index}" for index in range(slices))


def node_body(spec: Spec, offer: Offer, identity: Identity, script: str) -> dict[str, Any]:
    cluster, labels = spec.cluster, {LABEL_RUN: spec.name, LABEL_OWNER: identity.owner}
    labels |= {LABEL_MACHINE: identity.machine, LABEL_ATTEMPT: "0"}
    body: dict[str, Any] = {
        "accelerator_type": offer.accelerator.accelerator_type,
        "runtime_version": offer.runtime_version,
        "labels": {**cluster.machine.labels, **labels},
        "metadata": {
            "startup-script": script,
            "launcher-join": AT_RUN_TIME,
            "launcher-token": AT_RUN_TIME,
        },
        **machine_fields(cluster.machine),
    }
    if cluster.coordinator == "vm":
        body["tags"] = list(dict.fromkeys([*cluster.machine.tags, TAG]))
    if scheduling := CAPACITIES[offer.capacity].scheduling:
        body["scheduling_config"] = dict(scheduling)
    return body


def machine_fields(machine: Machine) -> dict[str, Any]:
    network = {"network": machine.network, "subnetwork": machine.subnetwork}
    fields: dict[str, Any] = {
        "network_config": {
            **{key: value for key, value in network.items() if value},
            "enable_external_ips": machine.external_ips,
        }
    }
    if machine.tags:
        fields["tags"] = list(machine.tags)
    if machine.service_account or machine.scopes:
        scopes = machine.scopes or (CLOUD_PLATFORM,)
        fields["service_account"] = {"email": machine.service_account or "", "scope": list(scopes)}
    if machine.data_disks:
        fields["data_disks"] = [
            {"source_disk": source, "mode": mode} for source, mode in machine.data_disks
        ]
    if machine.secure_boot:
        fields["shielded_instance_config"] = {"enable_secure_boot": True}
    return fields


def queued_request(
    spec: Spec, offer: Offer, parent: str, node: dict[str, Any], id: str, nodes: tuple[str, ...]
) -> Request:
    """The nodes as one queued resource: granted whole or not at all."""
    flex = offer.capacity == FLEX_START
    strategy: dict[str, Any] = {"node_id": nodes[0]}
    if len(nodes) > 1:
        count = {"node_count": len(nodes), "node_id_prefix": f"{spec.name}-s"}
        strategy = {"multi_node_params" if flex else "multislice_params": count}
    node_spec = {"parent": parent, **strategy, "node": node}
    policy = queueing_policy(spec.cluster.queue, spec.cluster.queue_timeout)
    if flex:
        model = {"provisioning_model": "FLEX_START", "queueing_policy": policy}
        assert spec.cluster.queue.max_run_time is not None  # the checks have passed
        run = {"max_run_duration": duration(spec.cluster.queue.max_run_time)}
        body = camel_case({"tpu": {"node_spec": [node_spec]}, **model, "run_duration": run})
        return Request("CreateQueuedResource", "v2alpha1", parent, id, body, nodes)
    body = {"tpu": {"node_spec": [node_spec]}, **CAPACITIES[offer.capacity].tier}
    if offer.capacity == QUEUED_RESERVED and (reservation := spec.cluster.queue.reservation):
        project = parent.split("/")[1]
        body["reservation_name"] = (
            f"projects/{project}/locations/{offer.zone}/reservations/{reservation}"
        )
    body["queueing_policy"] = policy
    return Request("CreateQueuedResource", "v2", parent, id, body, nodes)


def queueing_policy(queue: Queue, queue_timeout: float) -> dict[str, Any]:
    """When it may be granted. Without a wish it expires when the launcher would give it up: one
    whose launcher died is not granted, and billed, an hour later (marin#4724).

    An interval has two times; those that count from the request are known when it is made.
    """
    after, until = queue.valid_after, queue.valid_until or queue_timeout
    if after is not None:
        return {"valid_interval": {"start_time": moment(after), "end_time": moment(until)}}
    if isinstance(until, str):
        return {"valid_until_time": until}
    return {"valid_until_duration": duration(until)}


def moment(given: float | str) -> str:
    return given if isinstance(given, str) else f"{FROM_NOW}{duration(given)}"


def dated(request: Request, now: datetime) -> Request:
    """The request with times in the place of those that count from it."""
    return replace(request, body=_dated(request.body, now))


def _dated(value: Any, now: datetime) -> Any:
    if isinstance(value, Mapping):
        return {key: _dated(inner, now) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith(FROM_NOW):
        later = now + timedelta(seconds=float(value.removeprefix(FROM_NOW).removesuffix("s")))
        return later.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return value


def duration(seconds: float) -> str:
    """As the JSON form of protocol buffers writes it: to the millisecond, with all its digits."""
    whole, _, fraction = f"{seconds:.3f}".partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}{'.' if fraction else ''}{fraction}s"


# Their keys are the user's own, not fields of a message.
FREE_MAPS = ("labels", "metadata")


def camel_case(value: Any) -> Any:
    """Field names as the JSON form of protocol buffers spells them."""
    if isinstance(value, Mapping):
        return {
            camel(key): inner if key in FREE_MAPS else camel_case(inner)
            for key, inner in value.items()
        }
    return [camel_case(inner) for inner in value] if isinstance(value, list | tuple) else value


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)
