"""`google.cloud.tpu.v2.Tpu`: the methods on nodes."""

from __future__ import annotations

from launcher.emulator.rpc import Method
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import Place, page
from launcher.emulator.tpu.operations import Message
from launcher.emulator.tpu.wire import v2


def list_nodes(fleet: Fleet, request: v2.ListNodesRequest) -> v2.ListNodesResponse:
    place = Place.parse(request.parent, wildcard=True)
    nodes = [node.message for name, node in fleet.nodes.items() if place.holds(name)]
    found, token = page(nodes, lambda node: node.name, request.page_size, request.page_token)
    return v2.ListNodesResponse(nodes=found, next_page_token=token)


def get_node(fleet: Fleet, request: v2.GetNodeRequest) -> v2.Node:
    return fleet.get(request.name).message


def create_node(fleet: Fleet, request: v2.CreateNodeRequest) -> Message:
    place = Place.parse(request.parent)
    return fleet.create(place, request.node_id, request.node).message()


def delete_node(fleet: Fleet, request: v2.DeleteNodeRequest) -> Message:
    return fleet.delete(request.name).message()


def update_node(fleet: Fleet, request: v2.UpdateNodeRequest) -> Message:
    return fleet.update(request.node, request.update_mask.paths).message()


def stop_node(fleet: Fleet, request: v2.StopNodeRequest) -> Message:
    return fleet.stop(request.name).message()


def start_node(fleet: Fleet, request: v2.StartNodeRequest) -> Message:
    return fleet.start(request.name).message()


METHODS = {
    "ListNodes": Method(list_nodes, v2.ListNodesRequest),
    "GetNode": Method(get_node, v2.GetNodeRequest),
    "CreateNode": Method(create_node, v2.CreateNodeRequest),
    "DeleteNode": Method(delete_node, v2.DeleteNodeRequest),
    "UpdateNode": Method(update_node, v2.UpdateNodeRequest),
    "StopNode": Method(stop_node, v2.StopNodeRequest),
    "StartNode": Method(start_node, v2.StartNodeRequest),
}
