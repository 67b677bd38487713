"""What slices and the coordinator's VM cost, from a table of list prices.

`prices.csv` holds USD per hour: of one chip for an accelerator type or a generation, of one VM for
a machine type of Compute Engine. A single-host type that has rows of its own (v2-8, v3-8) is not
priced as its generation is. What is not in the table is unknown, and nothing is guessed.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.accelerators import Accelerator
from launcher.provisioning.capacity import CAPACITIES

PRICES = Path(__file__).with_name("prices.csv")
ON_DEMAND, SPOT = "on_demand", "spot"


@dataclass(frozen=True, slots=True)
class Price:
    """`usd` an hour, for one chip or one VM; `date` says when it was the list price."""

    usd: float
    date: str
    source: str


def cost_per_hour(accelerator: Accelerator, capacity: str, zone: str, slices: int) -> float | None:
    """USD for all slices while READY, at list prices; None where no price is known."""
    price = chip_price(accelerator, capacity, zone)
    return round(price.usd * accelerator.chips * slices, 4) if price else None


def describe(accelerator: Accelerator, capacity: str, zone: str, slices: int) -> str:
    """The cost as a reader is told it."""
    price, cost = (
        chip_price(accelerator, capacity, zone),
        cost_per_hour(accelerator, capacity, zone, slices),
    )
    if price is None or cost is None:
        return "price unknown"
    return f"{cost:.2f} USD/h (list price of {price.date}, {price.source})"


def chip_price(accelerator: Accelerator, capacity: str, zone: str) -> Price | None:
    """Of one chip; reserved and flex-start capacity have no list price."""
    own, column = accelerator.accelerator_type, CAPACITIES[capacity].price
    name = (
        own if any(name == own for name, _region, _column in _table()) else accelerator.generation
    )
    return _table().get((name, region_of(zone), column)) if column else None


def machine_price(machine_type: str, zone: str) -> Price | None:
    """Of one VM of Compute Engine, on demand, its disk not counted."""
    return _table().get((machine_type, region_of(zone), ON_DEMAND))


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


@cache
def _table() -> Mapping[tuple[str, str, str], Price]:
    """By name, region and kind of price; a field left empty is a price that is not known."""
    with PRICES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return MappingProxyType(
        {
            (row["name"], row["region"], kind): Price(float(usd), row["date"], row["source"])
            for row in rows
            for kind in (ON_DEMAND, SPOT)
            if (usd := row[f"{kind}_usd"])
        }
    )


class Bill:
    """What slices cost over time, at one rate after another: USD an hour; None where none is known,
    and from then on the sum is not known either. The clock's time is that of `to_json` as well.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rate: float | None = 0.0
        self._since = clock()
        self.usd: float | None = 0.0

    def go_on(self, rate: float | None) -> None:
        """Add the time since the last rate began; from now on it is this one."""
        now = self._clock()
        hours, self._since = max(0.0, now - self._since) / 3600, now
        if self.usd is not None:
            self.usd = None if self._rate is None else self.usd + hours * self._rate
        self._rate = rate

    def to_json(self) -> dict[str, Any]:
        return {"usd": self.usd, "rate": self._rate, "since": self._since}

    def restore(self, found: Mapping[str, Any]) -> None:
        """Go on with what `to_json` has kept: the slices cost while nobody looked after them."""
        self.usd, self._rate, self._since = found["usd"], found["rate"], found["since"]
