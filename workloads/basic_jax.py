"""The smallest useful program: every host says what it sees, and all chips add up one number.

It is an ordinary JAX program. Alone (`python workloads/basic_jax.py`) it uses the devices of this
machine; started by the launcher, the bare `jax.distributed.initialize()` finds its peers.
"""

from __future__ import annotations

import json
import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def gather(rows: np.ndarray) -> tuple[int, list[int]]:
    """Give chip i the row i; return the sum of the first column and the whole second one.

    Both come back on every host, so each chip's number really crossed the network.
    """
    mesh = Mesh(np.array(jax.devices()), ("chip",))
    per_chip = NamedSharding(mesh, PartitionSpec("chip"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    table = jax.make_array_from_callback(rows.shape, per_chip, lambda index: rows[index])
    total, column = jax.jit(lambda t: (t[:, 0].sum(), t[:, 1]), out_shardings=everywhere)(table)
    return int(total), [int(value) for value in np.asarray(column)]


def report_metrics(**values: float) -> None:
    """Append one line to the file that the launcher watches, if there is one."""
    if path := os.environ.get("LAUNCHER_METRICS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def main() -> None:
    if int(os.environ.get("LAUNCHER_NUM_PROCESSES", "1")) > 1:
        jax.distributed.initialize()

    chips, local = jax.device_count(), jax.local_devices()
    rows = np.array([(chip + 1, chips) for chip in range(chips)], dtype=np.int32)
    total, counts = gather(rows)
    expected = chips * (chips + 1) // 2
    print(
        f"process {jax.process_index()} of {jax.process_count()}: device_count {chips}, "
        f"{len(local)} local {local[0].platform} devices, sum over all chips {total}",
        flush=True,
    )
    if total != expected:
        raise SystemExit(f"the sum over all chips is {total}, not {expected}")
    if jax.process_index() == 0:
        report_metrics(step=1, device_count=chips, sum=total)
        print(f"device_count on every host: {counts[:: len(local)]}", flush=True)


if __name__ == "__main__":
    main()
