"""Checks of this machine: Python, limits, disk, shared memory, ports, folders, leftovers."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import raynode, registry
from launcher.coordinator import LONGEST_TEMP, OBJECT_STORE_BYTES
from launcher.doctor.context import Context
from launcher.doctor.findings import Finding, Skip, ok, problem, warning
from launcher.providers import KINDS

GIB = 2**30
LEAST_FILES, ENOUGH_FILES = 1024, 8192
# https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html
FILES_MEND = "ulimit -n 65536  (for good: a line `* - nofile 65536` in /etc/security/limits.conf)"
LEAST_DISK, ENOUGH_DISK = 1 * GIB, 5 * GIB
FULL_DISK = 0.95  # Ray creates no objects on a fuller one: RAY_local_fs_capacity_threshold
HOST_STORE_BYTES = 100_000_000  # of each emulated host, see launcher.startup
SOCKET_BELOW = 75  # bytes of a socket's path below the folder of a Ray node
SHM = Path("/dev/shm")


def open_files(_: Context) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{amount(soft)} open files allowed"
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        found = problem if soft < LEAST_FILES else warning
        yield found(f"{text} (at most {amount(hard)})", FILES_MEND)
    else:
        yield ok(text)


def amount(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit}"


def disk(context: Context) -> Iterator[Finding]:
    """Of the folder that run folders are made in, and of temporary files."""
    folders = {"run folders": context.cwd, "temporary files": Path(tempfile.gettempdir())}
    for what, folder in folders.items():
        yield space(what, folder, shutil.disk_usage(folder))


def space(what: str, folder: Path, usage: shutil._ntuple_diskusage) -> Finding:
    text = f"{usage.free / GIB:.1f} GiB free for {what} in {folder}"
    mend = f"make room: du -xh --max-depth 2 {folder} | sort -h | tail"
    if usage.free < LEAST_DISK:
        return problem(text, mend)
    if usage.used > FULL_DISK * (usage.used + usage.free):
        return warning(f"{text}, but Ray stores nothing on a disk that is 95 % full", mend)
    return warning(text, mend) if usage.free < ENOUGH_DISK else ok(text)


def temp_path(_: Context) -> Iterator[Finding]:
    """Binds a socket where those of a Ray head would be: AF_UNIX paths end at 107 bytes."""
    temp = tempfile.gettempdir()
    long = len(os.fsencode(temp)) > LONGEST_TEMP
    base = "/tmp" if long else temp
    try:
        with tempfile.TemporaryDirectory(prefix="ray-", dir=base) as folder:
            path = os.path.join(folder, "x" * (SOCKET_BELOW - 1))
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                probe.bind(path)
    except OSError as error:
        mend = "export TMPDIR=/tmp, or another short path of yours"
        yield problem(f"no socket of Ray's can be made in {base}: {error}", mend)
    else:
        yield ok(f"Ray's sockets in {base}{f', since {temp} is too long' if long else ''}")


def shared_memory(context: Context) -> Iterator[Finding]:
    """Ray's object stores: one for the head, one for each emulated host."""
    hosts = 0
    if context.loaded and not KINDS[context.spec.provider.kind].billed:
        hosts = max(choice.hosts for choice in context.plan.choices)
    needed = OBJECT_STORE_BYTES + hosts * HOST_STORE_BYTES
    free = shutil.disk_usage(SHM).free if SHM.is_dir() else 0
    text = f"{free / 1e6:.0f} MB free in {SHM}, {needed / 1e6:.0f} MB for object stores"
    if free >= needed:
        yield ok(text)
    else:
        yield warning(
            f"{text}: Ray takes the disk instead, which is slow",
            "in Docker: docker run --shm-size=4g …",
            f"elsewhere: sudo mount -o remount,size=4g {SHM}",
        )


def ports(_: Context) -> Iterator[Finding]:
    try:
        block = raynode.port_block("127.0.0.1", head=True)
    except SystemExit:
        first = raynode.PORT_BASE + raynode.HOST_BLOCKS * raynode.PORTS_PER_BLOCK
        last = first + raynode.HEAD_BLOCKS * raynode.PORTS_PER_BLOCK - 1
        text = f"no {raynode.PORTS_PER_BLOCK} ports in a row are free between {first} and {last}"
        yield problem(text, "see who has them: ss -ltnp")
    else:
        yield ok(f"free for a Ray head: {block[0]} to {block[-1]}")


def records(_: Context) -> Iterator[Finding]:
    home = registry.home()
    try:
        with tempfile.TemporaryFile(dir=nearest(home)):
            yield ok(f"records in {home}")
    except OSError as error:
        yield problem(
            f"{home} cannot be written: {error}", "export LAUNCHER_HOME=<a folder of yours>"
        )


def run_folders(context: Context) -> Iterator[Finding]:
    folder = context.cwd / "runs"
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)):
            yield ok(f"run folders in {folder}")
    except OSError as error:
        yield problem(
            f"{folder} cannot be written: {error}", "start the launcher in a folder of yours"
        )


def nearest(path: Path) -> Path:
    """The path itself, or the folder above it in which it would be made."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def git(_: Context) -> Iterator[Finding]:
    if shutil.which("git"):
        yield ok("git is there: a run records the commit, and ignored files stay here")
    else:
        text = "no git: a run records no commit, and ships files that git would ignore"
        yield warning(text, "sudo apt-get install git")


def gcloud(context: Context) -> Iterator[Finding]:
    """The tunnel to a coordinator on Google is `gcloud compute ssh`."""
    kind, place = context.spec.provider.kind, context.spec.cluster.coordinator
    if not KINDS[kind].billed or place not in ("vm", "host0"):
        raise Skip(f"not needed for provider {kind} with coordinator {place}")
    if shutil.which("gcloud"):
        yield ok("gcloud is there, for the tunnel to the coordinator")
    else:
        mend = "https://cloud.google.com/sdk/docs/install"
        yield problem("no gcloud: the coordinator cannot be reached through a tunnel", mend)


def leftovers(_: Context) -> Iterator[Finding]:
    dead = [record for record in registry.records() if is_dead(record)]
    if not dead:
        yield ok("none on record")
    for record in dead:
        what = ", ".join(record["resources"]) or "its Ray head"
        yield warning(f"{record['name']}, a dead run, left {what}", "python -m launcher gc --yes")


def is_dead(record: Mapping[str, Any]) -> bool:
    """As far as this machine knows: one that was handed over is looked after by its coordinator,
    which `gc` asks.
    """
    handed_over = record.get("remote") and record["supervisor"] is None
    return not (record["stays"] or handed_over or registry.is_alive(record["supervisor"]))


def system(_: Context) -> Iterator[Finding]:
    name = f"{platform.system()} {platform.machine()}"
    if platform.system() == "Linux":
        yield ok(name)
    else:
        yield problem(f"{name}: hosts and heads need Linux", "use a Linux machine, a VM or WSL 2")
