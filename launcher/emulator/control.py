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
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from launcher.emulator.compute.vm import Vm
from launcher.emulator.faults import FAULTS, OVERTAKEN, Target
from launcher.emulator.rules import Rule, parse, parse_for
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.queued import QueuedResource
from launcher.emulator.world import World
from launcher.errors import ConfigError, LauncherError

SERVICE = "launcher.emulator.Control"
CONSOLE_BYTES = 4000

Answer = dict[str, Any]
_ARMED = (Target.EVENT, Target.PROJECT)


async def _fault(world: World, given: Mapping[str, Any]) -> Answer:
    """Arms a rule, or does a deed to what it names; one that takes no time is done on return."""
    rule = parse(given)
    if FAULTS[rule.fault].target in _ARMED or rule.after:
        world.fleet.rules.arm(rule)
        return {"armed": rule.fault}
    if vm := _vm(world, rule.node, rule.fault):
        await _strike(vm.spawn(world.instances.act(vm, rule)), rule)
        return {"struck": vm.name, "state": vm.status}
    if queued := _queued(world, rule):
        await _strike(queued.spawn(world.fleet.queue.act(queued, rule)), rule)
        return {"struck": queued.name, "state": queued.state}
    node = world.fleet.find(rule.node)
    await _strike(node.spawn(world.fleet.act(node, rule)), rule)
    return {"struck": node.name, "state": node.state}


def _queued(world: World, rule: Rule) -> QueuedResource | None:
    """The queued resource that a rule names; ConfigError if its fault meets none but these."""
    queue, target = world.fleet.queue, FAULTS[rule.fault].target
    queued = queue.find(rule.node) if target in (Target.QUEUED, Target.EITHER) else None
    if queued is None and target is Target.QUEUED:
        names = ", ".join(queue.resources) or "none"
        raise ConfigError(f"no queued resource is named {rule.node!r}; there are: {names}")
    return queued


def _vm(world: World, name: str, fault: str = "") -> Vm | None:
    """The VM of that name, unless it is a node's; ConfigError if a fault of VMs meets none."""
    vm = world.instances.find(name)
    if FAULTS.get(fault) and FAULTS[fault].target is Target.VM:
        if vm is None:
            names = ", ".join(world.instances.all) or "none"
            raise ConfigError(f"no VM is named {name!r}; there are: {names}")
        return vm
    nodes = (node.node_id for node in world.fleet.nodes.values())
    return None if name in nodes else vm


async def _strike(deed: asyncio.Task[None], rule: Rule) -> None:
    if rule.notice or rule.seconds:
        return
    await asyncio.wait({deed})
    if deed.cancelled():
        raise ConfigError(f"{rule.node}: {OVERTAKEN}")
    deed.result()


async def _ledger(world: World, _: Mapping[str, Any]) -> Answer:
    return {
        **world.fleet.ledger.to_json(),
        **await _hosts(world, {}),
        "calls": dict(world.calls.counts),
    }


async def _hosts(world: World, _: Mapping[str, Any]) -> Answer:
    """Every VM, those of nodes first."""
    hosts = [host for node in world.fleet.nodes.values() for host in node.hosts]
    vms = [vm.host for vm in world.instances.all.values()]
    return {"hosts": [host.to_json() for host in (*hosts, *vms)]}


async def _console(world: World, given: Mapping[str, Any]) -> Answer:
    """The end of a host's console log, as the serial port of a VM would show it."""
    name, size = str(given.get("node")), int(given.get("bytes", CONSOLE_BYTES))
    vm = _vm(world, name)
    host = vm.host if vm else world.fleet.find(name).host(given.get("worker"))
    return {"text": host.tail(size)}


async def _bucket(world: World, given: Mapping[str, Any]) -> Answer:
    """Declares a bucket of Cloud Storage: `name`, `location` (default: US)."""
    from launcher.emulator.project.storage import make_bucket

    name, location = str(given.get("name")), str(given.get("location") or "")
    return make_bucket(world.projects, "", name, location)


COMMANDS: Mapping[str, Callable[[World, Mapping[str, Any]], Awaitable[Answer]]] = {
    "fault": _fault,
    "ledger": _ledger,
    "hosts": _hosts,
    "console": _console,
    "bucket": _bucket,
}


class Control:
    """The service, for one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._presence = world.calls.presence

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
        self._world.fleet.rules.arm(*rules)
        try:
            yield json.dumps({"rest": self._world.rest}).encode()
            await asyncio.Event().wait()  # until the client leaves, which cancels this
        finally:
            self._world.fleet.rules.disarm(*rules)
            self._presence.leave()

    async def _command(self, request: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return json.dumps(await self._obey(json.loads(request))).encode()

    async def _obey(self, given: dict[str, Any]) -> Answer:
        name = given.pop("command", None)
        if name not in COMMANDS:
            return {"error": f"no command {name!r}; there are {', '.join(COMMANDS)}"}
        try:
            return await COMMANDS[name](self._world, given)
        except (LauncherError, ApiError) as error:
            return {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"a fault of the emulator: {error!r}; its log tells more"}
