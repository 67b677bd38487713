"""The main job by hand: `ray start` five times, four actors, the JAX program, and down again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray_cluster import cluster, environment

PROGRAM = Path(__file__).parents[2] / "workloads" / "basic_jax.py"


def main() -> None:
    os.environ.update(environment())  # before Ray is imported
    with cluster(dashboard=False) as (address, _):
        import actors

        actors.run(address, [sys.executable, str(PROGRAM)])


if __name__ == "__main__":
    main()
