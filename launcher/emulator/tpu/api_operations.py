"""`google.longrunning.Operations`: poll, wait for, list, cancel and forget operations."""

from __future__ import annotations

import asyncio
import contextlib

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from launcher.emulator.rpc import Method
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import Place, page
from launcher.emulator.tpu.operations import Message


def get_operation(fleet: Fleet, request: operations_pb2.GetOperationRequest) -> Message:
    return fleet.operations.get(request.name).message()


async def wait_operation(fleet: Fleet, request: operations_pb2.WaitOperationRequest) -> Message:
    operation = fleet.operations.get(request.name)
    limit = request.timeout.ToTimedelta().total_seconds() if request.HasField("timeout") else None
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(operation.ended.wait(), limit)
    return operation.message()


def list_operations(
    fleet: Fleet, request: operations_pb2.ListOperationsRequest
) -> operations_pb2.ListOperationsResponse:
    place = Place.parse(request.name.removesuffix("/operations"), wildcard=True)
    messages = [operation.message() for operation in fleet.operations.within(place)]
    found, token = page(messages, lambda m: m.name, request.page_size, request.page_token)
    return operations_pb2.ListOperationsResponse(operations=found, next_page_token=token)


def cancel_operation(
    fleet: Fleet, request: operations_pb2.CancelOperationRequest
) -> empty_pb2.Empty:
    fleet.operations.get(request.name).request_cancel()
    return empty_pb2.Empty()


def delete_operation(
    fleet: Fleet, request: operations_pb2.DeleteOperationRequest
) -> empty_pb2.Empty:
    fleet.operations.forget(request.name)
    return empty_pb2.Empty()


METHODS = {
    "GetOperation": Method(get_operation, operations_pb2.GetOperationRequest),
    "WaitOperation": Method(wait_operation, operations_pb2.WaitOperationRequest),
    "ListOperations": Method(list_operations, operations_pb2.ListOperationsRequest),
    "CancelOperation": Method(cancel_operation, operations_pb2.CancelOperationRequest),
    "DeleteOperation": Method(delete_operation, operations_pb2.DeleteOperationRequest),
}
