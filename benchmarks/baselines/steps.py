"""A JAX program of equal steps: each is one sum over all chips, and one line with its time.

python steps.py            the peers are told by LAUNCHER_* and TPU_* variables, as anywhere
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main() -> None:
    if int(os.environ["LAUNCHER_NUM_PROCESSES"]) > 1:
        jax.distributed.initialize()
    step = 0
    while True:
        step += 1
        multihost_utils.process_allgather(jnp.ones(1))
        sys.stdout.write(f"step {step} {time.time():.6f}\n")  # whole, beside what others write
        sys.stdout.flush()
        if step == 1 and (metrics := os.environ.get("LAUNCHER_METRICS")):
            Path(metrics).write_text('{"step": 1}\n')
        time.sleep(0.05)


if __name__ == "__main__":
    main()
