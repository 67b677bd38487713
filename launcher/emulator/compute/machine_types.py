"""Machine types of Compute Engine: processors and memory by name.

https://cloud.google.com/compute/docs/general-purpose-machines, the standard ones of the series
that a coordinator may use, and the small shared ones of E2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineType:
    """One machine type; memory in MiB."""

    name: str
    cpus: int
    memory: int


# Sizes in processors, and MiB of memory for each of them.
_STANDARD: Mapping[str, tuple[tuple[int, ...], int]] = {
    "n1": ((1, 2, 4, 8, 16, 32, 64, 96), 3840),
    "n2": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 4096),
    "e2": ((2, 4, 8, 16, 32), 4096),
}
_SHARED = (
    MachineType("e2-micro", 2, 1024),
    MachineType("e2-small", 2, 2048),
    MachineType("e2-medium", 2, 4096),
)
MACHINE_TYPES: Mapping[str, MachineType] = {
    known.name: known
    for known in (
        *_SHARED,
        *(
            MachineType(f"{series}-standard-{cpus}", cpus, cpus * memory)
            for series, (sizes, memory) in _STANDARD.items()
            for cpus in sizes
        ),
    )
}
