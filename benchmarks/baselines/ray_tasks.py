"""Trials as plain Ray tasks: what Ray itself takes, with nothing around it.

python ray_tasks.py TRIALS PLACES [--jax]
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import ray

HERE = str(Path(__file__).parent)


@ray.remote(num_cpus=1)
def task(with_jax: bool) -> float:
    sys.path.insert(0, HERE)
    import trial

    return trial.run(str(os.getpid()), time.time(), with_jax)


def start(places: int) -> None:
    """Ray on this machine, as silent and as light as it gets."""
    ray.init(
        num_cpus=places,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def main(trials: int, places: int, with_jax: bool) -> None:
    """All trials, then the end of Ray."""
    start(places)
    ray.get([task.remote(with_jax) for _ in range(trials)])
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "--jax" in sys.argv)
