"""The Cloud TPU API over REST, v2alpha1: what client 1.28 has no fields for, flex-start above all.

https://docs.cloud.google.com/tpu/docs/reference/rest/v2alpha1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.emulator.http.routes import Call, Route
from launcher.emulator.tpu import alpha, api_alpha
from launcher.emulator.tpu.errors import bad_field
from launcher.emulator.world import World

Json = dict[str, Any]

_PLACE = "/v2alpha1/projects/{project}/locations/{zone}"


def _parent(call: Call) -> str:
    return f"projects/{call.params['project']}/locations/{call.params['zone']}"


def _name(call: Call, collection: str) -> str:
    return f"{_parent(call)}/{collection}/{call.params['id']}"


def _shown(resource: Any) -> Json:
    return alpha.show(resource.message, resource.extras)


def _page(query: Mapping[str, str]) -> tuple[int, str]:
    size = query.get("pageSize", "0")
    if not size.isdecimal():
        raise bad_field("page_size", size)
    return int(size), query.get("pageToken", "")


def _list(key: str, found: tuple[list[Any], str]) -> Json:
    resources, token = found
    shown: Json = {key: [_shown(each) for each in resources]} if resources else {}
    return {**shown, **({"nextPageToken": token} if token else {})}


def _flag(query: Mapping[str, str], key: str) -> bool:
    value = query.get(key, "false")
    if value not in ("true", "false"):
        raise bad_field(key, value)
    return value == "true"


def list_nodes(world: World, call: Call) -> Json:
    found = api_alpha.list_nodes(world.fleet, _parent(call), *_page(call.query))
    return _list("nodes", found)


def get_node(world: World, call: Call) -> Json:
    return _shown(world.fleet.get(_name(call, "nodes")))


def create_node(world: World, call: Call) -> Json:
    node_id, request_id = call.query.get("nodeId", ""), call.query.get("requestId", "")
    operation = api_alpha.create_node(world.fleet, _parent(call), node_id, call.body, request_id)
    return alpha.operation_json(operation)


def delete_node(world: World, call: Call) -> Json:
    name, request_id = _name(call, "nodes"), call.query.get("requestId", "")
    return alpha.operation_json(api_alpha.delete_node(world.fleet, name, request_id))


def list_queued_resources(world: World, call: Call) -> Json:
    found = api_alpha.list_queued_resources(world.fleet, _parent(call), *_page(call.query))
    return _list("queuedResources", found)


def get_queued_resource(world: World, call: Call) -> Json:
    return _shown(world.fleet.queue.get(_name(call, "queuedResources")))


def create_queued_resource(world: World, call: Call) -> Json:
    operation = api_alpha.create_queued_resource(
        world.fleet,
        _parent(call),
        call.query.get("queuedResourceId", ""),
        call.body,
        call.query.get("requestId", ""),
    )
    return alpha.operation_json(operation)


def delete_queued_resource(world: World, call: Call) -> Json:
    operation = api_alpha.delete_queued_resource(
        world.fleet,
        _name(call, "queuedResources"),
        call.query.get("requestId", ""),
        force=_flag(call.query, "force"),
    )
    return alpha.operation_json(operation)


def reset_queued_resource(world: World, call: Call) -> Json:
    operation = api_alpha.reset_queued_resource(world.fleet, _name(call, "queuedResources"))
    return alpha.operation_json(operation)


def get_operation(world: World, call: Call) -> Json:
    return alpha.operation_json(world.fleet.operations.get(_name(call, "operations")))


_NODES, _QUEUED = f"{_PLACE}/nodes", f"{_PLACE}/queuedResources"
ROUTES: tuple[Route, ...] = (
    Route("GET", _NODES, list_nodes, "ListNodes", "id"),
    Route("POST", _NODES, create_node, "CreateNode", "nodeId"),
    Route("GET", _NODES + "/{id}", get_node, "GetNode", "id"),
    Route("DELETE", _NODES + "/{id}", delete_node, "DeleteNode", "id"),
    Route("GET", _QUEUED, list_queued_resources, "ListQueuedResources", "id"),
    Route("POST", _QUEUED, create_queued_resource, "CreateQueuedResource", "queuedResourceId"),
    Route("GET", _QUEUED + "/{id}", get_queued_resource, "GetQueuedResource", "id"),
    Route("DELETE", _QUEUED + "/{id}", delete_queued_resource, "DeleteQueuedResource", "id"),
    Route("POST", _QUEUED + "/{id}:reset", reset_queued_resource, "ResetQueuedResource", "id"),
    Route("GET", _PLACE + "/operations/{id}", get_operation, "GetOperation", "id"),
)
