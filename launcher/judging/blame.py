"""Which process failed of itself, when hosts and slices are there: the rest died of it. Pure.

The clock is the last thing to go by: hosts differ by a second or two, and with JAX the process that
raised ends in the same instant as its peers. The texts of their last lines come first.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from launcher.hosts.member import LEFT_EARLY, Ending, Member
from launcher.judging import signatures
from launcher.judging.evidence import Evidence
from launcher.judging.signatures import Kind, Signature

SKEW = 2.0  # seconds by which clocks of hosts may differ
# The program's own doing, whatever became of its peers.
OWN = frozenset({Kind.EXCEPTION, Kind.IMPORT_ERROR, Kind.HBM, Kind.HOST_MEMORY, Kind.NO_SPACE})
DEVICE = frozenset({Kind.DEVICE_BUSY, Kind.NO_DEVICE})
KILLED = frozenset({-9, 137})
CRASHES = frozenset({-4, -7, -8, -11, -31, 132, 135, 136, 139, 159})  # ILL BUS FPE SEGV SYS
TERMINATED = frozenset({-15, 143})
MEMORY_SYMPTOMS = frozenset({"OUT_OF_MEMORY", "LOW_MEMORY"})
NOT_STARTED = frozenset({126, 127})


@dataclass(frozen=True)
class Death:
    """An ending with what is known about it."""

    ending: Ending
    signature: Signature | None
    starved: bool  # killed for want of host memory

    @property
    def kind(self) -> Kind | None:
        return self.signature.kind if self.signature else None

    @property
    def is_own(self) -> bool:
        return self.starved or self.kind in OWN

    @property
    def is_of_peer(self) -> bool:
        """Whether its last lines say that it died of another process."""
        return self.signature is not None and self.signature.of_peer and not self.starved

    @property
    def tier(self) -> int:
        """How surely it is a cause, lowest first, among those that ended at about one time."""
        if self.is_own or self.kind in DEVICE:
            return 0
        return 1 if self.ending.code in CRASHES | NOT_STARTED | {LEFT_EARLY} else 2

    @cached_property
    def words(self) -> str:
        """The text without its numbers, to tell whether two are the same."""
        return re.sub(r"\d+", "0", self.signature.text) if self.signature else ""


def settled(evidence: Evidence) -> list[Ending]:
    """The endings by place. The launcher's own SIGTERM has victims before it, by a slow clock."""
    ordered = sorted(evidence.endings, key=lambda e: (e.member, e.time))
    stopped = evidence.stopped_at
    if stopped is None:
        return ordered
    late = {e.member for e in ordered if e.code in TERMINATED and e.time >= stopped - SKEW}
    if not any(e.code != 0 and not e.collateral and e.member not in late for e in ordered):
        return ordered
    return [dataclasses.replace(e, collateral=True) if e.member in late else e for e in ordered]


def deaths(evidence: Evidence) -> list[Death]:
    """Every process with its signature, in the order of their places."""
    return [
        Death(e, signatures.find(e.tail) if e.code != 0 else None, is_starved(evidence, e))
        for e in settled(evidence)
    ]


def is_starved(evidence: Evidence, ending: Ending) -> bool:
    """Whether the kernel killed it for want of memory: its own count, or the API's symptom."""
    slice_, worker = ending.member.place
    hosts = [h for h in evidence.hosts if h.place == ending.member.place]
    counted = any(h.oom_kills for h in hosts)
    if ending.code is None:  # the agent itself was killed, its host lives on
        return counted and any(h.alive for h in hosts)
    told = any(
        s.slice == slice_ and s.worker in (None, worker) and s.kind in MEMORY_SYMPTOMS
        for s in evidence.symptoms
    )
    killed = ending.code in KILLED and not ending.collateral
    return killed and (counted or told) and not any(h.alive is False for h in hosts)


def failures(all_: Sequence[Death]) -> list[Death]:
    """Those that ended badly, and not since the launcher stopped them."""
    bad = [d for d in all_ if d.ending.code != 0 and not d.ending.collateral]
    return [d for d in bad if d.ending.code is not None or d.starved]


def earliest(candidates: Sequence[Death]) -> Death | None:
    """The cause among these: of those that ended first, as far as clocks tell, the surest."""
    first = min((d.ending.time for d in candidates), default=0.0)
    near = [d for d in candidates if d.ending.time <= first + SKEW]
    return min(near, key=lambda d: (d.tier, d.ending.time, d.ending.member), default=None)


def failed_alone(all_: Sequence[Death]) -> list[Death]:
    """The failures that do not speak of a peer."""
    return [d for d in failures(all_) if not d.is_of_peer]


def cause(all_: Sequence[Death]) -> Death | None:
    """The process that failed of itself; None when all of them speak of others.

    One that raised and then waited for its peers, until the launcher's stop ended it, is told by
    its traceback.
    """
    stuck = [d for d in all_ if d.ending.collateral and d.ending.code != 0 and d.is_own]
    return earliest(failed_alone(all_)) or earliest(stuck)


def named(all_: Sequence[Death]) -> tuple[Death | None, bool]:
    """The process that its peers name, if any, and whether it left before them (else: it is late).

    JAX numbers its processes in the order of slice, host and process.
    """
    told = [d.signature for d in all_ if d.signature and d.is_of_peer]
    left = next((s.left for s in told if s.left is not None), None)
    if left is not None and left < len(all_):
        return all_[left], True
    if gone := [d for d in all_ if d.ending.code == 0 and not d.ending.collateral]:
        return min(gone, key=lambda d: (d.ending.time, d.ending.member)), True
    missed = {n for s in told for n in s.missed if n < len(all_)}
    late = [all_[n] for n in sorted(missed) if not all_[n].is_of_peer]
    return (late[0] if late else None), False


def quiet(all_: Sequence[Death]) -> list[Member]:
    """Those that went on until the launcher stopped them, and speak of nobody."""
    return [d.ending.member for d in all_ if d.ending.collateral and not d.signature]


def agrees(all_: Sequence[Death]) -> bool:
    """Whether all processes failed of themselves, several of them and all in the same words."""
    failed = failures(all_)
    same = len({d.words for d in failed}) == 1
    lost = any(d.ending.code is None for d in all_)
    return len(failed) > 1 and same and not lost and all(d.is_own for d in failed)
