"""Looks at slices that were asked for: which of them are there, come, or are gone.

Nothing is asked for here, and nothing given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launcher.errors import ProvisioningError, SliceLost
from launcher.plan import Choice
from launcher.providers.states import GONE, NODE_STATES, State, meaning
from launcher.session import Session

WAITED_FOR: Mapping[State, str] = {
    State.WAITING: "waits for capacity (cluster.queue_timeout)",
    State.PENDING: "comes up (cluster.provision_timeout)",
}


def standing(session: Session, choice: Choice) -> Sequence[State | None]:
    """The state of each request of a launcher before this one, None for what is not there; empty
    when the API cannot be asked.
    """
    try:
        found = [session.provider.get().get(request.name) for request in choice.requests]
    except ProvisioningError:
        return ()
    return [each.state if each else None for each in found]


def are_coming(states: Sequence[State | None], record: Mapping[str, Any]) -> bool:
    """Whether slices that were asked for together are waited for, or boot, and nothing runs there.

    Hosts that have not joined yet may only just have begun to boot; where the API cannot be asked,
    their slices may be anywhere on the way.
    """
    together = len(set(record["incarnations"].values())) == 1
    waited = boots(record) or any(state in WAITED_FOR for state in states)
    whole = all(state in WAITED_FOR or state is State.READY for state in states)
    return together and waited and whole and record["attempt"] is None


def boots(record: Mapping[str, Any]) -> bool:
    """Whether some of the hosts have never been in the cluster."""
    return not record.get("joined", True)


def not_usable(states: Sequence[State | None], record: Mapping[str, Any]) -> list[int]:
    """Which requests have come to nothing; also those that are not READY, if nothing runs there."""
    idle = record["attempt"] is None
    usable = (State.READY,) if idle else (State.READY, State.PENDING, State.WAITING)
    return [index for index, state in enumerate(states) if state not in usable]


def require_alive(session: Session, choice: Choice, new: Collection[int]) -> None:
    """Raises SliceLost if the node of one of these slices, which was READY, is no more."""
    for index, state in gone(session, choice, new).items():
        raise SliceLost(f"{choice.nodes[index]} is {state} before its hosts have joined")


def gone(session: Session, choice: Choice, part: Collection[int]) -> dict[int, str]:
    """Those of these slices whose nodes are no more, and their states; not those in repair."""
    lost = (State.DEAD, State.DELETING)
    return {
        index: word
        for index, word in words(session, choice).items()
        if index in part and (word == GONE or meaning(NODE_STATES, word) in lost)
    }


def words(session: Session, choice: Choice) -> dict[int, str]:
    """The API's word for the state of each slice's node; none of those it cannot be asked after."""
    found: dict[int, str] = {}
    with contextlib.suppress(ProvisioningError):
        for index, name in enumerate(choice.node_names):
            node = session.provider.get().get(name)
            found[index] = node.raw_state if node else GONE
    return found
