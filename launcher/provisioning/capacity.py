"""How slices can be bought: one row for each `cluster.capacity`, and what it means to the API.

https://cloud.google.com/tpu/docs/queued-resources tells of the tiers; flex-start exists in the REST
form of v2alpha1 alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Capacity:
    """One way to buy.

    `scheduling` is a Node's `scheduling_config`, `tier` that of a QueuedResource; `price` is a
    column of the price table, None where no list price exists. What is `taken_back` can be
    preempted at any time.
    """

    title: str
    queued: bool = False
    scheduling: Mapping[str, bool] = field(default_factory=dict)
    tier: Mapping[str, Any] = field(default_factory=dict)
    price: str | None = None
    taken_back: bool = False


CAPACITIES: Mapping[str, Capacity] = {
    "on-demand": Capacity("yours until deleted, at list price", price="on_demand"),
    "spot": Capacity(
        "cheap, may be taken back", scheduling={"spot": True}, price="spot", taken_back=True
    ),
    "reserved": Capacity("from a reservation of yours", scheduling={"reserved": True}),
    "queued-on-demand": Capacity("on-demand, waited for", queued=True, price="on_demand"),
    "queued-spot": Capacity(
        "spot, waited for", queued=True, tier={"spot": {}}, price="spot", taken_back=True
    ),
    "queued-reserved": Capacity(
        "from a reservation, waited for", queued=True, tier={"guaranteed": {}}
    ),
    "flex-start": Capacity("waited for, then kept for max_run_time at most", queued=True),
}
CURRENT: Mapping[str, str] = {"preemptible": "spot", "queued-preemptible": "queued-spot"}
"""Old names, and those of today: spot is preemptible without the end after 24 hours."""
FLEX_START = "flex-start"
QUEUED_RESERVED = "queued-reserved"  # the one that can name its reservation
