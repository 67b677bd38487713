"""Methods of the API as gRPC handlers, with the faults that hit a call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from launcher.emulator.api_errors import ApiError, injected
from launcher.emulator.fleet import Fleet
from launcher.emulator.presence import Presence

_LOST = ApiError(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
_UNAVAILABLE = ApiError(grpc.StatusCode.UNAVAILABLE, "The service is currently unavailable.")
_ENDING = ApiError(grpc.StatusCode.UNAVAILABLE, "the emulator is ending")


@dataclass(frozen=True, slots=True)
class Method:
    """One method: what answers it, and the type of its requests.

    The answer is a message, or an awaitable of one; an ApiError raised is the status of the call.
    """

    answer: Callable[[Fleet, Any], Any]
    request: Any


def service(
    name: str, methods: Mapping[str, Method], fleet: Fleet, presence: Presence
) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of one service."""
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _Call(method, spec, fleet, presence).handle,
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
    """A handler: the faults that come before, the answer, the faults that come after."""

    name: str
    method: Method
    fleet: Fleet
    presence: Presence

    async def handle(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        self.presence.touch()
        try:
            return await self._answer(request)
        except ApiError as error:
            await context.abort(error.code, error.message)

    async def _answer(self, request: Any) -> Any:
        if self.presence.ending:
            raise _ENDING
        zone, node = subject(request)
        strike = partial(self.fleet.rules.strike, zone=zone, node=node, method=self.name)
        if strike("unavailable"):
            raise _UNAVAILABLE
        if rule := strike("call-error"):
            raise injected(rule.code, rule.message)
        answer = self.method.answer(self.fleet, request)
        if inspect.isawaitable(answer):
            answer = await answer
        if strike("lost-reply"):
            raise _LOST
        return answer


def subject(request: Any) -> tuple[str, str]:
    """The zone and the node id that a request is about; "" where it names none."""
    holder = request.node if hasattr(request, "update_mask") else request
    name = getattr(holder, "name", "") or getattr(holder, "parent", "")
    zone = re.search(r"locations/([^/]+)", name)
    node = re.search(r"nodes/([^/]+)", name)
    return zone[1] if zone else "", getattr(request, "node_id", "") or (node[1] if node else "")
