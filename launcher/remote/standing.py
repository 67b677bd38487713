"""Where a remote run stands: its mirror is brought up to now, and its coordinator looked at.

The record of such a run has `remote`: its coordinator, the id of its job, and whether the job was
submitted. Its run folder here is the mirror of the coordinator's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ClusterError, ConfigError, Interrupted, ProvisioningError
from launcher.providers import Pause
from launcher.remote import sites
from launcher.remote.follow import End, Follower, Lost
from launcher.remote.jobs import Jobs
from launcher.screen import Screen
from launcher.session import LazyProvider
from launcher.spec import ProviderSpec

Record = Mapping[str, Any]


@contextlib.contextmanager
def reached(record: Record, pause: Pause) -> Iterator[Jobs]:
    with sites.of_record(record["remote"]).reached(pause) as jobs:
        yield jobs


def follower(jobs: Jobs, record: Record, screen: Screen | None) -> Follower:
    job, folder = record["remote"]["job"], Path(record["folder"])
    return Follower(jobs, job, record["name"], folder, screen)


def caught_up(record: Record) -> End | None:
    """Bring the mirror up to now; the end of the job if it has ended, which is then settled.

    Raises Lost, and ClusterError when the coordinator cannot be reached.
    """
    try:
        with reached(record, time.sleep) as jobs:
            ended = follower(jobs, record, None).catch_up()
    except Lost:
        raise
    except ClusterError as error:
        if record["remote"]["submitted"] or registry.is_alive(record["supervisor"]):
            raise
        raise Lost(f"{record['name']} was not submitted; the same command begins anew") from error
    if ended:
        settle(record, ended)
    return ended


def settle(record: Record, end: End) -> None:
    """After a job's last word: a run of which nothing is up is forgotten."""
    name = record["name"]
    if end.up or record["resources"]:
        remote = {**record["remote"], "ended": True}
        registry.write_record(name, {**record, "stays": end.up, "remote": remote})
    else:
        registry.forget(name)


def trouble(record: Record) -> str:
    """For `status`, once it has caught up: what is the matter with the run, or nothing."""
    try:
        caught_up(record)
    except Lost:
        return "has lost its coordinator (the same command adopts or removes what is left)"
    except ClusterError as error:
        if vanished(record):
            return "has lost its coordinator, which does not run (see down)"
        return f"its coordinator does not answer ({str(error).splitlines()[0]})"
    return ""


def feed(record: Record, leaving: threading.Event) -> None:
    """For `logs -f`: keep the mirror growing until the job has ended, or `leaving` is set."""

    def pause(seconds: float) -> None:
        if leaving.wait(seconds):
            raise Interrupted("left")

    with contextlib.suppress(Interrupted), reached(record, pause) as jobs:
        while True:
            try:
                settle(record, follower(jobs, record, None).follow(pause))
                return
            except ConfigError:  # another process follows, and the mirror grows anyway
                pause(0.5)
                if registry.record(record["name"]) != record:
                    return


def is_lost(record: Record) -> bool:
    """For `gc`: whether what the run has left is looked after by nobody."""
    try:
        if caught_up(record) and record["resources"]:
            return True
    except Lost:
        return True
    except ClusterError:
        return vanished(record)
    return False


def vanished(record: Record) -> bool:
    """Whether the coordinator does not run any more, so that nobody else removes what is left.

    Where the API cannot be asked, it may run.
    """
    from launcher.remote import vm
    from launcher.remote.vm_instances import Instances

    key = record["remote"].get("vm")
    if key is None or (found := vm.find(key)) is None:
        return key is not None
    try:
        with recorded_provider(record) as provider:
            provider.get()
            instance = Instances(found).get()
    except ProvisioningError:
        return False
    return instance is None or instance.status not in ("PROVISIONING", "STAGING", "RUNNING")


def recorded_provider(record: Record) -> contextlib.closing[LazyProvider]:
    return contextlib.closing(LazyProvider(ProviderSpec(**record["provider"])))


def nodes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Full names of what the events say was asked for, and not released since."""
    found: dict[str, None] = {}
    for event in events:
        if event["kind"] == "released":
            found.clear()
        elif event["kind"] == "provisioning":
            found[event["node"]] = None
    return list(found)
