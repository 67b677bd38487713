"""A first line from each of the four hosts of a running cluster, by Ray Train's JaxTrainer.

    python jax_trainer.py ADDRESS

Ray Train runs functions, not commands; the lines come through files, as all hosts are one machine.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.train.v2.api.config import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer


def say(config: dict[str, Any]) -> None:
    """The training function: one line, then nothing."""
    rank = ray.train.get_context().get_world_rank()
    ready = Path(config["folder"], f"h{rank}")
    ready.with_suffix(".part").write_text("up")
    os.replace(ready.with_suffix(".part"), ready)


def show(folder: str) -> None:
    """Print each host's line as soon as it is there."""
    seen: set[str] = set()
    while len(seen) < 4:
        for path in sorted(Path(folder).glob("h?")):
            if path.name not in seen:
                seen.add(path.name)
                print(f"[{path.name}] {path.read_text()}", flush=True)
        time.sleep(0.02)


def main(address: str) -> None:
    """Connect, train for one line, disconnect."""
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    hosts = ScalingConfig(
        use_tpu=True,
        topology="4x4",
        accelerator_type="TPU-V6E",
        num_workers=4,
        resources_per_worker={"TPU": 4},
    )
    with tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=show, args=(folder,), daemon=True).start()
        JaxTrainer(
            say,
            train_loop_config={"folder": folder},
            scaling_config=hosts,
            run_config=RunConfig(name="bench", storage_path=folder),
        ).fit()


if __name__ == "__main__":
    main(sys.argv[1])
