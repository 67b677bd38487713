"""A head and four emulated v6e-16 hosts, by hand: parallel `ray start` commands on one machine.

Every option here makes it faster or keeps the five nodes apart: one loopback address, one short
temp folder and one block of ports each; nothing is started that a job does not need.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

HEAD = "127.0.7.1"  # not 127.0.0.1, which Ray replaces by the machine's primary address
HOSTS = tuple(f"127.0.7.{10 + index}" for index in range(4))
RAY = Path(sys.executable).with_name("ray")


@contextmanager
def cluster(*, dashboard: bool) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a head, whose four hosts are joining, and of its dashboard.

    All of it ends on the way out.
    """
    base = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    ports = random.randrange(20_000, 30_000, 100)  # above Ray's worker ports, below ephemeral
    address = f"{HEAD}:{ports}"
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        nodes.append(_start_head(base / "h", ports, dashboard))
        _wait_for(base / "h.log", "Ray runtime started", nodes[0])
        nodes += [_start_host(index, address, base / f"w{index}", ports) for index in range(4)]
        yield address, f"{HEAD}:{ports + 1}"
    finally:
        _end(nodes)
        shutil.rmtree(base, ignore_errors=True)


def environment() -> dict[str, str]:
    """Ours, with Ray closed to what else may run on the machine and to its slow habits."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return inherited | {
        "RAY_AUTH_MODE": "disabled",
        "RAY_raylet_client_connect_timeout_milliseconds": "10",
        "RAY_raylet_client_num_connect_attempts": "1000",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_worker_niceness": "0",
    }


def jax_environment(index: int, port: int) -> dict[str, str]:
    """What a bare `jax.distributed.initialize()` needs on emulated host `index`."""
    return {
        "JAX_FORCE_TPU_INIT": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_COORDINATOR_PORT": str(port),
        "TPU_WORKER_ID": str(index),
        "TPU_WORKER_HOSTNAMES": ",".join(HOSTS),
        "MEGASCALE_COORDINATOR_ADDRESS": "",
        "MEGASCALE_NUM_SLICES": "",
        "MEGASCALE_SLICE_ID": "",
        "LAUNCHER_NUM_PROCESSES": "4",
    }


def _start_head(folder: Path, port: int, dashboard: bool) -> subprocess.Popen[bytes]:
    options = [
        "--head",
        f"--port={port}",
        f"--node-ip-address={HEAD}",
        "--num-cpus=0",
        f"--include-dashboard={str(dashboard).lower()}",
        f"--dashboard-host={HEAD}",
        f"--dashboard-port={port + 1}",
    ]
    return _ray_start(folder, options, {}, port + 2)


def _start_host(index: int, address: str, folder: Path, ports: int) -> subprocess.Popen[bytes]:
    tpu = {
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "TPU_NAME": "by-hand",
        "TPU_WORKER_ID": str(index),
        "TPU_TOPOLOGY": "4x4",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
    }
    where = [f"--address={address}", f"--node-ip-address={HOSTS[index]}"]
    has = ["--num-cpus=1", '--resources={"TPU": 4}']
    return _ray_start(folder, where + has, tpu, ports + 10 * (index + 1))


def _ray_start(
    folder: Path, options: Sequence[str], variables: Mapping[str, str], ports: int
) -> subprocess.Popen[bytes]:
    common = [
        f"--temp-dir={folder}",
        "--object-store-memory=100000000",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--dashboard-agent-grpc-port={ports}",
        f"--runtime-env-agent-port={ports + 1}",
        f"--metrics-export-port={ports + 2}",
        f"--dashboard-agent-listen-port={ports + 3}",
        "--block",
    ]
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [str(RAY), "start", *options, *common],
            env={**environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while text not in (written := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"ray start did not get there:\n{written[-2000:]}")
        time.sleep(0.02)


def _end(nodes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the processes that we started and all their descendants, and nothing else."""
    doomed = []
    for node in nodes:
        if node.poll() is None:
            process = psutil.Process(node.pid)
            doomed += [process, *process.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=10)
