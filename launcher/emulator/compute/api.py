"""Compute Engine over REST: instances, firewalls, machine types, and the operations of both.

https://cloud.google.com/compute/docs/reference/rest/v1, whose pages give the names of
the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.emulator.compute.checks import check_machine_type
from launcher.emulator.compute.lists import listing, select
from launcher.emulator.compute.machine_types import MACHINE_TYPES, MachineType
from launcher.emulator.compute.names import compute_zones, global_scope, link, zone_scope
from launcher.emulator.compute.operations import ComputeOperation
from launcher.emulator.http.fields import invalid, take
from launcher.emulator.http.routes import Call, Route
from launcher.emulator.world import World

Json = dict[str, Any]
SERIAL_BYTES = 1024 * 1024
"""What one call of getSerialPortOutput returns at most."""


def _scope(call: Call) -> str:
    zone = call.params.get("zone")
    return global_scope(call.project) if zone is None else zone_scope(call.project, zone)


def _instance(call: Call) -> str:
    return f"{_scope(call)}/instances/{call.params['instance']}"


def _firewall(call: Call) -> str:
    return f"{_scope(call)}/firewalls/{call.params['firewall']}"


def _beginning(begin: Callable[[World, Call], ComputeOperation]) -> Callable[[World, Call], Json]:
    """The answer of a call that begins an operation, once for each `requestId`."""

    def answer(world: World, call: Call) -> Json:
        operations, scope = world.instances.operations, _scope(call)
        request_id = call.query.get("requestId", "")
        operation = operations.repeated(scope, request_id)
        if operation is None:
            operation = begin(world, call)
            operations.remember(scope, request_id, operation)
        return operation.to_json()

    return answer


def _set_labels(world: World, call: Call) -> ComputeOperation:
    labels, known = take(call.body, "labels", dict), take(call.body, "labelFingerprint", str)
    return world.instances.set_labels(_instance(call), labels, known)


def _list_instances(world: World, call: Call) -> Json:
    return listing("compute#instanceList", _bodies(world, _scope(call)), call.query)


def _bodies(world: World, scope: str) -> list[Json]:
    return [vm.body for vm in world.instances.all.values() if vm.scope == scope]


def _aggregated_instances(world: World, call: Call) -> Json:
    """Every zone, on one page."""
    items = {}
    for zone in sorted(compute_zones()):
        found = select(_bodies(world, zone_scope(call.project, zone)), call.query)
        items[f"zones/{zone}"] = {"instances": found} if found else _nothing(zone)
    return {"kind": "compute#instanceAggregatedList", "id": "", "items": items}


def _nothing(zone: str) -> Json:
    return {
        "warning": {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"There are no results for scope 'zones/{zone}' on this page.",
        }
    }


def _serial_port(world: World, call: Call) -> Json:
    vm = world.instances.get(_instance(call))
    given = call.query.get("start", "0")
    if not given.isdecimal():
        raise invalid("start", given, "It is no number of bytes.")
    start, text, end = vm.serial_output(int(given), SERIAL_BYTES)
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": f"{link(vm.name)}/serialPort",
        "contents": text,
        "start": str(start),
        "next": str(end),
    }


def _operation(world: World, call: Call) -> ComputeOperation:
    name = f"{_scope(call)}/operations/{call.params['operation']}"
    return world.instances.operations.get(name)


async def _wait(world: World, call: Call) -> Json:
    operation = _operation(world, call)
    await operation.wait()
    return operation.to_json()


def _list_operations(world: World, call: Call) -> Json:
    operations = world.instances.operations.within(_scope(call))
    return listing("compute#operationList", (one.to_json() for one in operations), call.query)


def _machine_type(scope: str, machine: MachineType) -> Json:
    return {
        "kind": "compute#machineType",
        "name": machine.name,
        "description": f"{machine.cpus} vCPUs, {machine.memory / 1024:g} GB RAM",
        "guestCpus": machine.cpus,
        "memoryMb": machine.memory,
        "isSharedCpu": "-standard-" not in machine.name,
        "zone": scope.rpartition("/")[2],
        "selfLink": link(f"{scope}/machineTypes/{machine.name}"),
    }


def _get_machine_type(_: World, call: Call) -> Json:
    scope = _scope(call)
    return _machine_type(scope, check_machine_type(scope, call.params["type"]))


def _list_machine_types(_: World, call: Call) -> Json:
    scope = _scope(call)
    types = (_machine_type(scope, machine) for machine in MACHINE_TYPES.values())
    return listing("compute#machineTypeList", types, call.query)


_PROJECT = "/compute/v1/projects/{project}"
_ZONE = f"{_PROJECT}/zones/{{zone}}"
_INSTANCE = f"{_ZONE}/instances/{{instance}}"
_FIREWALLS = f"{_PROJECT}/global/firewalls"
_OPERATION = "operations/{operation}"

ROUTES = (
    Route(
        "POST",
        f"{_ZONE}/instances",
        _beginning(lambda world, call: world.instances.insert(_scope(call), call.body)),
        "instances.insert",
    ),
    Route(
        "GET",
        _INSTANCE,
        lambda world, call: world.instances.get(_instance(call)).body,
        "instances.get",
        "instance",
    ),
    Route("GET", f"{_ZONE}/instances", _list_instances, "instances.list"),
    Route(
        "GET",
        f"{_PROJECT}/aggregated/instances",
        _aggregated_instances,
        "instances.aggregatedList",
    ),
    *(
        Route(method, _INSTANCE + path, _beginning(begin), f"instances.{name}", "instance")
        for method, path, name, begin in (
            ("DELETE", "", "delete", lambda w, call: w.instances.delete(_instance(call))),
            ("POST", "/start", "start", lambda w, call: w.instances.start(_instance(call))),
            ("POST", "/stop", "stop", lambda w, call: w.instances.stop(_instance(call))),
            (
                "POST",
                "/setMetadata",
                "setMetadata",
                lambda w, call: w.instances.set_metadata(_instance(call), call.body),
            ),
            ("POST", "/setLabels", "setLabels", _set_labels),
        )
    ),
    Route(
        "GET", f"{_INSTANCE}/serialPort", _serial_port, "instances.getSerialPortOutput", "instance"
    ),
    Route(
        "POST",
        _FIREWALLS,
        _beginning(lambda world, call: world.firewalls.insert(_scope(call), call.body)),
        "firewalls.insert",
    ),
    Route(
        "GET",
        f"{_FIREWALLS}/{{firewall}}",
        lambda world, call: world.firewalls.get(_firewall(call)),
        "firewalls.get",
        "firewall",
    ),
    Route(
        "GET",
        _FIREWALLS,
        lambda world, call: listing(
            "compute#firewallList", world.firewalls.within(_scope(call)), call.query
        ),
        "firewalls.list",
    ),
    Route(
        "DELETE",
        f"{_FIREWALLS}/{{firewall}}",
        _beginning(lambda world, call: world.firewalls.delete(_firewall(call))),
        "firewalls.delete",
        "firewall",
    ),
    Route("GET", f"{_ZONE}/machineTypes/{{type}}", _get_machine_type, "machineTypes.get"),
    Route("GET", f"{_ZONE}/machineTypes", _list_machine_types, "machineTypes.list"),
    *(
        route
        for prefix, kind in ((_ZONE, "zoneOperations"), (f"{_PROJECT}/global", "globalOperations"))
        for route in (
            Route(
                "GET",
                f"{prefix}/{_OPERATION}",
                lambda world, call: _operation(world, call).to_json(),
                f"{kind}.get",
            ),
            Route("POST", f"{prefix}/{_OPERATION}/wait", _wait, f"{kind}.wait"),
            Route("GET", f"{prefix}/operations", _list_operations, f"{kind}.list"),
        )
    ),
)
