"""Changes the number of slices of an elastic run: what is held is kept, the rest asked for.

Slices are named after the widest choice of the same offer, and numbered anew, from 0, among those
that the run has: which of them are there says nothing of their numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from launcher.cluster import Host
from launcher.errors import Refused
from launcher.hosts.member import Place
from launcher.plan import Choice, part_of
from launcher.provisioning import looks, on_record, provision, slices, unwanted
from launcher.provisioning.provision import Joined
from launcher.session import Session

Held = Mapping[str, Mapping[int, Host]]
"""Hosts that have joined, by the node of their slice, then by worker id."""


def renew(
    session: Session, joined: Joined, broken: Collection[int], grown: Mapping[Place, Host]
) -> Joined:
    """The run on the most slices that can be had now: with new ones in the place of the broken, and
    with those that have `grown`, by their place in the widest choice; else on fewer.

    A number that what is held suffices for is had at once; for a larger one the rest is asked for.
    What is lost meanwhile is replaced in its turn.
    """
    wide = session.plan.widest(joined.choice)
    healthy = {place: host for place, host in joined.hosts.items() if place[0] not in broken}
    held = by_node(joined.choice, healthy) | by_node(wide, grown)
    unwanted.give_up(session, joined.choice, broken)
    chain = slices.chain_of(session, list(candidates(session, wide, held)))
    try:
        found = provision.salvaged(
            session,
            joined.head,
            lambda: chain.walk(lambda choice: take(session, joined, choice, held)),
        )
    except Refused as refused:
        session.tell("again", f"all slices are asked for anew: {refused}")
        unwanted.give_up(session, wide)
        return provision.anew(session, joined.head)
    unwanted.drop_others(session, found.choice)
    if lost := looks.gone(session, found.choice, range(len(found.choice.nodes))):
        provision.lost_again(session, found.choice, lost)
        return renew(session, found, lost, {})
    return found


def by_node(choice: Choice, hosts: Mapping[Place, Host]) -> dict[str, dict[int, Host]]:
    """Of slices that are whole: hosts of others are of no use."""
    found: dict[str, dict[int, Host]] = {}
    for (slice_, worker), host in hosts.items():
        found.setdefault(choice.nodes[slice_], {})[worker] = host
    return found


def candidates(session: Session, wide: Choice, held: Collection[str]) -> Iterator[Choice]:
    """A choice for each number of slices, the largest first, of as many held ones as it takes."""
    order = sorted(wide.nodes, key=lambda node: node not in held)  # stable
    for size in session.spec.mode.sizes:
        yield part_of(session.spec, wide, order[:size])


def take(session: Session, joined: Joined, choice: Choice, held: Held) -> Joined:
    """All of a choice; what of it is held stays held when the rest is refused."""
    kept = Joined(joined.head, choice, dict(placed(choice, held)))
    lacking = [index for index, node in enumerate(choice.nodes) if node not in held]
    if not lacking:
        on_record.put(session, choice, (), "")
        return kept
    join = provision.joiner(session, joined.head, kept, lacking)
    return slices.take(session, choice, provision.filler(joined.head), join, lacking)


def placed(choice: Choice, held: Held) -> Iterator[tuple[Place, Host]]:
    """The hosts of a choice that are held, by their new places."""
    for index, node in enumerate(choice.nodes):
        for worker, host in sorted(held.get(node, {}).items()):
            yield (index, worker), replace(host, slice=index)
