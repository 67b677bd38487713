"""Waits until the hosts of slices have joined the Ray cluster; the slices may still be created."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType

from launcher import cluster, coordinator, registry
from launcher.coordinator import Head, HeadLost
from launcher.errors import ClusterError, SliceLost
from launcher.head_watch import renewing
from launcher.hosts import tpu_env
from launcher.hosts.member import Place
from launcher.plan import Choice
from launcher.providers import Pause
from launcher.providers.states import State
from launcher.provisioning import looks, slices
from launcher.provisioning.requests import Request
from launcher.ranks import megascale
from launcher.session import Session

HEAD_SECONDS = 60.0
FIND_SECONDS = 45.0  # for hosts to find a new head: Ray starts again on each of them
HEAD_LOOK_SECONDS = 1.0
LOOK_SECONDS = 5.0  # between looks at the nodes while their hosts join
NONE: Mapping[int, cluster.Expected] = MappingProxyType({})


def expected(
    choice: Choice, incarnations: Mapping[str, str], part: Collection[int] | None = None
) -> dict[int, cluster.Expected]:
    """The slices of a choice whose hosts are to join, by slice number."""
    says = [words for request in choice.requests for words in said(request)]
    return {
        index: cluster.Expected(node, incarnations[node], says[index])
        for index, node in enumerate(choice.nodes)
        if part is None or index in part
    }


def said(request: Request) -> Iterator[Mapping[str, str]]:
    """What the hosts of each of its nodes have to say of the number of slices, and of which theirs
    is: those of a queued resource of several as Google has it, others what the request tells.
    """
    count = len(request.nodes)
    for index in range(count):
        if count > 1:
            yield {megascale.COUNT: str(count), megascale.INDEX: str(index)}
        else:
            yield tpu_env.parse(request.node["metadata"].get(tpu_env.SLICES, ""))


def join_new(
    session: Session,
    head: Head,
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    creating: slices.Creating,
    kept: Mapping[int, cluster.Expected] = NONE,
    patience: float | None = None,
) -> Mapping[Place, cluster.Host]:
    """Join while the slices are being created; a failure to create one ends the wait at once.

    The time to join, `cluster.join_timeout`, counts from the moment at which the last slice is
    READY. A head that dies meanwhile is replaced: then the hosts of slices that are `kept` are to
    join again as well, and are among the result. All do so by themselves. With a `patience`, in
    seconds, those that come within that time, or soon after a new head, are the result: none is
    missed.
    """
    while True:
        try:
            return join_once(session, head, choice, new, creating, patience)
        except HeadLost as lost:
            if coordinator.given_head():
                raise
            session.setback(str(lost))
            renew_head(session, head, str(lost))
            cluster.disconnect(head)
            session.interrupt.install()  # Ray takes our handlers away with its own
            new = {**new, **kept}
            patience = patience and FIND_SECONDS


def renew_head(session: Session, head: Head, lost: str) -> None:
    """Another Ray head in the place of one that is lost, at the same address."""
    session.tell("head", f"{lost}: another takes its place")
    coordinator.renew_head(head, HEAD_SECONDS, session.interrupt.pause)


def join_once(
    session: Session,
    head: Head,
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    creating: slices.Creating,
    patience: float | None,
) -> Mapping[Place, cluster.Host]:
    """As `join_new`, with one head. Raises HeadLost."""
    arrival = Arrival(creating)
    partly = patience is not None
    check = checker(session, choice, NONE if partly else new, creating, arrival)

    def is_late() -> bool:
        return arrival.seconds > (patience or session.spec.cluster.join_timeout)

    def log(node: str, worker: int) -> str:
        return console(session, choice, node, worker)

    def watchful(seconds: float) -> None:
        require_head()
        check(seconds)

    try:
        await_head(session, head, check)
        with renewing(head, HEAD_LOOK_SECONDS) as require_head:
            be_driver(session, head)
            return join(session, choice, new, is_late, log, watchful, partly=partly)
    except HeadLost:
        raise
    except ClusterError as error:
        coordinator.require_alive(head)
        if arrival.seconds:  # missing hosts may have gone with their slice
            looks.require_alive(session, choice, new)
        refuse_bad_hosts(session, error)
        raise


def refuse_bad_hosts(session: Session, error: ClusterError) -> None:
    """Raises SliceLost, once in a row, where hosts are missing that another slice may have."""
    if not isinstance(error, cluster.HostsMissing):
        return
    if session.arrivals.missed(others=error.others):
        raise SliceLost(f"{error}\n  other hosts join: new ones in their place") from error


def checker(
    session: Session,
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    creating: slices.Creating,
    arrival: Arrival,
) -> Pause:
    """A pause that raises what a creation has ended in, and now and then looks at the nodes."""
    taken = 0

    def check(seconds: float) -> None:
        nonlocal taken
        session.interrupt.pause(seconds)
        session.timeline.enter(phase_of(session, creating))
        for future in creating:
            if future.done():
                future.result()
        if (due := int(arrival.seconds / LOOK_SECONDS)) > taken:
            taken = due
            looks.require_alive(session, choice, new)

    return check


def console(session: Session, choice: Choice, node: str, worker: int) -> str:
    """The end of a host's console log."""
    name = next(name for name in choice.node_names if name.endswith(f"/{node}"))
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


def await_head(session: Session, head: Head, pause: Pause) -> None:
    """Until the head has started, unless this process is connected to it already."""
    if not cluster.is_connected():
        session.screen.wait("Ray head starting")
        coordinator.wait_for_head(head, HEAD_SECONDS, pause)


def be_driver(session: Session, head: Head) -> None:
    """Connect to the head, unless this process is connected already."""
    if not cluster.is_connected():
        cluster.connect(head)
        session.interrupt.install()  # Ray has put handlers of its own in place of ours


def phase_of(session: Session, creating: slices.Creating) -> str:
    """What time is being spent on while slices are on their way."""
    if all(future.done() for future in creating):
        return "join" if session.timeline.phase == "join" else "boot"
    return "queue" if State.WAITING in session.states.values() else "create"


def join(
    session: Session,
    choice: Choice,
    new: Mapping[int, cluster.Expected],
    is_late: Callable[[], bool],
    console: Callable[[str, int], str],
    pause: Pause,
    *,
    partly: bool,
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
        partly=partly,
    )
    if len(hosts) == total:
        session.arrivals.joined()
    if not partly:
        registry.update(session.spec.name, joined=time.time())
    session.screen.wait("")
    session.tell("cluster", f"{len(hosts)} of {total} hosts joined")
    return hosts
