"""Signs that slices or hosts went: from the API's words, notices, and hosts that fell silent. Pure.

What a sign means is one table for each source. The API's word alone is not enough (a reclaimed TPU
does not always read PREEMPTED: skypilot-org/skypilot#1468, #1500), nor is a lost connection.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.hosts.member import Place
from launcher.judging.evidence import Evidence, Told
from launcher.judging.outcome import Outcome
from launcher.providers.states import GONE

# A sign explains exits that came up to so many seconds before it: the API lags behind (by about a
# minute, skypilot-org/skypilot#849) and siblings of a lost host die before it is missed.
SOON = 60.0
# … and those that follow a notice within so many seconds.
HOLDS: Mapping[Told, float] = {Told.PREEMPTED: 300, Told.MAINTENANCE: 600, Told.SHUTDOWN: 120}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a word means; the lowest `rank` speaks when there are several.

    `orderly`: processes may have been told and have left with code 0. `firm`: it outweighs a
    program's own traceback.
    """

    outcome: Outcome
    rank: int
    phrase: str
    orderly: bool = False
    firm: bool = True


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign: of a slice, or of one host of it; the time, where it is known."""

    meaning: Meaning
    slice: int
    place: Place | None = None
    time: float | None = None
    words: str = ""

    def order(self, fell: Mapping[int, float]) -> tuple[object, ...]:
        """The sign that tells most, first; else that of the slice which `fell` first."""
        late = self.time is None
        since = fell.get(self.slice, math.inf) if self.time is None else self.time
        place = self.place or (self.slice, -1)
        return self.meaning.rank, late, since, place, self.words, self.meaning.phrase

    def __str__(self) -> str:
        subject = f"slice {self.slice}" if self.place is None else "s{} h{}".format(*self.place)
        return f"{subject} {self.meaning.phrase}{self.words}"


_TAKEN = Meaning(Outcome.PREEMPTED, 0, "is ", orderly=True)
_MAINTAINED = Meaning(Outcome.MAINTENANCE, 2, "is ", orderly=True)
_REMOVED = Meaning(Outcome.PREEMPTED, 3, "is ")
_BROKEN = Meaning(Outcome.HOST_LOST, 5, "is ")

# Other words (READY, CREATING, STARTING, RESTARTING, UNKNOWN, those of tomorrow) are no sign: hosts
# that run may well be ahead of the API.
NODE_WORDS: Mapping[str, Meaning] = {
    "PREEMPTED": _TAKEN,
    "TERMINATED": _MAINTAINED,
    GONE: _REMOVED,
    "DELETING": _REMOVED,
    "STOPPING": _REMOVED,
    "STOPPED": _REMOVED,
    "HIDING": _REMOVED,
    "HIDDEN": _REMOVED,
    "REPAIRING": _BROKEN,
    "REIMAGING": _BROKEN,
}
HEALTH_WORDS: Mapping[str, Meaning] = {
    "UNHEALTHY_MAINTENANCE": dataclasses.replace(_MAINTAINED, orderly=False, firm=False),
}
# Of all its slices alike: the word of one node tells more.
_SUSPENDED = Meaning(Outcome.PREEMPTED, 1, "is lost, its queued resource is ", orderly=True)
QUEUED_WORDS: Mapping[str, Meaning] = {
    "SUSPENDING": _SUSPENDED,
    "SUSPENDED": _SUSPENDED,
    "FAILED": dataclasses.replace(_SUSPENDED, rank=4, orderly=False),
    "DELETING": dataclasses.replace(_SUSPENDED, rank=4, orderly=False),
}
NOTICES: Mapping[Told, Meaning] = {
    Told.PREEMPTED: Meaning(Outcome.PREEMPTED, 0, "had notice that it is preempted", True),
    Told.MAINTENANCE: Meaning(Outcome.MAINTENANCE, 2, "had notice of maintenance", True, False),
    Told.SHUTDOWN: Meaning(Outcome.HOST_LOST, 5, "was told by its system to shut down", True),
}
_LOST = Meaning(Outcome.HOST_LOST, 5, "was lost: ")
# A host that only failed to confirm the launcher's own stop.
_UNCONFIRMED = Meaning(Outcome.HOST_LOST, 6, "was lost: ", firm=False)


def signs(evidence: Evidence) -> list[Sign]:
    """Every sign that can explain how this attempt ended, the most telling first."""
    first = min((e.time for e in evidence.endings if e.code != 0), default=None)
    found = [*_of_api(evidence), *_of_notices(evidence, first), *_of_hosts(evidence)]
    near = [s for s in found if first is None or s.time is None or s.time <= first + SOON]
    fell: dict[int, float] = {}
    for sign in near:
        if sign.time is not None:
            fell[sign.slice] = min(sign.time, fell.get(sign.slice, math.inf))
    return sorted(near, key=lambda sign: sign.order(fell))


def _of_api(evidence: Evidence) -> Iterator[Sign]:
    for table, words in ((NODE_WORDS, evidence.node_states), (HEALTH_WORDS, evidence.health)):
        for slice_, word in words.items():
            if meaning := table.get(word):
                yield Sign(meaning, slice_, words=word)
    for queued in evidence.queued:
        if meaning := QUEUED_WORDS.get(queued.state):
            error = f" ({queued.error})" if queued.error else ""
            for slice_ in queued.slices:
                yield Sign(meaning, slice_, words=queued.state + error)


def _of_notices(evidence: Evidence, first: float | None) -> Iterator[Sign]:
    """Notices that had come when the first process ended, and not too long before."""
    ended = first or max((e.time for e in evidence.endings), default=None)
    for notice in evidence.notices:
        if ended is None or ended - notice.time <= HOLDS[notice.told]:
            word = f" ({notice.word})" if notice.word else ""
            yield Sign(NOTICES[notice.told], notice.place[0], notice.place, notice.time, word)


def _of_hosts(evidence: Evidence) -> Iterator[Sign]:
    """Hosts that took their processes with them, or that do not answer."""
    starved = {h.place for h in evidence.hosts if h.alive and h.oom_kills}
    for ending in evidence.endings:
        place = ending.member.place
        if ending.code is None and place not in starved:
            meaning = _UNCONFIRMED if ending.collateral else _LOST
            yield Sign(meaning, place[0], place, ending.time, ending.reason)
    for host in evidence.hosts:
        if host.alive:
            continue
        if host.silent_since is not None:
            yield Sign(_LOST, host.place[0], host.place, host.silent_since, "it fell silent")
        if host.broke_at is not None:
            yield Sign(_LOST, host.place[0], host.place, host.broke_at, "its connection broke")
        if host.alive is False and host.silent_since is None and host.broke_at is None:
            yield Sign(_LOST, host.place[0], host.place, None, "it does not answer")
