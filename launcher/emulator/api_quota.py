"""The quotas of Cloud TPU over REST: Service Usage, consumerQuotaMetrics.

https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics.
The names of the metrics are those that the TPU API's own errors give.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from launcher.accelerators import all_types, lookup
from launcher.emulator.guest import project_number
from launcher.emulator.quota import metric
from launcher.emulator.rest import Call, Route
from launcher.emulator.rpc import TPU_API
from launcher.emulator.rules import Rules
from launcher.emulator.wire import v2
from launcher.emulator.world import World

Json = dict[str, Any]
UNRULED = 1_000_000
"""Chips where no `quota` rule says less."""
_UNIT = "1/{project}/{zone}"


def _list(world: World, call: Call) -> Json:
    if call.params["service"] != TPU_API:
        return {}
    parent = f"projects/{project_number(call.project)}/services/{TPU_API}"
    zones: dict[str, set[str]] = {}
    for known in map(lookup, all_types()):
        zones.setdefault(known.generation, set()).update(known.zones)
    return {
        "metrics": [
            _metric(world.fleet.rules, parent, metric(generation, scheduling), sorted(where))
            for generation, where in zones.items()
            if where
            for scheduling in (v2.SchedulingConfig(), v2.SchedulingConfig(spot=True))
        ]
    }


def _metric(rules: Rules, parent: str, name: str, zones: list[str]) -> Json:
    full = f"{TPU_API}/{name}"
    resource = f"{parent}/consumerQuotaMetrics/{quote(full, safe='')}"
    limit = {
        "name": f"{resource}/limits/{quote(_UNIT[1:], safe='')}",
        "unit": _UNIT,
        "metric": full,
        "quotaBuckets": [_bucket(rules, zone) for zone in zones],
    }
    return {
        "name": resource,
        "metric": full,
        "displayName": name,
        "unit": "1",
        "consumerQuotaLimits": [limit],
    }


def _bucket(rules: Rules, zone: str) -> Json:
    limits = [rule.limit for rule in rules.of("quota") if fnmatchcase(zone, rule.zone)]
    limit = str(min(limits, default=UNRULED))
    return {"effectiveLimit": limit, "defaultLimit": limit, "dimensions": {"zone": zone}}


ROUTES = (
    Route(
        "GET",
        "/v1beta1/projects/{project}/services/{service}/consumerQuotaMetrics",
        _list,
        "services.consumerQuotaMetrics.list",
    ),
)
