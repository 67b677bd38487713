"""Checks that the project's quota is enough for the slices, in each zone.

Quotas are told by metric: `tpu.googleapis.com/tpu-v6e-preemptible`. The same quota is called
`TPUV6EPreemptiblePerProjectPerZoneForTPUAPI` in errors (marin#1612), with `Preemptible` in another
place for some generations (marin#87), so that names are compared without it and in small letters.
https://cloud.google.com/tpu/docs/quota
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.accelerators import Accelerator
from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, by_place, ok, problem, warning
from launcher.plan import Choice
from launcher.providers.services import SERVICE_USAGE, TPU
from launcher.provisioning.capacity import CAPACITIES, FLEX_START
from launcher.provisioning.prices import region_of
from launcher.spec import Offer

Json = Mapping[str, Any]
UNLIMITED = -1
CONSOLE = "https://console.cloud.google.com/iam-admin/quotas"
# Single hosts of v2, v3 and v5e have quotas apart from those of larger slices.
NAMES: Mapping[tuple[str, bool], tuple[str, ...]] = {
    ("v2", True): ("v2",),
    ("v2", False): ("v2pod",),
    ("v3", True): ("v3",),
    ("v3", False): ("v3pod",),
    ("v4", True): ("v4", "v4s", "v4pod", "v4spod"),
    ("v4", False): ("v4", "v4s", "v4pod", "v4spod"),
    ("v5e", True): ("v5slitepodserving",),
    ("v5e", False): ("v5slitepod",),
    ("v5p", True): ("v5p",),
    ("v5p", False): ("v5p",),
    ("v6e", True): ("v6e",),
    ("v6e", False): ("v6e",),
}
KINDS = ("preemptible", "reserved")


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit; `place` is a zone, a region, or "" where it holds wherever no other does."""

    name: str  # as `key` gives it
    kind: str  # preemptible, reserved, or "" for on-demand
    limit: int
    per: str  # zone | region
    place: str
    metric: str


def quotas(context: Context) -> Iterator[Finding]:
    project = context.cloud.project
    path = f"/v1beta1/projects/{project}/services/{TPU}/consumerQuotaMetrics"
    found = list(read(context.cloud.services.items(SERVICE_USAGE, path, "metrics", CALL_SECONDS)))
    choices = context.plan.choices
    yield from by_place((choice.offer.zone, judge(choice, found, project)) for choice in choices)


def key(metric: str) -> tuple[str, str]:
    """The name of a quota and its kind: (v5slitepod, preemptible)."""
    plain = re.sub(r"[^a-z0-9]", "", metric.rpartition("/")[2].lower()).partition("perproject")[0]
    kind = next((kind for kind in KINDS if kind in plain), "")
    return plain.replace(kind, "").removeprefix("tpu"), kind


def read(metrics: Iterable[Json]) -> Iterator[Quota]:
    """Every limit by place in what the API lists."""
    for metric in metrics:
        name, kind = key(metric["metric"])
        for limit in metric.get("consumerQuotaLimits", ()):
            unit = limit.get("unit", "")
            per = next((per for per in ("zone", "region") if f"{{{per}}}" in unit), "")
            for bucket in limit.get("quotaBuckets", ()) if per else ():
                place = bucket.get("dimensions", {}).get(per, "")
                effective = int(bucket.get("effectiveLimit", 0))
                yield Quota(name, kind, effective, per, place, metric["metric"])


def judge(choice: Choice, found: Sequence[Quota], project: str) -> Finding:
    """Without the zone, so that zones of which the same is to be told can be told together."""
    offer, chips = choice.offer, choice.chips
    what = f"{offer.accelerator.accelerator_type} {offer.capacity}"
    page = f"{CONSOLE}?project={project}&service={TPU}"
    tight = tightest(offer, found)
    if tight is None:
        return warning(f"{what}: not known, no quota of that kind is listed", page)
    cores = units(offer.accelerator, chips)
    wanted = f"{chips} chips" if chips == cores else f"{chips} chips, {cores} TensorCores"
    allowed = "any number" if tight.limit == UNLIMITED else tight.limit
    text = f"{what}: {wanted} asked for, {allowed} allowed ({tight.metric})"
    page = f"{page}&metric={tight.metric}"
    if tight.limit == UNLIMITED or tight.limit >= cores:
        return ok(text)
    if tight.limit >= chips:
        return warning(f"{text}, enough only if chips are counted", page)
    return problem(text, f"ask for more: {page}", "leftovers count: python -m launcher gc")


def tightest(offer: Offer, found: Sequence[Quota]) -> Quota | None:
    """Of the limits of the offer's zone and of its region."""
    names = NAMES.get((offer.accelerator.generation, offer.accelerator.hosts == 1), ())
    kind = kind_of(offer.capacity)
    limits = [quota for quota in found if quota.name in names and quota.kind == kind]
    binding = [quota for per in ("zone", "region") for quota in at(limits, per, offer.zone)]
    return min(binding, key=lambda q: math.inf if q.limit == UNLIMITED else q.limit, default=None)


def kind_of(capacity: str) -> str:
    """Flex-start takes from the quota of preemptible capacity, too."""
    if CAPACITIES[capacity].taken_back or capacity == FLEX_START:
        return "preemptible"
    return "reserved" if "reserved" in capacity else ""


def units(accelerator: Accelerator, chips: int) -> int:
    """TensorCores; v5e and v6e have one a chip."""
    return chips * accelerator.cores // accelerator.chips


def at(limits: Sequence[Quota], per: str, zone: str) -> list[Quota]:
    """Those for a place, or else those for wherever no other is set."""
    place = zone if per == "zone" else region_of(zone)
    ours = [q for q in limits if q.per == per]
    return [q for q in ours if q.place == place] or [q for q in ours if not q.place]
