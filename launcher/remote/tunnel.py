"""One port of a machine in Google's network, on this machine, for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from launcher.errors import ClusterError

OPEN_SECONDS = 60.0
KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
NO_GCLOUD = (
    "gcloud is needed to reach the coordinator: https://cloud.google.com/sdk/docs/install;"
    " or give the address of a dashboard that this machine can reach: cluster.coordinator=HOST:PORT"
)


def to_vm(name: str, zone: str, project: str) -> tuple[str, ...]:
    """The ssh of gcloud to a VM.

    https://cloud.google.com/compute/docs/connect/ssh-using-iap
    """
    where = ("--zone", zone, "--project", project, "--tunnel-through-iap", "--quiet")
    return ("gcloud", "compute", "ssh", name, *where)


def to_host0(node: str, zone: str, project: str, *, external_ips: bool) -> tuple[str, ...]:
    """The ssh of gcloud to worker 0 of a TPU node.

    One without an external address is reached through the Identity-Aware Proxy, which is a flag of
    `gcloud alpha` alone.
    https://cloud.google.com/sdk/gcloud/reference/alpha/compute/tpus/tpu-vm/ssh
    """
    track, through = ((), ()) if external_ips else (("alpha",), ("--tunnel-through-iap",))
    where = ("--worker", "0", "--zone", zone, "--project", project, *through, "--quiet")
    return ("gcloud", *track, "compute", "tpus", "tpu-vm", "ssh", node, *where)


def forward(ssh: Sequence[str], local: int, address: str, port: int) -> list[str]:
    """The argv that forwards a local port to a port of the far machine.

    The far command reads its input, which ends with this process, however that dies; so does ssh.
    """
    there = f"{local}:{address}:{port}"
    return [
        *ssh,
        "--command",
        "cat",
        "--",
        *KEEP_ALIVE,
        "-o",
        "ExitOnForwardFailure=yes",
        "-L",
        there,
    ]


def command(ssh: Sequence[str], address: str, port: int) -> str:
    """For the user to type, so that the dashboard is at http://localhost:PORT."""
    return shlex.join([*ssh, "--", "-N", "-L", f"{port}:{address}:{port}"])


@contextlib.contextmanager
def opened(
    ssh: Sequence[str], address: str, port: int, pause: Callable[[float], None]
) -> Iterator[str]:
    """The URL of the far port, here. Raises ClusterError with what gcloud said if it cannot be."""
    if shutil.which(ssh[0]) is None:
        raise ClusterError(NO_GCLOUD)
    local = free_port()
    with tempfile.TemporaryFile() as said, running(forward(ssh, local, address, port), said) as it:
        deadline = time.monotonic() + OPEN_SECONDS
        while not answers(local):
            if it.poll() is not None or time.monotonic() > deadline:
                said.seek(0)
                words = said.read().decode(errors="replace").strip()[-1000:]
                raise ClusterError(f"no tunnel to the coordinator: {shlex.join(ssh)}\n{words}")
            pause(0.1)
        yield f"http://127.0.0.1:{local}"


@contextlib.contextmanager
def running(argv: Sequence[str], said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, which ends with the block."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
