"""The states of nodes and queued resources, by what they mean to a run."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.StrEnum):
    """`WAITING` has no capacity yet; `PENDING` becomes `READY` by itself; `DEAD` never does, though
    the name and the quota stay taken until it is deleted; `DELETING` ends in nothing at all.
    """

    WAITING = enum.auto()
    PENDING = enum.auto()
    READY = enum.auto()
    DEAD = enum.auto()
    DELETING = enum.auto()


GONE = "GONE"
"""The launcher's own word for the state of a node or queued resource that the API knows no more."""

NODE_STATES: Mapping[str, State] = {
    "CREATING": State.PENDING,
    "STARTING": State.PENDING,
    "RESTARTING": State.PENDING,
    "REIMAGING": State.PENDING,
    "REPAIRING": State.PENDING,
    "UNHIDING": State.PENDING,
    "READY": State.READY,
    "PREEMPTED": State.DEAD,
    "TERMINATED": State.DEAD,
    "STOPPED": State.DEAD,
    "STOPPING": State.DEAD,
    "HIDING": State.DEAD,
    "HIDDEN": State.DEAD,
    "DELETING": State.DELETING,
}
QUEUED_STATES: Mapping[str, State] = {
    "CREATING": State.WAITING,
    "ACCEPTED": State.WAITING,
    "WAITING_FOR_RESOURCES": State.WAITING,
    "PROVISIONING": State.PENDING,
    "ACTIVE": State.READY,
    "SUSPENDING": State.DEAD,
    "SUSPENDED": State.DEAD,
    "FAILED": State.DEAD,
    "DELETING": State.DELETING,
}


def meaning(table: Mapping[str, State], word: str) -> State:
    """A state that the table does not know (UNKNOWN, or one of tomorrow) is waited for."""
    return table.get(word, State.PENDING)
