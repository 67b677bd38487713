"""The firewall rules of Compute Engine's networks. They are kept, not enforced."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from launcher.emulator.compute.checks import check_firewall, check_name
from launcher.emulator.compute.names import link, missing, path, taken
from launcher.emulator.compute.operations import ComputeOperation, ComputeOperations, now

Json = dict[str, Any]


class Firewalls:
    """All rules, by full name `projects/P/global/firewalls/N`."""

    def __init__(self, operations: ComputeOperations) -> None:
        self._all: dict[str, Json] = {}
        self._operations = operations

    def insert(self, scope: str, body: Mapping[str, Any]) -> ComputeOperation:
        """Makes a rule in `projects/P/global`."""
        name = f"{scope}/firewalls/{check_name(body)}"
        check_firewall(body)
        if name in self._all:
            raise taken(name)
        project = scope.rpartition("/")[0]
        network = path(body.get("network") or "global/networks/default")
        self._all[name] = {
            "priority": 1000,
            "direction": "INGRESS",
            "disabled": False,
            **body,
            "kind": "compute#firewall",
            "id": str(secrets.randbits(62)),
            "creationTimestamp": now(),
            "selfLink": link(name),
            "network": link(network if network.startswith("projects/") else f"{project}/{network}"),
        }
        return self._done(scope, "insert", name)

    def get(self, name: str) -> Json:
        """The rule of that full name; ApiError 5 if there is none."""
        if name not in self._all:
            raise missing(name)
        return self._all[name]

    def delete(self, name: str) -> ComputeOperation:
        self.get(name)
        del self._all[name]
        return self._done(name.rpartition("/firewalls/")[0], "delete", name)

    def within(self, scope: str) -> list[Json]:
        return [body for name, body in self._all.items() if name.startswith(f"{scope}/")]

    def _done(self, scope: str, verb: str, name: str) -> ComputeOperation:
        operation = self._operations.begin(scope, verb, name)
        operation.succeed()
        return operation
