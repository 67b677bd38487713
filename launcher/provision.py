"""Acquires what a plan asks for and hands over joined hosts; takes everything away again.

Nothing waits that need not: the head starts, the emulator or the API is reached, the slices are
created and Ray is imported at the same time. What is about to exist is on record first.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from launcher import cluster, coordinator, registry
from launcher.coordinator import Head
from launcher.errors import (
    ClusterError,
    ConfigError,
    Interrupted,
    LauncherError,
    ProvisioningError,
    SliceLost,
)
from launcher.member import Place
from launcher.plan import NodeRequest
from launcher.providers import KINDS, NodeState, Provider
from launcher.session import Session

SHARED_HEAD = "shared"  # of everything that is `up` on this machine
HEAD_SECONDS = 60.0
DELETE_SECONDS = 600.0
JOIN_AGAIN_SECONDS = 15.0  # for hosts that were up already
LOOK_SECONDS = 5.0  # between looks at the nodes while their hosts join


@dataclass(frozen=True, slots=True)
class Joined:
    """Hosts that are part of the cluster."""

    head: Head
    hosts: Mapping[Place, cluster.Host]


@contextlib.contextmanager
def acquired(session: Session, *, stays: bool) -> Iterator[Joined]:
    """Slices and cluster for the time of the block; afterwards both are gone, unless `stays`.

    A failure or an interrupt takes them away too. A run whose slices were `up` before leaves them.
    Raises ConfigError, and touches nothing, when something else is up under this name.
    """
    record = registry.record(session.spec.name)
    if record:
        require_same(session, record)
    stays = stays or bool(record and record["stays"])
    was_up = bool(record and record["stays"])
    try:
        joined = adopt(session, record, stays) if record else None
        joined = joined or create(session, stays=stays)
        yield joined
    except BaseException:
        if not was_up:
            release(session)
        raise
    leave(session)
    if not stays:
        release(session)


def require_same(session: Session, record: Mapping[str, Any]) -> None:
    """What is up under a name is adopted or removed only by a run of the same nodes."""
    name, wanted = session.spec.name, intent(session, "", "", stays=False)
    keys = ("accelerator_types", "nodes", "provider")
    if other := [key for key in keys if record[key] != wanted[key]]:
        raise ConfigError(
            f"{name} is up with other {', '.join(other)}"
            f" ({record[other[0]]}, not {wanted[other[0]]}):"
            f" choose another name=, or `python -m launcher down {name}` first"
        )


def adopt(session: Session, record: Mapping[str, Any], stays: bool) -> Joined | None:
    """The hosts that are up under this name, or None when they must be made anew."""
    head = coordinator.find_head(record["head"])
    if head is None or not coordinator.processes(head):
        return None
    renewed = {"supervisor": registry.this_process(), "folder": str(session.folder.path)}
    registry.write_record(session.spec.name, {**record, **renewed, "stays": stays})
    late = Deadline(JOIN_AGAIN_SECONDS)
    try:
        hosts = join(
            session,
            head,
            record["incarnation"],
            lambda: late.passed,
            lambda *_: "",
            session.interrupt.pause,
        )
    except Interrupted:
        raise
    except LauncherError as error:
        session.tell("adopt", f"not usable as it is, made anew: {str(error).splitlines()[0]}")
        leave(session)
        return None
    session.tell("adopted", f"{len(hosts)} hosts that were up")
    return Joined(head, hosts)


def create(session: Session, *, stays: bool) -> Joined:
    """Everything new; leftovers of the same name are removed first."""
    remove(session)
    head_id = SHARED_HEAD if stays else f"run-{session.spec.name}"
    incarnation = secrets.token_hex(4)
    registry.write_record(session.spec.name, intent(session, head_id, incarnation, stays))
    choose_address = KINDS[session.spec.provider.kind].head_address
    head = coordinator.start_head(head_id, choose_address, dashboard=stays)
    session.tell("head", f"Ray head at {head.gcs_address}")
    requests = [with_secrets(request, head, incarnation) for request in session.plan.requests]
    abort = threading.Event()

    def pause(seconds: float) -> None:
        session.interrupt.check()
        if abort.wait(seconds):
            raise ProvisioningError("given up, since another part of the run failed")

    session.provider.open()
    with ThreadPoolExecutor(len(requests)) as pool:
        creating = [pool.submit(create_slice, session, request, pause) for request in requests]
        try:
            hosts = join_new(session, head, incarnation, creating)
        finally:
            abort.set()
    return Joined(head, hosts)


def intent(session: Session, head_id: str, incarnation: str, stays: bool) -> dict[str, Any]:
    provider = session.spec.provider
    return {
        "name": session.spec.name,
        "owner": session.owner,
        "folder": str(session.folder.path),
        "head": head_id,
        "stays": stays,
        "incarnation": incarnation,
        "nodes": [request.name for request in session.plan.requests],
        "accelerator_types": [r.body["accelerator_type"] for r in session.plan.requests],
        "provider": {
            "kind": provider.kind,
            "project": provider.project,
            "options": {k: v for k, v in provider.options.items() if k != "rules"},
        },
        "requested": False,  # whether a create call may have been made
        "supervisor": registry.this_process(),
        "created": time.time(),
        "cost_per_hour_usd": session.plan.cost_per_hour_usd,
    }


def with_secrets(request: NodeRequest, head: Head, incarnation: str) -> NodeRequest:
    """The request with what is known only now; the token goes nowhere else."""
    join = {"gcs_address": head.gcs_address, "incarnation": incarnation}
    metadata = {
        **request.body["metadata"],
        "launcher-join": json.dumps(join),
        "launcher-token": head.token,
    }
    return replace(request, body={**request.body, "metadata": metadata})


def create_slice(session: Session, request: NodeRequest, pause: Callable[[float], None]) -> None:
    provider = session.provider.get()
    pause(0)
    registry.update(session.spec.name, requested=True)
    session.folder.event("provisioning", node=request.name, endpoint=provider.endpoint)
    node = provider.create(request, session.spec.cluster.provision_timeout, pause)
    session.tell("ready", f"{request.node_id} is READY on {provider.title}", node=node.name)


def join_new(
    session: Session, head: Head, incarnation: str, creating: Sequence[Future[None]]
) -> Mapping[Place, cluster.Host]:
    """Join while the slices are being created; a failure to create one ends the wait at once.

    The time to join counts from the moment at which the last slice is READY.
    """
    clock = Deadline(session.spec.cluster.join_timeout)
    look = Deadline(LOOK_SECONDS)

    def check(seconds: float) -> None:
        session.interrupt.pause(seconds)
        for future in creating:
            if future.done():
                future.result()
        if look.passed and all(future.done() for future in creating):
            look.restart()
            require_alive(session)

    def is_late() -> bool:
        if not all(future.done() for future in creating):
            clock.restart()
        return clock.passed

    def console(node: str, worker: int) -> str:
        name = next(r.name for r in session.plan.requests if r.node_id == node)
        return session.provider.get().console(name, worker)

    session.screen.wait("Ray head starting")
    coordinator.wait_for_head(head, HEAD_SECONDS, check)
    try:
        return join(session, head, incarnation, is_late, console, check)
    except ClusterError:
        if all(future.done() for future in creating):
            require_alive(session)  # hosts that are missing or died may have gone with their slice
        raise


def require_alive(session: Session) -> None:
    """Raises SliceLost if a node that was READY is no more; one that is being repaired may be."""
    for request in session.plan.requests:
        node = session.provider.get().get(request.name)
        if node is None or node.state in (NodeState.DEAD, NodeState.DELETING):
            state = node.raw_state if node else "GONE"
            raise SliceLost(f"{request.node_id} is {state} before its hosts have joined")


class Deadline:
    """A time limit in seconds, counted anew from the last `restart`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._end = time.monotonic() + self._seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end


