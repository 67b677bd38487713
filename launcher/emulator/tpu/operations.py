"""Long-running operations: begun by a call, polled by name, done once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from launcher.emulator.tpu.errors import ApiError, not_found
from launcher.emulator.tpu.names import Place, split
from launcher.emulator.tpu.wire import NO_EXTRAS, Extras, v2

Message: TypeAlias = operations_pb2.Operation


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the API: its name, and how it shows a message of v2 with its extras.

    `gone_is_empty`: whether the delete of a queued resource answers with Empty, not with what it
    was.
    """

    name: str
    show: Callable[[Any, Extras], Any]
    gone_is_empty: bool


V2 = Version("v2", lambda message, _: type(message).pb(message), gone_is_empty=True)


class Operation:
    """One operation. It ends once, in a response or an error; one that `hangs` never does.

    It speaks the version of the API by which it was begun, whoever asks.
    """

    def __init__(self, place: Place, verb: str, target: str, *, hangs: bool) -> None:
        self.name = place.resource("operations", new_id())
        self.ended = asyncio.Event()
        self.error: ApiError | None = None
        self.response: Any = None
        self.extras: Extras = NO_EXTRAS
        self.metadata = v2.OperationMetadata(
            create_time=datetime.now(UTC), target=target, verb=verb
        )
        self.speak(V2)
        self._hangs = hangs

    def speak(self, version: Version) -> Operation:
        """Answers in that version from now on."""
        self.version = version
        self.metadata.api_version = version.name
        return self

    def succeed(self, response: Any = None, extras: Extras = NO_EXTRAS) -> None:
        """Done, with a copy of that message of the API; with Empty if there is none."""
        if self._end() and response is not None:
            self.response, self.extras = type(response)(response), extras

    def fail(self, error: ApiError) -> None:
        """Done, with an error in place of a response."""
        if self._end():
            self.error = error

    def request_cancel(self) -> None:
        """Notes the wish; as the API says, success is not guaranteed."""
        self.metadata.cancel_requested = True

    def message(self) -> Message:
        """What a poll gets."""
        message = operations_pb2.Operation(name=self.name, done=self.ended.is_set())
        message.metadata.Pack(self.version.show(self.metadata, NO_EXTRAS))
        if self.error:
            message.error.code = self.error.number
            message.error.message = self.error.message
        elif message.done:
            message.response.Pack(self._shown())
        return message

    def _shown(self) -> Any:
        return empty_pb2.Empty() if self.is_empty else self.version.show(self.response, self.extras)

    @property
    def is_empty(self) -> bool:
        """Whether the response is Empty."""
        gone = self.metadata.verb == "delete" and self.version.gone_is_empty
        return self.response is None or gone

    def _end(self) -> bool:
        if self._hangs or self.ended.is_set():
            return False
        self.metadata.end_time = datetime.now(UTC)
        self.ended.set()
        return True


class Operations:
    """All operations, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}
        self._by_request: dict[tuple[str, ...], Operation] = {}

    def begin(self, place: Place, verb: str, target: str, *, hangs: bool) -> Operation:
        operation = Operation(place, verb, target, hangs=hangs)
        self._all[operation.name] = operation
        return operation

    def once(self, begin: Callable[[], Operation], request_id: str, *call: str) -> Operation:
        """The operation that this call began before, by its request id, or else a new one.

        `call` is the method and the resource (https://google.aip.dev/155). A call that was refused
        is tried again.
        """
        key = (request_id, *call)
        if not request_id or key not in self._by_request:
            operation = begin()
            if request_id:
                self._by_request[key] = operation
            return operation
        return self._by_request[key]

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


def new_id() -> str:
    """As the real ones: operation-1692978482497-603c1450fc975-dbf1278b-dcfcecc5."""
    return f"operation-{time.time_ns() // 10**6}-{secrets.token_hex(7)[:13]}-{_word()}-{_word()}"


def _word() -> str:
    return secrets.token_hex(4)
