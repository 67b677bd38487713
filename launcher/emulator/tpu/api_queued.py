"""`google.cloud.tpu.v2.Tpu`: the methods on queued resources."""

from __future__ import annotations

from launcher.emulator.rpc import Method
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import Place, page
from launcher.emulator.tpu.operations import Message
from launcher.emulator.tpu.wire import v2


def list_queued_resources(
    fleet: Fleet, request: v2.ListQueuedResourcesRequest
) -> v2.ListQueuedResourcesResponse:
    place = Place.parse(request.parent, wildcard=True)
    messages = [r.message for name, r in fleet.queue.resources.items() if place.holds(name)]
    found, token = page(messages, lambda m: m.name, request.page_size, request.page_token)
    return v2.ListQueuedResourcesResponse(queued_resources=found, next_page_token=token)


def get_queued_resource(fleet: Fleet, request: v2.GetQueuedResourceRequest) -> v2.QueuedResource:
    return fleet.queue.get(request.name).message


def create_queued_resource(fleet: Fleet, request: v2.CreateQueuedResourceRequest) -> Message:
    place, queued_id = Place.parse(request.parent), request.queued_resource_id
    return fleet.operations.once(
        lambda: fleet.queue.create(place, queued_id, request.queued_resource),
        request.request_id,
        "CreateQueuedResource",
        request.parent,
    ).message()


def delete_queued_resource(fleet: Fleet, request: v2.DeleteQueuedResourceRequest) -> Message:
    return fleet.operations.once(
        lambda: fleet.queue.delete(request.name, force=request.force),
        request.request_id,
        "DeleteQueuedResource",
        request.name,
    ).message()


def reset_queued_resource(fleet: Fleet, request: v2.ResetQueuedResourceRequest) -> Message:
    return fleet.queue.reset(request.name).message()


METHODS = {
    "ListQueuedResources": Method(list_queued_resources, v2.ListQueuedResourcesRequest),
    "GetQueuedResource": Method(get_queued_resource, v2.GetQueuedResourceRequest),
    "CreateQueuedResource": Method(create_queued_resource, v2.CreateQueuedResourceRequest),
    "DeleteQueuedResource": Method(delete_queued_resource, v2.DeleteQueuedResourceRequest),
    "ResetQueuedResource": Method(reset_queued_resource, v2.ResetQueuedResourceRequest),
}
