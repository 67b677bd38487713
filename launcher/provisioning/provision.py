"""Acquires what a plan asks for and hands over joined hosts; takes everything away again.

Nothing waits that need not: the head starts, the emulator or the API is reached, the slices are
created and Ray is imported at the same time. What is about to exist is on record first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from launcher import cluster, coordinator, registry
from launcher.coordinator import Head
from launcher.errors import (
    Interrupted,
    LauncherError,
    PreemptionBudgetSpent,
    Refused,
    Superseded,
)
from launcher.hosts.member import Place
from launcher.plan import Choice
from launcher.providers import KINDS, Pause
from launcher.provisioning import joining, looks, on_record, removal, slices, unwanted
from launcher.session import Session
from launcher.words import counted

SHARED_HEAD = "shared"  # of everything that is `up` on this machine
OWN = ("here", "vm")  # coordinators that make slices; elsewhere a job finds them in its cluster
JOIN_AGAIN_SECONDS = 15.0  # for hosts that were up already
LEAVE = "once more to leave at once; then `python -m launcher gc --yes` deletes what is left"
NOTHING: Mapping[Place, cluster.Host] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Joined:
    """Hosts that are part of the cluster, and the choice that gave them.

    `states` tells the states of their slices where no API of ours knows them; `made` is when the
    last of these were made, in seconds since 1970.
    """

    head: Head
    choice: Choice
    hosts: Mapping[Place, cluster.Host]
    states: Callable[[], Mapping[int, str]] | None = None
    made: float = field(default_factory=time.time)

    @property
    def absent(self) -> frozenset[int]:
        """The slices of which hosts are missing."""
        here, whole = Counter(place[0] for place in self.hosts), self.choice.offer.accelerator.hosts
        return frozenset(i for i in range(len(self.choice.nodes)) if here[i] < whole)


def acquired(
    session: Session, *, stays: bool, partly: bool = False
) -> contextlib.AbstractContextManager[Joined]:
    """Slices and cluster for the time of the block: made, or borrowed of a cluster that exists.

    With `partly`, hosts that an earlier launcher has left are handed over though others are absent:
    what runs there may go on.
    """
    if session.spec.cluster.coordinator in OWN:
        return made(session, stays=stays, partly=partly)
    from launcher.remote import borrow

    return borrow.acquired(session)


def require_same(session: Session) -> None:
    """Raises ConfigError when something else is up under this name, or its folder is elsewhere."""
    left_choice(session)
    record = registry.record(session.spec.name)
    if record and session.spec.cluster.coordinator in OWN:
        on_record.require_same_folder(session, record)


def left_choice(session: Session) -> Choice | None:
    """What a launcher before this one has asked for under this name, if anything. Raises
    ConfigError when that is something else.
    """
    record = registry.record(session.spec.name)
    is_own = session.spec.cluster.coordinator in OWN
    return on_record.recorded_choice(session, record) if record and is_own else None


def let_go(session: Session) -> None:
    """Take away what a launcher before this one has left, unless it stays."""
    record = registry.record(session.spec.name)
    if record and not record["stays"]:
        release(session)


@contextlib.contextmanager
def made(session: Session, *, stays: bool, partly: bool) -> Iterator[Joined]:
    """Slices and cluster for the time of the block; afterwards both are gone, unless `stays`.

    A failure or an interrupt takes them away too. A run whose slices were `up` before leaves them,
    and so does one whose supervisor has been superseded.
    Raises ConfigError, and touches nothing, when something else is up under this name.
    """
    record = registry.record(session.spec.name)
    choice = on_record.recorded_choice(session, record) if record else None
    stays = stays or bool(record and record["stays"])
    was_up = bool(record and record["stays"])
    try:
        joined = adopt(session, record, choice) if record and choice else None
        if joined and joined.absent and not partly:
            joined = renew(session, joined, joined.absent)
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


def adopt(session: Session, record: Mapping[str, Any], choice: Choice) -> Joined | None:
    """The hosts that are up under this name, without those of slices that cannot be used; None when
    all must be made anew. What is only on its way up does not stay yet.
    """
    head = coordinator.find_head(record["head"])
    if head is None:
        return None
    folder = str(session.folder.path)
    registry.update(session.spec.name, supervisor=registry.this_process(), folder=folder)
    states = looks.standing(session, choice)
    coming, broken = looks.are_coming(states, record), looks.not_usable(states, record)
    if states and len(broken) == len(states) and not coming:
        session.tell("adopt", "nothing of it can be used: made anew")
        return None
    is_new = not coordinator.is_up(head)
    if is_new and not revived(session, head):
        return None
    if coming:
        return taken_up(session, record, head, choice)
    kept = set(range(len(choice.nodes))) - set(broken)
    seconds = joining.FIND_SECONDS if is_new else JOIN_AGAIN_SECONDS
    patience = None if looks.boots(record) else seconds
    hosts = join_again(session, head, choice, patience, kept)
    if not hosts:
        leave(session)
        return None
    session.tell("adopted", f"{counted(len(hosts), 'host')} up already")
    return Joined(head, choice, hosts, made=record.get("joined") or time.time())


def revived(session: Session, head: Head) -> bool:
    """Whether another head takes the place of one that died with its launcher."""
    try:
        joining.renew_head(session, head, f"the Ray head at {head.gcs_address} is gone")
    except Interrupted:
        raise
    except (LauncherError, OSError) as error:
        session.tell("adopt", f"made anew: {str(error).splitlines()[0]}")
        return False
    registry.update(session.spec.name, attempt=None)  # the agents have gone with the old one
    return True


def taken_up(
    session: Session, record: Mapping[str, Any], head: Head, choice: Choice
) -> Joined | None:
    """What an earlier launcher was waiting for; None when it cannot be had any more."""
    session.tell("adopted", f"goes on waiting for {choice.title}")
    fill, join_them = filler(head), joiner(session, head)
    try:
        unwanted.drop_others(session, choice)
        return salvaged(
            session,
            head,
            lambda: slices.take_up(session, choice, record, fill, join_them),
        )
    except Refused as refused:
        session.tell("adopt", f"made anew: {refused}")
        leave(session)
        return None


def join_again(
    session: Session,
    head: Head,
    choice: Choice,
    patience: float | None,
    part: Collection[int],
) -> Mapping[Place, cluster.Host]:
    """The hosts of slices that are up, as a driver of the head: those that come within `patience`,
    in seconds; without one all, or none.
    """
    try:
        unwanted.drop_others(session, choice)
        up = hosts_on_record(session, choice, part)
        hosts = joining.join_new(session, head, choice, up, (), patience=patience)
    except (Interrupted, PreemptionBudgetSpent):
        raise
    except LauncherError as error:
        session.tell("adopt", f"not usable as it is, made anew: {str(error).splitlines()[0]}")
        return NOTHING
    if not hosts:
        session.tell("adopt", "none of its hosts answers: made anew")
    return hosts


def join_head(session: Session, joined: Joined, broken: Collection[int]) -> Joined:
    """The same slices with another Ray head; absent are also those whose hosts do not find it."""
    leave(session)
    kept = set(range(len(joined.choice.nodes))) - set(broken)
    hosts = NOTHING
    if kept:
        hosts = join_again(session, joined.head, joined.choice, joining.FIND_SECONDS, kept)
    return dataclasses.replace(joined, hosts=hosts)


def create(session: Session, *, stays: bool) -> Joined:
    """Everything new; leftovers of the same name are removed first."""
    remove(session, session.interrupt.pause)
    head_id = SHARED_HEAD if stays else f"run-{session.spec.name}"
    registry.write_record(session.spec.name, on_record.intent(session, head_id, False))
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
    Raises Refused; the healthy ones stay, if slices are of use apart.
    """
    if session.spec.mode.is_elastic:
        from launcher.provisioning import elastic

        return elastic.renew(session, joined, broken, grown)
    choice, whole = joined.choice, len(joined.choice.requests)
    if whole > 1 and len(broken) < whole:
        try:
            renewed = replaced(session, joined, broken)
            if not (lost := looks.gone(session, choice, range(whole))):
                return renewed
            lost_again(session, choice, lost)
            return renew(session, renewed, lost)
        except Refused as refused:
            if session.apart:
                raise
            session.tell("again", f"all slices are asked for anew: {refused}")
    unwanted.give_up(session, choice)
    return anew(session, joined.head)


