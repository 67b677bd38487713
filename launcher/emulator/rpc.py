"""Methods of the API as gRPC handlers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from launcher.emulator.calls import Calls, Subject
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.queued import node_ids

TPU_API = "tpu.googleapis.com"


@dataclass(frozen=True, slots=True)
class Method:
    """One method: what answers it, and the type of its requests.

    The answer is a message, or an awaitable of one; an ApiError raised is the status of the call.
    """

    answer: Callable[[Fleet, Any], Any]
    request: Any


def service(
    name: str, methods: Mapping[str, Method], fleet: Fleet, calls: Calls
) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of one service."""
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _Call(method, spec, fleet, calls).handle,
            request_deserializer=getattr(spec.request, "deserialize", None)
            or spec.request.FromString,
            response_serializer=_serialize,
        )
        for method, spec in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _serialize(message: Any) -> bytes:
    """The bytes of a proto-plus message or of a plain one."""
    wrapper = type(message)
    plain = wrapper.pb(message) if hasattr(wrapper, "pb") else message
    return bytes(plain.SerializeToString())


@dataclass(frozen=True, slots=True)
class _Call:
    """A handler of one method."""

    name: str
    method: Method
    fleet: Fleet
    calls: Calls

    async def handle(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await self.calls.carry_out(
                self.name, subject(request), lambda: self.method.answer(self.fleet, request)
            )
        except ApiError as error:
            await context.abort(error.code, error.message, _trailers(error))


def _trailers(error: ApiError) -> tuple[tuple[str, bytes], ...]:
    """The details of an error as gRPC sends them."""
    if not error.details:
        return ()
    from google.protobuf import json_format
    from google.rpc import error_details_pb2, status_pb2  # noqa: F401 -- the former for the details

    status = {"code": error.number, "message": error.message, "details": list(error.details)}
    message = json_format.ParseDict(status, status_pb2.Status())
    return (("grpc-status-details-bin", message.SerializeToString()),)


def subject(request: Any) -> Subject:
    """The project, the zone and the ids of the node or the queued resource of a request."""
    holder = request.node if hasattr(request, "update_mask") else request
    name = getattr(holder, "name", "") or getattr(holder, "parent", "")
    project, zone, node = (
        re.search(f"{part}/([^/]+)", name)
        for part in ("projects", "locations", "(?:nodes|queuedResources)")
    )
    new = getattr(request, "node_id", "") or getattr(request, "queued_resource_id", "")
    return Subject(
        TPU_API,
        project[1] if project else "",
        zone[1] if zone else "",
        new or (node[1] if node else ""),
        _nodes(new, getattr(request, "queued_resource", None)),
    )


def _nodes(queued_id: str, queued_resource: Any) -> tuple[str, ...]:
    """The node ids of a new queued resource, of either version."""
    specs = queued_resource.tpu.node_spec if queued_resource else ()
    return tuple(node_id for spec in specs for node_id in node_ids(queued_id, spec))
