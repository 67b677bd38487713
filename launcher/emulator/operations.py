"""Long-running operations: begun by a call, polled by name, done once."""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime
from typing import Any, TypeAlias

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from launcher.emulator.api_errors import ApiError, not_found
from launcher.emulator.names import Place, split
from launcher.emulator.wire import v2

Message: TypeAlias = operations_pb2.Operation


class Operation:
    """One operation. It ends once, in a response or an error; one that `hangs` never does."""

    def __init__(self, place: Place, verb: str, target: str, *, hangs: bool) -> None:
        self.name = place.resource("operations", _new_id())
        self.ended = asyncio.Event()
        self._hangs = hangs
        self._result = operations_pb2.Operation()
        self._metadata = v2.OperationMetadata(
            create_time=datetime.now(UTC), target=target, verb=verb, api_version="v2"
        )

    def succeed(self, response: Any = None) -> None:
        """Done, with that message of the API; with Empty if there is none."""
        if self._end():
            message = empty_pb2.Empty() if response is None else type(response).pb(response)
            self._result.response.Pack(message)

    def fail(self, error: ApiError) -> None:
        """Done, with an error in place of a response."""
        if self._end():
            self._result.error.code = error.number
            self._result.error.message = error.message

    def request_cancel(self) -> None:
        """Notes the wish; as the API says, success is not guaranteed."""
        self._metadata.cancel_requested = True

    def message(self) -> Message:
        """What a poll gets."""
        message = operations_pb2.Operation(name=self.name, done=self.ended.is_set())
        message.MergeFrom(self._result)
        message.metadata.Pack(v2.OperationMetadata.pb(self._metadata))
        return message

    def _end(self) -> bool:
        if self._hangs or self.ended.is_set():
            return False
        self._metadata.end_time = datetime.now(UTC)
        self.ended.set()
        return True


class Operations:
    """All operations, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}

    def begin(self, place: Place, verb: str, target: str, *, hangs: bool) -> Operation:
        operation = Operation(place, verb, target, hangs=hangs)
        self._all[operation.name] = operation
        return operation

    def get(self, name: str) -> Operation:
        """The operation of that name; ApiError 5 if there is none."""
        split(name, "operations")
        if name not in self._all:
            raise not_found(name)
        return self._all[name]

    def forget(self, name: str) -> None:
        del self._all[self.get(name).name]

    def within(self, place: Place) -> list[Operation]:
        return [operation for name, operation in self._all.items() if place.holds(name)]


def _new_id() -> str:
    """As the real ones: operation-1692978482497-603c1450fc975-dbf1278b-dcfcecc5."""
    return f"operation-{time.time_ns() // 10**6}-{secrets.token_hex(7)[:13]}-{_word()}-{_word()}"


def _word() -> str:
    return secrets.token_hex(4)
