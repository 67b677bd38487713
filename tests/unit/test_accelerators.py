"""The table of accelerator types, row by row, and what is made of mistyped names."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import accelerators
from launcher.errors import ConfigError


@pytest.mark.parametrize("name", accelerators.all_types())
def test_every_row_is_consistent(name: str) -> None:
    row = accelerators.lookup(name)
    assert row.accelerator_type == name
    assert row.hosts * row.chips_per_host == row.chips
    assert math.prod(map(int, row.topology.split("x"))) == row.chips
    assert math.prod(map(int, row.host_bounds.split(","))) == row.hosts
    assert math.prod(map(int, row.chips_per_host_bounds.split(","))) == row.chips_per_host
    assert row.zones


@pytest.mark.parametrize(
    ("name", "hosts", "jax_devices_per_host"),
    [
        ("v2-8", 1, 8),
        ("v3-32", 4, 8),
        ("v4-8", 1, 4),
        ("v4-16", 2, 4),
        ("v5p-8", 1, 4),
        ("v5p-16", 2, 4),
        ("v5litepod-8", 1, 8),
        ("v5litepod-16", 4, 4),
        ("v6e-1", 1, 1),
        ("v6e-8", 1, 8),
        ("v6e-16", 4, 4),
        ("tpu7x-8", 1, 8),
    ],
)
def test_counts(name: str, hosts: int, jax_devices_per_host: int) -> None:
    row = accelerators.lookup(name)
    assert (row.hosts, row.jax_devices_per_host) == (hosts, jax_devices_per_host)


@pytest.mark.parametrize(
    ("name", "host_bounds", "chips_per_host_bounds"),
    [
        ("v2-512", "8,8,1", "2,2,1"),
        ("v3-64", "2,4,1", "2,2,1"),
        ("v3-1024", "8,16,1", "2,2,1"),
        ("v4-256", "2,2,8", "2,2,1"),
        ("v5litepod-8", "1,1,1", "2,4,1"),
        ("v6e-1", "1,1,1", "1,1,1"),
    ],
)
def test_bounds(name: str, host_bounds: str, chips_per_host_bounds: str) -> None:
    row = accelerators.lookup(name)
    assert (row.host_bounds, row.chips_per_host_bounds) == (host_bounds, chips_per_host_bounds)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("v5e-16", ["v5litepod-16"]),
        ("V6E-16", ["v6e-16"]),
        ("v6e_16", ["v6e-16"]),
        ("v6e16", ["v6e-16"]),
        ("tpu-v6e-16", ["v6e-16"]),
        ("v7x-8", ["tpu7x-8"]),
        ("v6w-16", ["v6e-16"]),
        ("v6e-17", ["v6e-16", "v6e-32", "v6e-8"]),
        ("v6e-", ["v6e-1", "v6e-4", "v6e-8"]),
        ("gpu", []),
        ("", []),
    ],
)
def test_nearest(typed: str, meant: list[str]) -> None:
    assert list(accelerators.nearest(typed)) == meant


def test_lookup_of_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no accelerator type 'v6e_16'\s+did you mean v6e-16\?"):
        accelerators.lookup("v6e_16")


@given(st.text(max_size=30))
def test_nearest_gives_published_names_for_any_text(text: str) -> None:
    assert set(accelerators.nearest(text)) <= set(accelerators.all_types())


@pytest.mark.parametrize("name", accelerators.all_types())
def test_a_published_name_is_nearest_to_itself(name: str) -> None:
    assert accelerators.nearest(name.upper().replace("-", "_")) == (name,)
