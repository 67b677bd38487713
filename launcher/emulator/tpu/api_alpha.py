"""`google.cloud.tpu.v2alpha1.Tpu`: the same nodes and queued resources, in that version's messages.

The functions take and give the JSON form of v2alpha1, for `api_rest_tpu` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.emulator.rpc import Method
from launcher.emulator.tpu import alpha
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import Place, page
from launcher.emulator.tpu.operations import Message, Operation
from launcher.emulator.tpu.wire import v2


def create_node(
    fleet: Fleet, parent: str, node_id: str, body: alpha.Json, request_id: str
) -> Operation:
    """Begins to create a node. ApiError 3 if the body is no node of v2alpha1."""
    place = Place.parse(parent)
    node, extras = alpha.read(v2.Node, body)
    if extras.get("schedulingConfig", {}).get("provisioningModel") == "SPOT":
        node.scheduling_config.spot = True
    return fleet.operations.once(
        lambda: fleet.create(place, node_id, node, extras).speak(alpha.V2ALPHA1),
        request_id,
        "CreateNode",
        parent,
    )


def delete_node(fleet: Fleet, name: str, request_id: str) -> Operation:
    return fleet.operations.once(
        lambda: fleet.delete(name).speak(alpha.V2ALPHA1), request_id, "DeleteNode", name
    )


def create_queued_resource(
    fleet: Fleet, parent: str, queued_id: str, body: alpha.Json, request_id: str
) -> Operation:
    """Begins to create a queued resource. ApiError 3 if the body is none of v2alpha1."""
    place = Place.parse(parent)
    queued_resource, extras = alpha.read(v2.QueuedResource, body)
    return fleet.operations.once(
        lambda: fleet.queue.create(place, queued_id, queued_resource, extras).speak(alpha.V2ALPHA1),
        request_id,
        "CreateQueuedResource",
        parent,
    )


def delete_queued_resource(fleet: Fleet, name: str, request_id: str, *, force: bool) -> Operation:
    return fleet.operations.once(
        lambda: fleet.queue.delete(name, force=force).speak(alpha.V2ALPHA1),
        request_id,
        "DeleteQueuedResource",
        name,
    )


def reset_queued_resource(fleet: Fleet, name: str) -> Operation:
    return fleet.queue.reset(name).speak(alpha.V2ALPHA1)


def list_nodes(fleet: Fleet, parent: str, size: int, token: str) -> tuple[list[Any], str]:
    """One page of nodes, each with `message` and `extras`, and the token of the next."""
    return _page(fleet.nodes, parent, size, token)


def list_queued_resources(
    fleet: Fleet, parent: str, size: int, token: str
) -> tuple[list[Any], str]:
    return _page(fleet.queue.resources, parent, size, token)


def _page(resources: Any, parent: str, size: int, token: str) -> tuple[list[Any], str]:
    place = Place.parse(parent, wildcard=True)
    found = [resource for name, resource in resources.items() if place.holds(name)]
    return page(found, lambda resource: resource.name, size, token)


def simulate_maintenance_event(fleet: Fleet, name: str) -> Operation:
    """Begins the maintenance of a node, without notice: it is TERMINATED."""
    return fleet.simulate_maintenance(name).speak(alpha.V2ALPHA1)


def _list_nodes(fleet: Fleet, request: Any) -> Any:
    found, token = list_nodes(fleet, request.parent, request.page_size, request.page_token)
    return _list("ListNodesResponse", "nodes", found, token)


def _list_queued_resources(fleet: Fleet, request: Any) -> Any:
    found, token = list_queued_resources(
        fleet, request.parent, request.page_size, request.page_token
    )
    return _list("ListQueuedResourcesResponse", "queued_resources", found, token)


def _list(kind: str, field: str, found: list[Any], token: str) -> Any:
    reply = getattr(alpha.types(), kind).pb()(next_page_token=token)
    getattr(reply, field).extend(map(_shown, found))
    return reply


def _shown(resource: Any) -> Any:
    return alpha.to_message(resource.message, resource.extras)


def _create_node(fleet: Fleet, request: Any) -> Message:
    body = alpha.to_json(request.node)
    return create_node(fleet, request.parent, request.node_id, body, request.request_id).message()


def _create_queued_resource(fleet: Fleet, request: Any) -> Message:
    body = alpha.to_json(request.queued_resource)
    return create_queued_resource(
        fleet, request.parent, request.queued_resource_id, body, request.request_id
    ).message()


@dataclass(frozen=True, slots=True)
class _Later:
    """A type of requests that is loaded when the first of them comes."""

    name: str

    def deserialize(self, data: bytes) -> Any:
        return getattr(alpha.types(), self.name).deserialize(data)


def _method(answer: Callable[[Fleet, Any], Any], name: str) -> Method:
    return Method(answer, _Later(f"{name}Request"))


METHODS = {
    name: _method(answer, name)
    for name, answer in {
        "ListNodes": _list_nodes,
        "GetNode": lambda fleet, r: _shown(fleet.get(r.name)),
        "CreateNode": _create_node,
        "DeleteNode": lambda fleet, r: delete_node(fleet, r.name, r.request_id).message(),
        "ListQueuedResources": _list_queued_resources,
        "GetQueuedResource": lambda fleet, r: _shown(fleet.queue.get(r.name)),
        "CreateQueuedResource": _create_queued_resource,
        "DeleteQueuedResource": lambda fleet, r: delete_queued_resource(
            fleet, r.name, r.request_id, force=r.force
        ).message(),
        "ResetQueuedResource": lambda fleet, r: reset_queued_resource(fleet, r.name).message(),
        "SimulateMaintenanceEvent": lambda fleet, r: simulate_maintenance_event(
            fleet, r.name
        ).message(),
    }.items()
}