def join(
    session: Session,
    head: Head,
    incarnation: str,
    is_late: Callable[[], bool],
    console: Callable[[str, int], str],
    pause: Callable[[float], None],
) -> Mapping[Place, cluster.Host]:
    total = session.plan.hosts
    seen: list[Place] = []

    def joined(place: Place) -> None:
        seen.append(place)
        session.folder.event("joined", slice=place[0], host=place[1])
        session.screen.wait(f"hosts joining: {len(seen)} of {total}")

    session.screen.wait(f"hosts joining: 0 of {total}")
    cluster.connect(head)
    session.interrupt.install()  # Ray has put handlers of its own in place of ours
    nodes = [request.node_id for request in session.plan.requests]
    per_slice = session.spec.cluster.accelerator.hosts
    hosts = cluster.gather(nodes, incarnation, per_slice, is_late, pause, console, joined)
    session.screen.wait("")
    session.tell("cluster", f"{len(hosts)} of {total} hosts joined")
    return hosts


def release(session: Session) -> None:
    """Take everything away and say so. A clean-up that fails does not hide how the run ended."""
    name, started = session.spec.name, time.monotonic()
    session.screen.wait(f"deleting {name}")
    try:
        remove(session)
    except LauncherError as error:
        session.tell("left", f"{error}; try again with `python -m launcher gc --yes`")
    else:
        seconds = round(time.monotonic() - started, 3)
        session.tell("released", f"nothing is left of {name}", seconds=seconds)
    session.screen.wait("")


def leave(session: Session) -> None:
    """Leave the Ray cluster; Ray takes our signal handlers away with its own."""
    record = registry.record(session.spec.name)
    cluster.disconnect(coordinator.find_head(record["head"]) if record else None)
    session.interrupt.install()


def remove(session: Session) -> None:
    leave(session)
    if record := registry.record(session.spec.name):
        take_down(record, session.provider.get)


def take_down(record: Mapping[str, Any], provider: Callable[[], Provider]) -> None:
    """Remove all that a record names. The record is dropped only when everything is gone.

    Raises ProvisioningError if a node could not be deleted; the record stays for the next try.
    """
    with ThreadPoolExecutor(8) as pool:
        nodes = record["nodes"] if record["requested"] else []
        deletions = [pool.submit(lambda n: provider().delete(n, DELETE_SECONDS), n) for n in nodes]
        coordinator.release_head(record["head"], but_for=record["name"])
    errors = [error for deletion in deletions if (error := deletion.exception())]
    if errors:
        raise ProvisioningError("; ".join(dict.fromkeys(map(str, errors))))
    registry.forget(record["name"])
