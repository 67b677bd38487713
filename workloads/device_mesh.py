"""Which slice a device belongs to, and meshes in which only whole slices talk over the network.

Inside a slice chips are joined by a fast interconnect; between slices there is the data
centre's network. So the batch is split over slices, and what a step sends more often stays inside.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh


def slice_of(device: jax.Device) -> int:
    """0 where there is one slice.

    TPUs know their slice. CPU devices do not; their processes are numbered slice by slice, so that
    each slice's are a group of neighbours.
    """
    if getattr(device, "platform", "") == "cpu":
        each = max(1, jax.process_count() // int(os.environ.get("LAUNCHER_NUM_SLICES", "1")))
        return int(device.process_index) // each
    return int(getattr(device, "slice_index", 0))


def in_order(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """By slice, then host, then chip."""
    return sorted(devices, key=lambda d: (slice_of(d), d.process_index, d.id))


def slice_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """The axes `slice`, for data parallelism, and `chip`, for all else."""
    count = len({slice_of(device) for device in devices})
    return Mesh(np.array(in_order(devices)).reshape(count, -1), ("slice", "chip"))


def training_mesh(devices: Sequence[jax.Device], model: int) -> Mesh:
    """The axes `data` and `model`; see `arrange`."""
    return Mesh(np.array(arrange(devices, model)), ("data", "model"))


def arrange(devices: Sequence[jax.Device], model: int) -> list[list[jax.Device]]:
    """A row of `model` chips for each part of the batch; a row stays in one host, or in one slice.

    Chips come in the order of slices, then hosts: the sums inside a layer never cross the network
    between slices, only the gradients do, once a step.
    """
    ordered = in_order(devices)
    per_host = sum(device.process_index == ordered[0].process_index for device in ordered)
    if per_host % model and model % per_host:
        raise ValueError(f"--model_parallel={model} does not fit hosts of {per_host} chips")
    rows = [ordered[i : i + model] for i in range(0, len(ordered), model)]
    if len(rows[-1]) != model or any(slice_of(row[0]) != slice_of(row[-1]) for row in rows):
        raise ValueError(f"--model_parallel={model} does not divide the chips of a slice")
    return rows
