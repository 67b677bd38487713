"""List prices, by type, region and capacity; and what is not known."""

from __future__ import annotations

import csv

import pytest

from launcher.accelerators import all_types, lookup
from launcher.provisioning import prices
from launcher.provisioning.capacity import CAPACITIES
from launcher.provisioning.prices import PRICES, cost_per_hour, describe, machine_price


@pytest.mark.parametrize(
    ("name", "capacity", "zone", "slices", "usd"),
    [
        ("v2-8", "on-demand", "us-central1-b", 1, 4 * 1.125),
        ("v2-8", "on-demand", "europe-west4-a", 1, 4 * 1.2375),
        ("v2-32", "on-demand", "us-central1-a", 1, 16 * 1.5),
        ("v3-8", "spot", "us-central1-a", 1, 4 * 0.51),
        ("v3-32", "spot", "europe-west4-a", 1, 16 * 0.66),
        ("v4-8", "on-demand", "us-central2-b", 2, 8 * 3.22),
        ("v5litepod-16", "on-demand", "us-central1-a", 1, 16 * 1.2),
        ("v5litepod-16", "on-demand", "us-south1-a", 1, 16 * 1.416),
        ("v5litepod-1", "spot", "us-west4-a", 1, 0.48),
        ("v5p-8", "spot", "us-east5-a", 1, 4 * 1.68),
        ("v6e-256", "on-demand", "europe-west4-a", 1, 256 * 2.97),
        ("v6e-8", "queued-on-demand", "us-east5-b", 1, 8 * 2.7),
        ("v6e-8", "queued-spot", "us-east5-b", 1, 8 * 1.215),
        ("v6e-8", "on-demand", "us-central1-ai1a", 1, 8 * 2.7),
    ],
)
def test_what_slices_cost(name: str, capacity: str, zone: str, slices: int, usd: float) -> None:
    assert cost_per_hour(lookup(name), capacity, zone, slices) == pytest.approx(usd, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "capacity", "zone"),
    [
        ("v6e-16", "reserved", "us-east5-b"),
        ("v6e-16", "queued-reserved", "us-east5-b"),
        ("v6e-16", "flex-start", "us-east5-b"),
        ("tpu7x-8", "on-demand", "us-central1-c"),
        ("v4-8", "on-demand", "us-east5-b"),  # not sold there
        ("v6e-16", "spot", "southamerica-west1-a"),  # the table leaves it open
        ("v3-8", "spot", "us-east1-d"),  # and is not that of a v3 slice
    ],
)
def test_what_is_not_known_is_not_guessed(name: str, capacity: str, zone: str) -> None:
    assert cost_per_hour(lookup(name), capacity, zone, 1) is None
    assert describe(lookup(name), capacity, zone, 1) == "price unknown"


def test_a_price_is_told_with_its_date_and_source() -> None:
    told = describe(lookup("v6e-16"), "on-demand", "us-east5-b", 1)
    assert told == "43.20 USD/h (list price of 2026, skypilot-catalog v8 at 006059e)"


def test_the_default_machine_of_the_coordinator_has_a_price() -> None:
    price = machine_price("e2-standard-4", "us-central1-b")
    assert price is not None
    assert price.usd == pytest.approx(0.134, rel=1e-3)
    assert machine_price("e2-standard-4", "us-central2-b") is None
    assert machine_price("n9-standard-4", "us-central1-b") is None


def rows() -> list[dict[str, str]]:
    with PRICES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_row_of_the_table_is_sound() -> None:
    types = {lookup(name) for name in all_types()}
    known = {each.accelerator_type for each in types} | {each.generation for each in types}
    assert len({(row["name"], row["region"]) for row in rows()}) == len(rows())
    for row in rows():
        assert row["name"] in known or row["name"].startswith("e2-")
        assert row["date"]
        assert row["source"]
        assert 0 < float(row["spot_usd"] or 0.01) < float(row["on_demand_usd"]) < 10


def test_every_generation_but_the_newest_has_a_price_where_it_is_offered() -> None:
    """On demand, in the first zone of each type, which is the one that is taken by itself."""
    without = {
        kind.generation
        for kind in map(lookup, all_types())
        if cost_per_hour(kind, "on-demand", kind.zones[0], 1) is None
    }
    assert without == {"tpu7x"}


def test_every_capacity_has_a_price_or_is_known_to_have_none() -> None:
    kinds = {capacity.price for capacity in CAPACITIES.values()}
    assert kinds == {prices.ON_DEMAND, prices.SPOT, None}