def lost_again(session: Session, choice: Choice, lost: Collection[int]) -> None:
    """Slices went while others were replaced. Raises PreemptionBudgetSpent."""
    names = ", ".join(choice.nodes[index] for index in sorted(lost))
    session.setback(f"lost while others were replaced: {names}")


def replaced(session: Session, joined: Joined, broken: Collection[int]) -> Joined:
    head, fill = joined.head, filler(joined.head)
    join_them = joiner(session, head, joined, broken)
    return salvaged(
        session,
        head,
        lambda: slices.replace(session, joined.choice, broken, fill, join_them),
    )


def anew(session: Session, head: Head) -> Joined:
    """Slices in a cluster that has none."""
    fill, join_them = filler(head), joiner(session, head)
    return salvaged(session, head, lambda: slices.acquire(session, fill, join_them))


def salvaged(session: Session, head: Head, ask: Callable[[], Joined]) -> Joined:
    """What `ask` gives. Where slices went while they were made, they alone are made again; the
    others stay up meanwhile, and cost: that is not done for ever.
    """
    try:
        return ask()
    except slices.PartlyLost as partly:
        session.tell("again", str(partly))
        session.setback(str(partly))
        choice = partly.choice
        left = set(range(len(choice.nodes))) - partly.lost
        try:
            new = hosts_on_record(session, choice, left)
            came = joining.join_new(session, head, choice, new, ())
        except Refused:
            if session.apart and left - partly.kept:
                unwanted.give_up(session, choice, partly.kept | partly.lost)
                raise
            unwanted.give_up(session, choice)
            return anew(session, head)
        return renew(session, Joined(head, choice, dict(sorted(came.items()))), partly.lost)


def hosts_on_record(
    session: Session, choice: Choice, part: Collection[int] | None = None
) -> Mapping[int, cluster.Expected]:
    """The slices of a choice, or some of them, with the hosts that they have had last."""
    record = registry.record(session.spec.name) or {}
    return joining.expected(choice, record["incarnations"], part)


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
        new = joining.expected(choice, incarnations, broken if kept else None)
        old = hosts_on_record(session, choice, set(range(len(choice.nodes))) - new.keys())
        hosts = {place: h for place, h in kept.hosts.items() if place[0] in old} if kept else {}
        hosts |= joining.join_new(session, head, choice, new, creating, old)
        return Joined(head, choice, dict(sorted(hosts.items())))

    return meanwhile


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
