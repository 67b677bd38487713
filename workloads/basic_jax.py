"""The smallest useful program: every host says what it sees, and all chips add up one number.

It is an ordinary JAX program. Alone (`python workloads/basic_jax.py`) it uses the devices of this
machine; started by the launcher, the bare `jax.distributed.initialize()` finds its peers.
"""

from __future__ import annotations

import os

import jax
import numpy as np
from device_mesh import slice_mesh, slice_of
from jax.sharding import NamedSharding, PartitionSpec
from supervised import Voice


def gather(rows: np.ndarray) -> tuple[int, list[list[int]]]:
    """Give chip i the row i; return the sum of the first column, and all others.

    Both come back on every host, so each chip's numbers really crossed the network. Of several
    slices each adds up its own part before the sums of all are added.
    """
    mesh = slice_mesh(jax.devices())
    per_chip = NamedSharding(mesh, PartitionSpec(("slice", "chip")))
    everywhere = NamedSharding(mesh, PartitionSpec())
    table = jax.make_array_from_callback(rows.shape, per_chip, lambda index: rows[index])
    total, others = jax.jit(lambda t: (t[:, 0].sum(), t[:, 1:].T), out_shardings=everywhere)(table)
    return int(total), [[int(value) for value in column] for column in np.asarray(others)]


def where() -> str:
    """The slice of this process, where there are several, by its number and its name."""
    slices = os.environ.get("LAUNCHER_NUM_SLICES", "1")
    if slices == "1":
        return ""
    name = os.environ.get("LAUNCHER_SLICE_NAME", "")
    return f", slice {slice_of(jax.local_devices()[0])} of {slices} ({name})"


def main() -> None:
    if int(os.environ.get("LAUNCHER_NUM_PROCESSES", "1")) > 1:
        jax.distributed.initialize()

    chips, local = jax.device_count(), jax.local_devices()
    mine = slice_of(local[0])
    rows = np.array([(chip + 1, chips, mine) for chip in range(chips)], dtype=np.int32)
    total, (counts, slices) = gather(rows)
    expected = chips * (chips + 1) // 2
    print(
        f"process {jax.process_index()} of {jax.process_count()}: device_count {chips}, "
        f"{len(local)} local {local[0].platform} devices, sum over all chips {total}{where()}",
        flush=True,
    )
    if total != expected:
        raise SystemExit(f"the sum over all chips is {total}, not {expected}")
    if jax.process_index() == 0:
        Voice(leads=True).metrics(step=1, device_count=chips, sum=total)
        print(f"device_count on every host: {counts[:: len(local)]}", flush=True)
        if len(set(slices)) > 1:
            print(f"slice of every host: {slices[:: len(local)]}", flush=True)


if __name__ == "__main__":
    main()
