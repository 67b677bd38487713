"""The table of accelerator types, and pure functions on it.

`accelerators.csv` beside this module holds every published type, one row each with its source.
The suffix of a name counts TensorCores on v2, v3, v4, v5p and tpu7x, and chips on v5e and v6e, so
nothing is ever computed from a name: `v5p-8` is one host, `v5litepod-16` four.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from launcher.errors import ConfigError, Problem

_TABLE = Path(__file__).with_name("accelerators.csv")

# Chips that JAX presents as two devices each (https://cloud.google.com/tpu/docs, one page a
# generation); v4 and v5p join the two cores of a chip into one device ("megacore").
_TWO_DEVICES_A_CHIP = frozenset({"v2", "v3", "tpu7x"})

# CHIPS_PER_HOST_BOUNDS of a TPU VM, by its number of chips.
_CHIP_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}

# What people write for the prefixes that the API wants.
_ALIASES = {"v5e": "v5litepod", "v5lite": "v5litepod", "v7x": "tpu7x", "v7": "tpu7x"}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator type, as the Cloud TPU API names it.

    `hosts` counts TPU VMs (the workers, the node's network endpoints). The runtime versions are
    None for types that the Cloud TPU API does not offer (tpu7x: Compute Engine and GKE only).
    """

    accelerator_type: str
    generation: str
    chips: int
    cores: int
    hosts: int
    chips_per_host: int
    topology: str
    runtime_version_jax: str | None
    runtime_version_torch: str | None
    zones: tuple[str, ...]

    def runtime_version(self, framework: str) -> str | None:
        """The one that Google names for the framework, jax or torch_xla."""
        return self.runtime_version_jax if framework == "jax" else self.runtime_version_torch

    @property
    def devices_per_chip(self) -> int:
        """How many devices JAX and PyTorch/XLA see of each chip."""
        return 2 if self.generation in _TWO_DEVICES_A_CHIP else 1

    @property
    def jax_devices_per_host(self) -> int:
        """Length of `jax.local_devices()` on one host."""
        return self.chips_per_host * self.devices_per_chip

    @property
    def chips_per_host_bounds(self) -> str:
        """The chips of a host as a box: `2,2,1`."""
        return _join(_CHIP_BOUNDS[self.chips_per_host])

    @property
    def host_bounds(self) -> str:
        """The hosts of the slice as a box, the topology over the chips of a host: `2,2,8`."""
        chips = _CHIP_BOUNDS[self.chips_per_host]
        return _join(tuple(all_ // part for all_, part in zip(self._box, chips, strict=True)))

    @property
    def chip_bounds(self) -> str:
        """The chips of the slice as a box: `4,4,16`."""
        return _join(self._box)

    @property
    def _box(self) -> tuple[int, ...]:
        return (*map(int, self.topology.split("x")), 1)[:3]


def all_types() -> tuple[str, ...]:
    """Every published accelerator type, in the order of the table."""
    return tuple(_table())


def lookup(name: str) -> Accelerator:
    """The accelerator type of that exact name.

    Raises ConfigError with the nearest names if there is none.
    """
    if found := _table().get(name):
        return found
    raise ConfigError([Problem(f"no accelerator type {name!r}", hint=did_you_mean(nearest(name)))])


def nearest(name: str) -> tuple[str, ...]:
    """The published names that `name` may have meant, the likeliest first; at most three.

    One name alone is a mere matter of spelling: `V6E-16`, `v6e_16` and `v5e-16` have one answer
    each, `v6e-17` has its neighbours in size.
    """
    family, size = _split(name)
    sizes = {_size(other): other for other in _table() if _split(other)[0] == family}
    if size in sizes:
        return (sizes[size],)
    by_distance = sorted(sizes, key=lambda other: abs(math.log2(other / max(size, 1))))
    return tuple(sizes[other] for other in by_distance[:3])


def did_you_mean(names: tuple[str, ...]) -> str:
    """`did you mean a, b or c?`, or nothing if there are no names."""
    if not names:
        return ""
    *others, last = names
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _split(name: str) -> tuple[str, int]:
    """The known prefix nearest to that of `name` ("" if none is near), and its size (0 if none)."""
    known = "|".join(sorted((*_families(), *_ALIASES), key=len, reverse=True))
    form = rf"(?:tpu[-_ ])?({known}|[a-z0-9]*)[^a-z0-9]*([0-9]{{0,9}})"
    match = re.match(form, name.lower())
    prefix, size = match.groups() if match else ("", "")
    found = get_close_matches(_ALIASES.get(prefix, prefix), _families(), n=1, cutoff=0.6)
    return (found[0] if found else ""), int(size or 0)


def _size(name: str) -> int:
    return int(name.rpartition("-")[2])


def _join(bounds: tuple[int, ...]) -> str:
    return ",".join(map(str, bounds))


@cache
def _families() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.partition("-")[0] for name in _table()))


@cache
def _table() -> Mapping[str, Accelerator]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        rows = (_from_row(row) for row in csv.DictReader(file))
        return MappingProxyType({row.accelerator_type: row for row in rows})


def _from_row(row: Mapping[str, str]) -> Accelerator:
    return Accelerator(
        accelerator_type=row["accelerator_type"],
        generation=row["generation"],
        chips=int(row["chips"]),
        cores=int(row["cores"]),
        hosts=int(row["hosts"]),
        chips_per_host=int(row["chips_per_host"]),
        topology=row["topology"],
        runtime_version_jax=_or_none(row["default_runtime_version_jax"]),
        runtime_version_torch=_or_none(row["default_runtime_version_torch"]),
        zones=tuple(row["zones"].split(";")),
    )


def _or_none(text: str) -> str | None:
    return None if text == "n/a" else text
