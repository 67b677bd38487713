"""Run one command on each of the four hosts of a running cluster: four actors, written by hand.

python actors.py ADDRESS COMMAND [ARGUMENT …]
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray_cluster import jax_environment

SECONDS = 60


class Host:
    """One host; yields the lines of its child process as they come."""

    def run(self, command: Sequence[str], variables: dict[str, str]) -> Iterator[str]:
        with subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child:
            while child.stdout and (line := child.stdout.readline()):
                yield line
        if child.returncode:
            raise RuntimeError(f"exit code {child.returncode}")


Actor: Any = ray.remote(num_cpus=0, resources={"TPU": 4})(Host)


def run(address: str, command: Sequence[str]) -> None:
    """Print what the hosts print, each line with its host, until all have ended."""
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        _stream(_start(command))
    finally:
        ray.shutdown()


def _start(command: Sequence[str]) -> dict[Any, int]:
    port = random.randrange(10_000, 20_000)
    streams = {}
    for index in range(4):
        host = Actor.options(label_selector={"ray.io/tpu-worker-id": str(index)}).remote()
        lines = host.run.options(num_returns="streaming")
        streams[lines.remote(command, jax_environment(index, port))] = index
    return streams


def _stream(streams: dict[Any, int]) -> None:
    while streams:
        ready: list[Any] = ray.wait(list(streams), timeout=SECONDS, fetch_local=False)[0]
        if not ready:
            raise SystemExit(f"no host wrote anything for {SECONDS} s")
        try:
            print(f"[h{streams[ready[0]]}] {ray.get(next(ready[0]))}", end="", flush=True)
        except StopIteration:
            del streams[ready[0]]


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
