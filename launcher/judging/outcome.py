"""What may become of an attempt, and what follows from each outcome: one table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Outcome(enum.StrEnum):
    """What became of one attempt."""

    SUCCEEDED = enum.auto()
    PREEMPTED = enum.auto()  # a slice was taken back, or deleted by hand
    MAINTENANCE = enum.auto()
    HOST_LOST = enum.auto()  # a host died or froze while its node is said to be there
    HEAD_LOST = enum.auto()  # the Ray head died, which none of the user's processes is part of
    BAD_HOST = enum.auto()  # the same machine failed before, or its TPU does not open
    LEFTOVER = enum.auto()  # a process of an earlier attempt or tenant holds the TPU
    STOCKOUT = enum.auto()
    REFUSED = enum.auto()  # quota, permission, or a request that cannot be met
    OUT_OF_MEMORY = enum.auto()  # of the host, or of the TPU (HBM)
    NO_SPACE = enum.auto()
    NETWORK = enum.auto()  # every host is there, yet they lost or never found each other
    HANG = enum.auto()
    RESIZED = enum.auto()  # told to leave, for another attempt on more slices
    STOPPED = enum.auto()  # told to leave by a launcher that has died since, or as none was there
    WORKLOAD_FAILED = enum.auto()
    CANCELLED = enum.auto()


class Budget(enum.StrEnum):
    """Which limit of `retry` an attempt is charged to."""

    NONE = enum.auto()
    PREEMPTIONS = enum.auto()
    FAILURES = enum.auto()


class Repair(enum.StrEnum):
    """What must be made anew before the next attempt."""

    NOTHING = enum.auto()
    PROCESSES = enum.auto()  # the hosts are fine: start again in place
    SLICES = enum.auto()  # those that the verdict names
    ZONE = enum.auto()  # ask elsewhere


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows from an outcome; `again`: whether another attempt can end better."""

    budget: Budget
    repair: Repair
    again: bool = True


POLICIES: Mapping[Outcome, Policy] = {
    Outcome.SUCCEEDED: Policy(Budget.NONE, Repair.NOTHING, again=False),
    Outcome.PREEMPTED: Policy(Budget.PREEMPTIONS, Repair.SLICES),
    Outcome.MAINTENANCE: Policy(Budget.PREEMPTIONS, Repair.SLICES),
    Outcome.HOST_LOST: Policy(Budget.PREEMPTIONS, Repair.SLICES),
    Outcome.HEAD_LOST: Policy(Budget.PREEMPTIONS, Repair.PROCESSES),
    Outcome.BAD_HOST: Policy(Budget.PREEMPTIONS, Repair.SLICES),
    Outcome.LEFTOVER: Policy(Budget.PREEMPTIONS, Repair.PROCESSES),
    Outcome.STOCKOUT: Policy(Budget.NONE, Repair.ZONE),
    Outcome.REFUSED: Policy(Budget.NONE, Repair.NOTHING, again=False),
    Outcome.OUT_OF_MEMORY: Policy(Budget.FAILURES, Repair.PROCESSES),
    Outcome.NO_SPACE: Policy(Budget.FAILURES, Repair.PROCESSES),
    Outcome.NETWORK: Policy(Budget.FAILURES, Repair.PROCESSES),
    Outcome.HANG: Policy(Budget.FAILURES, Repair.PROCESSES),
    Outcome.RESIZED: Policy(Budget.NONE, Repair.NOTHING),
    Outcome.STOPPED: Policy(Budget.NONE, Repair.PROCESSES),
    Outcome.WORKLOAD_FAILED: Policy(Budget.FAILURES, Repair.PROCESSES),
    Outcome.CANCELLED: Policy(Budget.NONE, Repair.NOTHING, again=False),
}
