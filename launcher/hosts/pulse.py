"""Tells whether processes are at work or only wait, as for a peer that has died. Runs on a host.

What waits in a collective does next to nothing. Measured with JAX and Gloo: its threads take 0.3 %
of a CPU, the main one stands in a futex(2) that has no time limit and never wakes, and no byte is
read or written. What saves a checkpoint differs from that in one of these, or waits for what cannot
be seen from here: for the answer of a server, or for a device. To that more time is given.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

QUIET_SECONDS = 0.1
UNSEEN_SECONDS = 5.0  # of what may wake by itself, has a peer outside of the gang, or a TPU open
CPU_SECONDS, CPU_SHARE = 0.011, 0.02  # a tick of the clock (10 ms), and of what has passed
DEVICES = ("/dev/accel", "/dev/vfio/")  # of TPU VMs
# System calls that may last for ever, by number: of the process's own threads or children. For
# futex, its fourth argument is the time limit.
FUTEX = "202"
ENDLESS = {"x86_64": {FUTEX, "61", "247"}}  # and wait4, waitid
AT_WORK = frozenset({"R", "D"})  # running or ready to, and waiting for a disk: proc(5)


@dataclass(frozen=True, slots=True)
class Signs:
    """What processes have done since their start.

    `wakes` counts how often a main thread has waited and woken; `at_work`: a thread runs just now.
    """

    processes: frozenset[int]
    cpu_seconds: float
    bytes: int
    wakes: int
    at_work: bool


class Pulse:
    """That of a process and its descendants. `peers` are the addresses of the gang's hosts."""

    def __init__(self, leader: int, peers: Collection[str]) -> None:
        self.leader = leader
        self.peers = peers
        self.first: Signs | None = None  # of the time in which it has been quiet
        self.since = 0.0

    def stopped(self) -> bool:
        """Look; whether they have been quiet for so long that they cannot be at work."""
        if sys.platform != "linux":
            return False
        now = time.monotonic()
        try:
            found = family(self.leader)
            signs = read(found)
            if self.first is None or moved(self.first, signs, now - self.since):
                self.first, self.since = signs, now
            quiet = now - self.since
            if quiet < QUIET_SECONDS:
                return False
            return quiet >= UNSEEN_SECONDS or all(is_stuck(p, self.peers) for p in found)
        except (psutil.Error, OSError):  # one has just ended, or is another user's
            self.first = None
            return False


def family(leader: int) -> list[psutil.Process]:
    parent = psutil.Process(leader)
    return [parent, *parent.children(recursive=True)]


def read(processes: Collection[psutil.Process]) -> Signs:
    times = [process.cpu_times() for process in processes]
    counts = [process.io_counters() for process in processes]
    return Signs(
        frozenset(process.pid for process in processes),
        sum(spent.user + spent.system for spent in times),
        sum(count.read_chars + count.write_chars for count in counts),
        sum(process.num_ctx_switches().voluntary for process in processes),
        any(not AT_WORK.isdisjoint(states(process.pid)) for process in processes),
    )


def states(pid: int) -> Iterator[str]:
    """Of each thread, a letter."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        # The command, in parentheses, may itself hold spaces and parentheses.
        yield stat.read_text(errors="replace").rpartition(")")[2].split()[0]


def moved(first: Signs, last: Signs, seconds: float) -> bool:
    """Whether anything has been done in between."""
    counts = (first.processes, first.bytes, first.wakes)
    spent = last.cpu_seconds - first.cpu_seconds
    return (
        last.at_work
        or counts != (last.processes, last.bytes, last.wakes)
        or spent > max(CPU_SECONDS, CPU_SHARE * seconds)
    )


def is_stuck(process: psutil.Process, peers: Collection[str]) -> bool:
    """Whether its main thread waits with no time limit, and for no server and no TPU."""
    call = Path(f"/proc/{process.pid}/syscall").read_text().split()
    endless = call[0] in ENDLESS.get(platform.machine(), ())
    limited = call[0] == FUTEX and int(call[4], 16) != 0
    return endless and not limited and not is_remote(process, peers) and not has_device(process)


def is_remote(process: psutil.Process, peers: Collection[str]) -> bool:
    """Whether it is connected to anything but this machine and its peers."""
    near = {*peers, "127.0.0.1", "::1"}
    far = (
        connection.raddr and connection.raddr.ip.removeprefix("::ffff:") not in near
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
    )
    return any(far)


def has_device(process: psutil.Process) -> bool:
    files = Path(f"/proc/{process.pid}/fd")
    return any(os.readlink(files / name).startswith(DEVICES) for name in os.listdir(files))
