"""The emulator's process: one per state folder, up until nobody needs it.

The folder holds `lock` (held for life), `endpoint.json` (while it listens), `ledger.json` (which
outlives it), `emulator.log` (when it was started in the background), and a folder for each node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from launcher import locks
from launcher.emulator.calls import Calls
from launcher.emulator.client import make_state_dir
from launcher.emulator.compute.firewalls import Firewalls
from launcher.emulator.compute.instances import Instances
from launcher.emulator.control import Control
from launcher.emulator.http import front
from launcher.emulator.ledger import Ledger
from launcher.emulator.machine.init import become_subreaper
from launcher.emulator.presence import Presence
from launcher.emulator.project.projects import Projects
from launcher.emulator.rpc import Method, service
from launcher.emulator.rules import Rule
from launcher.emulator.tpu import api_alpha, api_catalog, api_nodes, api_operations, api_queued
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.node import temp_folder
from launcher.emulator.world import World
from launcher.errors import ProvisioningError

# A client that looks whether an emulator is alive holds the lock for an instant.
LOCK_PATIENCE = 2.0
HEARTBEAT = 0.05

SERVICES: dict[str, dict[str, Method]] = {
    "google.cloud.tpu.v2.Tpu": {
        **api_nodes.METHODS,
        **api_queued.METHODS,
        **api_catalog.TPU_METHODS,
    },
    "google.cloud.tpu.v2alpha1.Tpu": api_alpha.METHODS,
    "google.longrunning.Operations": api_operations.METHODS,
    "google.cloud.location.Locations": api_catalog.LOCATION_METHODS,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How to serve. Port 0 takes any free one; `idle_timeout` is in seconds."""

    state_dir: Path
    port: int = 0
    idle_timeout: float = 60.0
    rules: tuple[Rule, ...] = ()


def serve(settings: Settings) -> None:
    """Serves until a signal comes or nobody needs the emulator any more.

    Raises ProvisioningError if the folder has an emulator already or the port is taken.
    """
    make_state_dir(settings.state_dir)
    with _locked(settings.state_dir / "lock") as died:
        ledger = Ledger(settings.state_dir / "ledger.json")
        ledger.bury(died)
        ledger.save()
        _sweep(settings.state_dir / "nodes")
        become_subreaper()
        asyncio.run(_serve(settings, ledger))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[float]:
    """Holds the lock; gives the time of the last heartbeat of whoever held it before."""
    busy = ProvisioningError(f"an emulator runs in {path.parent} already")
    with locks.held(path, busy, LOCK_PATIENCE) as lock:
        yield os.fstat(lock).st_mtime


def _sweep(nodes: Path) -> None:
    """Removes what an emulator that was killed left on disk; its hosts ended with it."""
    for folder in nodes.iterdir() if nodes.exists() else ():
        shutil.rmtree(temp_folder(folder.name), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(settings: Settings, ledger: Ledger) -> None:
    listener = front.listen()
    world = _make_world(settings, ledger, front.url(listener))
    world.fleet.rules.arm(*settings.rules)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (
            *(service(name, table, world.fleet, world.calls) for name, table in SERVICES.items()),
            Control(world).service(),
        )
    )
    port = _bind(server, settings.port)
    await server.start()
    try:
        async with front.serve(listener, world):
            with _announced(settings.state_dir, port, world.rest):
                await _until_unneeded(world, settings.state_dir / "lock")
    finally:
        world.calls.presence.ending = True
        await asyncio.gather(world.fleet.close(), world.instances.close())
        await server.stop(grace=None)


def _make_world(settings: Settings, ledger: Ledger, rest_url: str) -> World:
    folder = settings.state_dir / "nodes"
    fleet = Fleet(folder, ledger)
    instances = Instances(folder, ledger, fleet.rules)
    projects = Projects(fleet.rules)
    calls = Calls(fleet.rules, projects, Presence(settings.idle_timeout))
    return World(fleet, instances, Firewalls(instances.operations), projects, calls, rest_url)


def _bind(server: Any, port: int) -> int:
    try:
        return int(server.add_insecure_port(f"127.0.0.1:{port}"))
    except RuntimeError as error:
        raise ProvisioningError(f"cannot listen on 127.0.0.1:{port}: is it taken?") from error


@contextlib.contextmanager
def _announced(state_dir: Path, port: int, rest_url: str) -> Iterator[None]:
    """Tells where the emulator listens, on standard output and in a file for as long as it does."""
    endpoint = {"endpoint": f"127.0.0.1:{port}", "rest": rest_url}
    text = json.dumps({**endpoint, "pid": os.getpid(), "state_dir": str(state_dir)})
    path, draft = state_dir / "endpoint.json", state_dir / "endpoint.new"
    draft.write_text(text)
    os.replace(draft, path)
    print(text, flush=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def _until_unneeded(world: World, heartbeat: Path) -> None:
    """Returns on SIGTERM, SIGINT or SIGHUP, or when nothing is left and no client is here."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    while not stop.is_set() and (world.in_use or not world.calls.presence.expired):
        os.utime(heartbeat)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), HEARTBEAT)
    world.calls.presence.ending = True
    print("emulator: ends", file=sys.stderr)
