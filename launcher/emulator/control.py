"""The emulator's own service, `launcher.emulator.Control`: attach, and commands in JSON.

`Attach` is a stream that stays open: its first message says that the emulator counts this client,
and will not end before the stream does. It may take `rules`, and the `nodes` that they are for:
they are armed for as long as the stream is open, which also ends when its client is killed.
`Command` takes a JSON object with the key `command`. Both answer with a JSON object, which holds
`error` if the request was wrong.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from launcher.emulator.api_errors import ApiError
from launcher.emulator.faults import FAULTS, Target
from launcher.emulator.fleet import Fleet
from launcher.emulator.presence import Presence
from launcher.emulator.rules import parse, parse_for
from launcher.errors import ConfigError, LauncherError

SERVICE = "launcher.emulator.Control"
CONSOLE_BYTES = 4000

Answer = dict[str, Any]


async def _fault(fleet: Fleet, given: Mapping[str, Any]) -> Answer:
    """Arms a rule, or does a deed to a node; one that takes no time is done on return."""
    rule = parse(given)
    if FAULTS[rule.fault].target is Target.EVENT or rule.after:
        fleet.rules.arm(rule)
        return {"armed": rule.fault}
    node = fleet.find(rule.node)
    deed = node.spawn(fleet.act(node, rule))
    if not (rule.notice or rule.seconds):
        await asyncio.wait({deed})
        if deed.cancelled():
            raise ConfigError(f"another change of {node.node_id} came between")
        deed.result()
    return {"struck": node.name, "state": node.state}


async def _ledger(fleet: Fleet, _: Mapping[str, Any]) -> Answer:
    return {**fleet.ledger.to_json(), **await _hosts(fleet, {})}


async def _hosts(fleet: Fleet, _: Mapping[str, Any]) -> Answer:
    return {"hosts": [host.to_json() for node in fleet.nodes.values() for host in node.hosts]}


async def _console(fleet: Fleet, given: Mapping[str, Any]) -> Answer:
    """The end of a host's console log, as the serial port of a VM would show it."""
    host = fleet.find(str(given.get("node"))).host(given.get("worker"))
    return {"text": host.tail(int(given.get("bytes", CONSOLE_BYTES)))}


COMMANDS: Mapping[str, Callable[[Fleet, Mapping[str, Any]], Awaitable[Answer]]] = {
    "fault": _fault,
    "ledger": _ledger,
    "hosts": _hosts,
    "console": _console,
}


class Control:
    """The service, for one fleet."""

    def __init__(self, fleet: Fleet, presence: Presence) -> None:
        self._fleet = fleet
        self._presence = presence

    def service(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        handlers = {
            "Attach": grpc.unary_stream_rpc_method_handler(self._attach),
            "Command": grpc.unary_unary_rpc_method_handler(self._command),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _attach(
        self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        if self._presence.ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the emulator is ending")
        given = json.loads(request)
        try:
            rules = parse_for(given.get("nodes", ()), given.get("rules", ()))
        except ConfigError as error:
            yield json.dumps({"error": str(error)}).encode()
            return
        self._presence.arrive()
        self._fleet.rules.arm(*rules)
        try:
            yield b"{}"
            await asyncio.Event().wait()  # until the client leaves, which cancels this
        finally:
            self._fleet.rules.disarm(*rules)
            self._presence.leave()

    async def _command(self, request: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return json.dumps(await self._obey(json.loads(request))).encode()

    async def _obey(self, given: dict[str, Any]) -> Answer:
        name = given.pop("command", None)
        if name not in COMMANDS:
            return {"error": f"no command {name!r}; there are {', '.join(COMMANDS)}"}
        try:
            return await COMMANDS[name](self._fleet, given)
        except (LauncherError, ApiError) as error:
            return {"error": str(error)}
