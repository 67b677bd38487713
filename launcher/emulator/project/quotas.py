"""The quotas of Cloud TPU over REST: Service Usage, consumerQuotaMetrics.

https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics.
The names of the metrics are those of https://cloud.google.com/tpu/docs/quota; the errors of the TPU
API name the same quotas in another way (`quota.metric`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from launcher.accelerators import all_types, lookup
from launcher.emulator.http.routes import Call, Route
from launcher.emulator.machine.guest import project_number
from launcher.emulator.rpc import TPU_API
from launcher.emulator.rules import Rules
from launcher.emulator.world import World

Json = dict[str, Any]
UNRULED = 1_000_000
"""Chips where no `quota` rule says less."""
_UNIT = "1/{project}/{zone}"
# Single hosts of v2, v3 and v5e have quotas of their own. That of tpu7x is not known.
METRICS: Mapping[str, tuple[str, ...]] = {
    "v2": ("tpu-v2", "tpu-v2-pod"),
    "v3": ("tpu-v3", "tpu-v3-pod"),
    "v4": ("tpu-v4s-pod",),
    "v5e": ("tpu-v5s-litepod", "tpu-v5s-litepod-serving"),
    "v5p": ("tpu-v5p",),
    "v6e": ("tpu-v6e",),
}
KINDS = ("", "-preemptible")


def _list(world: World, call: Call) -> Json:
    if call.params["service"] != TPU_API:
        return {}
    parent = f"projects/{project_number(call.project)}/services/{TPU_API}"
    zones: dict[str, set[str]] = {}
    for known in map(lookup, all_types()):
        zones.setdefault(known.generation, set()).update(known.zones)
    return {
        "metrics": [
            _metric(world.fleet.rules, parent, f"{name}{kind}", sorted(zones[generation]))
            for generation, names in METRICS.items()
            for name in names
            for kind in KINDS
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
