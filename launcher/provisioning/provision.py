"""Acquires what a plan asks for and hands over joined hosts; takes everything away again.

Nothing waits that need not: the head starts, the emulator or the API is reached, the slices are
created and Ray is imported at the same time. What is about to exist is on record first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from launcher import cluster, coordinator, registry
from launcher.coordinator import Head
from launcher.errors import ClusterError, Interrupted, LauncherError, Refused, Superseded
from launcher.hosts.member import Place
from launcher.plan import Choice
from launcher.providers import KINDS, Pause
from launcher.providers.states import State
from launcher.provisioning import removal, slices
from launcher.session import Session
from launcher.words import counted

SHARED_HEAD = "shared"  # of everything that is `up` on this machine
OWN = ("here", "vm")  # coordinators that make slices; elsewhere a job finds them in its cluster
HEAD_SECONDS = 60.0
JOIN_AGAIN_SECONDS = 15.0  # for hosts that were up already
LEAVE = "once more to leave at once; then `python -m launcher gc --yes` deletes what is left"
FIND_SECONDS = 45.0  # for them to find a new head: Ray starts again on each of them
LOOK_SECONDS = 5.0  # between looks at the nodes while their hosts join
NOTHING: Mapping[Place, cluster.Host] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Joined:
    """Hosts that are part of the cluster, and the choice that gave them.

    `states` tells the states of their slices where no API of ours knows them.
    """

    head: Head
    choice: Choice
    hosts: Mapping[Place, cluster.Host]
    states: Callable[[], Mapping[int, str]] | None = None

    @property
    def announced(self) -> bool:
        """Whether the slices were asked for together, so that they say how many they are."""
        together = any(len(request.nodes) > 1 for request in self.choice.requests)
        return together and self.states is None


def acquired(session: Session, *, stays: bool) -> contextlib.AbstractContextManager[Joined]:
    """Slices and cluster for the time of the block: made, or borrowed of a cluster that exists."""
    if session.spec.cluster.coordinator in OWN:
        return made(session, stays=stays)
    from launcher.remote import borrow

    return borrow.acquired(session)


@contextlib.contextmanager
def made(session: Session, *, stays: bool) -> Iterator[Joined]:
    """Slices and cluster for the time of the block; afterwards both are gone, unless `stays`.

    A failure or an interrupt takes them away too. A run whose slices were `up` before leaves them,
    and so does one whose supervisor has been superseded.
    Raises ConfigError, and touches nothing, when something else is up under this name.
    """
    record = registry.record(session.spec.name)
    choice = slices.recorded_choice(session, record) if record else None
    stays = stays or bool(record and record["stays"])
    was_up = bool(record and record["stays"])
    try:
        joined = adopt(session, record, choice, stays) if record and choice else None
        if joined is None:
            was_up = False  # what is made now was not there before
            joined = create(session, stays=stays)
        if stays:  # from now on: what dies on the way up is for gc to remove
            registry.update(session.spec.name, stays=True)
        yield joined
    except Superseded:
        leave(session)
        raise
    except BaseException:
        if not was_up:
            release(session)
        raise
    leave(session)
    if not stays:
        release(session)


def adopt(
    session: Session, record: Mapping[str, Any], choice: Choice, stays: bool
) -> Joined | None:
    """The hosts that are up under this name, or None when they must be made anew."""
    head = coordinator.find_head(record["head"])
    if head is None or not coordinator.is_up(head):
        return None
    renewed = {"supervisor": registry.this_process(), "folder": str(session.folder.path)}
    registry.write_record(session.spec.name, {**record, **renewed, "stays": stays})
    hosts = join_again(session, head, choice, JOIN_AGAIN_SECONDS)
    if hosts is None:
        leave(session)
        return None
    session.tell("adopted", f"{counted(len(hosts), 'host')} up already")
    return Joined(head, choice, hosts)


def join_again(
    session: Session,
    head: Head,
    choice: Choice,
    seconds: float,
    part: Collection[int] | None = None,
) -> Mapping[Place, cluster.Host] | None:
    """The hosts of slices that are up, as a driver of the head; None when they cannot be used."""
    record, late = registry.record(session.spec.name) or {}, Deadline(seconds)
    try:
        slices.drop_others(session, choice)
        cluster.connect(head)
        session.interrupt.install()  # Ray has put handlers of its own in place of ours
        return join(
            session,
            choice,
            expected(choice, record["incarnations"], part),
            lambda: late.passed,
            lambda *_: "",
            session.interrupt.pause,
        )
    except Interrupted:
        raise
    except LauncherError as error:
        session.tell("adopt", f"not usable as it is, made anew: {str(error).splitlines()[0]}")
        return None


def renew_head(session: Session, head: Head) -> None:
    """Another Ray head in the place of one that is gone, at the same address."""
    session.tell("head", f"the Ray head at {head.gcs_address} is gone: another takes its place")
    coordinator.renew_head(head, HEAD_SECONDS, session.interrupt.pause)


def join_head(
    session: Session, joined: Joined, broken: Collection[int]
) -> tuple[Joined, Collection[int]]:
    """The same slices with another Ray head, and which of them are broken: all, if the hosts of
    those that were not do not find it.
    """
    head, count = joined.head, len(joined.choice.nodes)
    leave(session)
    kept = set(range(count)) - set(broken)
    hosts = join_again(session, head, joined.choice, FIND_SECONDS, kept)
    if hosts is None:
        return joined, range(count)
    return dataclasses.replace(joined, hosts=hosts), broken


def create(session: Session, *, stays: bool) -> Joined:
    """Everything new; leftovers of the same name are removed first."""
    remove(session)
    head_id = SHARED_HEAD if stays else f"run-{session.spec.name}"
    registry.write_record(session.spec.name, slices.intent(session, head_id, False))
    choose_address = KINDS[session.spec.provider.kind].head_address
    head = coordinator.start_head(head_id, choose_address, dashboard=stays)
    session.tell("head", f"Ray head at {head.gcs_address}")
    session.provider.open()
    return anew(session, head)


def renew(
    session: Session,
    joined: Joined,
    broken: Collection[int],
    grown: Mapping[Place, cluster.Host] = NOTHING,
) -> Joined:
    """The same cluster with new slices in the place of the broken ones.

    The healthy ones stay, as long as the same choice can be had; else all go where it can. Those
    that are lost meanwhile are replaced in their turn. An elastic run may have other slices that
    have `grown`, and goes on with fewer.
    """
    if session.spec.mode.is_elastic:
        from launcher.provisioning import elastic

        return elastic.renew(session, joined, broken, grown)
    choice, whole = joined.choice, len(joined.choice.requests)
    if whole > 1 and len(broken) < whole:
        try:
            renewed = replaced(session, joined, broken)
            lost = slices.gone(session, choice, range(whole))
            return renew(session, renewed, lost) if lost else renewed
        except Refused as refused:
            session.tell("again", f"all slices are asked for anew: {refused}")
    slices.give_up(session, choice)
    return anew(session, joined.head)


def replaced(session: Session, joined: Joined, broken: Collection[int]) -> Joined:
    head, fill = joined.head, filler(joined.head)
    join_them = joiner(session, head, joined, broken)
    healthy = {place: host for place, host in joined.hosts.items() if place[0] not in broken}
    return salvaged(
        session,
        head,
        lambda: slices.replace(session, joined.choice, broken, fill, join_them),
        lambda _: healthy,
    )


def anew(session: Session, head: Head) -> Joined:
    """Slices in a cluster that has none."""
    fill, join_them = filler(head), joiner(session, head)
    return salvaged(
        session, head, lambda: slices.acquire(session, fill, join_them), lambda _: NOTHING
    )


def salvaged(
    session: Session,
    head: Head,
    ask: Callable[[], Joined],
    kept: Callable[[Choice], Mapping[Place, cluster.Host]],
) -> Joined:
    """What `ask` gives. Where slices went while they were made, they alone are made again.

    `kept` are the hosts of slices that were there before, by their places in the choice.
    """
    try:
        return ask()
    except slices.PartlyLost as partly:
        session.tell("again", str(partly))
        choice = partly.choice
        try:
            new = expected(choice, dict.fromkeys(choice.nodes, partly.incarnation), partly.kept)
            came = join_new(session, head, choice, new, ())
        except Refused:
            slices.give_up(session, choice)
            return anew(session, head)
        hosts = dict(sorted({**kept(choice), **came}.items()))
        return renew(session, Joined(head, choice, hosts), partly.lost)


def filler(head: Head) -> slices.Fill:
    """Puts into a node what its hosts need to join; the token goes nowhere else."""

    def fill(node: dict[str, Any], incarnation: str) -> None:
        join = {"gcs_address": head.gcs_address, "incarnation": incarnation}
        node["metadata"] |= {"launcher-join": json.dumps(join), "launcher-token": head.token}

    return fill


def joiner(
    session: Session, head: Head, kept: Joined | None = None, broken: Collection[int] = ()
) -> slices.Meanwhile[Joined]:
    """Has the hosts of new slices join, beside those of slices that are kept."""

    def meanwhile(choice: Choice, incarnation: str, creating: slices.Creating) -> Joined:
        incarnations = dict.fromkeys(choice.nodes, incarnation)
        new = expected(choice, incarnations, broken if kept else None)
        hosts = dict(join_new(session, head, choice, new, creating))
        if kept:
            hosts |= {place: h for place, h in kept.hosts.items() if place[0] not in broken}
        return Joined(head, choice, dict(sorted(hosts.items())))

    return meanwhile


def expected(
    choice: Choice, incarnations: Mapping[str, str], part: Collection[int] | None = None
) -> dict[int, cluster.Expected]:
    """The slices of a choice whose hosts are to join, by slice number."""
    return {
        index: cluster.Expected(node, incarnations[node])
        for index, node in enumerate(choice.nodes)
        if part is None or index in part
    }


def join_new(
    session: Session,
    head: Head,
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    creating: slices.Creating,
) -> Mapping[Place, cluster.Host]:
    """Join while the slices are being created; a failure to create one ends the wait at once.

    The time to join counts from the moment at which the last slice is READY.
    """
    arrival, looks, look = Arrival(creating), 0, Deadline(LOOK_SECONDS)

    def check(seconds: float) -> None:
        nonlocal looks
        session.interrupt.pause(seconds)
        session.timeline.enter(phase_of(session, creating))
        for future in creating:
            if future.done():
                future.result()
        if look.passed and cluster.is_connected():
            look.restart()
            coordinator.require_alive(head)
        if (due := int(arrival.seconds / LOOK_SECONDS)) > looks:
            looks = due
            slices.require_alive(session, choice, new)

    def is_late() -> bool:
        return arrival.seconds > session.spec.cluster.join_timeout

    def log(node: str, worker: int) -> str:
        return console(session, choice, node, worker)

    be_driver(session, head, check)
    try:
        return join(session, choice, new, is_late, log, check)
    except ClusterError:
        if arrival.seconds:  # missing hosts may have gone with their slice
            slices.require_alive(session, choice, new)
        raise


def console(session: Session, choice: Choice, node: str, worker: int) -> str:
    """The end of a host's console log."""
    name = next(name for name in slices.node_names(choice) if name.endswith(f"/{node}"))
    return session.provider.get().console(name, worker)


