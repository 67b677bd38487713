"""All that is known when an attempt has ended: plain data, exact as JSON both ways (`codec`).

Times are seconds since the epoch. Those of processes and notices come from the hosts' clocks, which
differ by up to a second or two; the rest is from this machine's.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import Reason
from launcher.hosts.member import Ending, Member, Place


class Told(enum.StrEnum):
    """Who gave notice that a host will go, in the words of the metadata server."""

    PREEMPTED = "preempted"  # instance/preempted is TRUE
    MAINTENANCE = "maintenance-event"  # anything but NONE
    SHUTDOWN = "SIGTERM"  # the host's own init ends its processes


@dataclass(frozen=True, slots=True)
class Notice:
    """A host was told that it will go. `word` is the metadata server's value."""

    place: Place
    told: Told
    time: float
    word: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of a host besides its processes.

    `alive`: it answered after the attempt's end (None: nobody asked). `oom_kills`: by how much the
    kernel's count of processes killed for memory (memory.events, /proc/vmstat) rose meanwhile.
    """

    place: Place
    alive: bool | None = None
    silent_since: float | None = None
    broke_at: float | None = None
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Symptom:
    """One of a node's `symptoms`, of this attempt's time. `kind` is the API's SymptomType."""

    slice: int
    kind: str
    worker: int | None = None
    details: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued resource: its state word, the slices that are its nodes, what it failed with."""

    state: str
    slices: tuple[int, ...]
    code: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing moved: since when, which processes had fallen silent, and the last step seen."""

    since: float
    members: tuple[Member, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user stopped the run, by a signal or by the verb `cancel`."""

    by: str
    time: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Slices were not to be had, so that nothing was started."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier attempt in short. `created` tells the machine from one that took its place.

    `time`: when it ended; `unsure`: news that came too late might have changed the verdict.
    """

    attempt: int
    outcome: str
    place: Place | None = None
    created: str = ""
    code: int = 0
    step: int | None = None
    time: float = 0.0
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known when an attempt has ended.

    `node_states` maps a slice to the API's word for the state of its node, `GONE` when it is no
    more; a slice that nobody could ask after is absent. `health` holds the API's health words,
    `created` the nodes' times of creation. `stopped_at`: when the launcher ordered the processes
    to stop; `recall`: why, if it was of its own accord; `window`: how many seconds it then waited
    for news. `head_lost`: how the Ray head was found to be gone.
    """

    endings: Sequence[Ending] = ()
    node_states: Mapping[int, str] = dataclasses.field(default_factory=dict)
    health: Mapping[int, str] = dataclasses.field(default_factory=dict)
    created: Mapping[int, str] = dataclasses.field(default_factory=dict)
    symptoms: Sequence[Symptom] = ()
    queued: Sequence[Queued] = ()
    hosts: Sequence[Host] = ()
    notices: Sequence[Notice] = ()
    hang: Hang | None = None
    recall: str = ""
    cancelled: Cancelled | None = None
    refused: Refusal | None = None
    stopped_at: float | None = None
    head_lost: str = ""
    window: float = 0.0
    step: int | None = None
    earlier: Sequence[Earlier] = ()

    def __post_init__(self) -> None:
        for field in ("endings", "symptoms", "queued", "hosts", "notices", "earlier"):
            object.__setattr__(self, field, tuple(getattr(self, field)))

    @property
    def moment(self) -> float:
        """When the attempt ended, as soon as that was known here."""
        times = [ending.time for ending in self.endings if ending.code != 0]
        return self.stopped_at or min(times, default=0.0)