class Arrival:
    """Knows since when all slices are READY; their creators' threads tell."""

    def __init__(self, creating: slices.Creating) -> None:
        self._coming = set(creating)
        self._since = time.monotonic()
        for future in creating:
            future.add_done_callback(self._note)

    def _note(self, future: Future[None]) -> None:
        self._since = time.monotonic()
        self._coming.discard(future)

    @property
    def seconds(self) -> float:
        """Since then; 0 before."""
        return 0.0 if self._coming else time.monotonic() - self._since


def be_driver(session: Session, head: Head, pause: Pause) -> None:
    """Connect to the head as soon as it is there, unless this process is connected already."""
    if cluster.is_connected():
        return
    session.screen.wait("Ray head starting")
    coordinator.wait_for_head(head, HEAD_SECONDS, pause)
    cluster.connect(head)
    session.interrupt.install()  # Ray has put handlers of its own in place of ours


def phase_of(session: Session, creating: slices.Creating) -> str:
    """What time is being spent on while slices are on their way."""
    if all(future.done() for future in creating):
        return "join" if session.timeline.phase == "join" else "boot"
    return "queue" if State.WAITING in session.states.values() else "create"


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
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    is_late: Callable[[], bool],
    console: Callable[[str, int], str],
    pause: Pause,
) -> Mapping[Place, cluster.Host]:
    total = choice.offer.accelerator.hosts * len(new)
    seen: list[Place] = []

    def joined(place: Place) -> None:
        seen.append(place)
        session.timeline.enter("join")
        session.folder.event("joined", slice=place[0], host=place[1])
        session.screen.wait(f"hosts joining: {len(seen)} of {total}")

    session.screen.wait(f"hosts joining: 0 of {total}")
    hosts = cluster.gather(
        new,
        choice.offer.accelerator.hosts,
        is_late,
        pause,
        console,
        joined,
    )
    session.screen.wait("")
    session.tell("cluster", f"{len(hosts)} of {total} hosts joined")
    return hosts


def release(session: Session) -> None:
    """Take everything away and say so. A clean-up that fails does not hide how the run ended."""
    name, started = session.spec.name, time.monotonic()
    session.screen.wait(f"deleting {name}")
    session.timeline.enter("teardown")
    try:
        remove(session, teller(session))
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


def teller(session: Session) -> Pause:
    """A pause that no signal ends; the first one makes it say what there is still to delete."""
    record = registry.record(session.spec.name) or {}
    left = [name.rpartition("/")[2] for name in record.get("resources", ())]

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        if name := session.interrupt.news():
            what = ", ".join(left) or "the Ray head"
            session.screen.phase("stopping", f"{name}: still deletes {what}; {LEAVE}")

    return pause


def remove(session: Session, pause: Pause = time.sleep) -> None:
    leave(session)
    if record := registry.record(session.spec.name):
        removal.take_down(record, session.provider.get, pause)
