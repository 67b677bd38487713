"""One gang: a process on every host or chip; the first failure stops all.

Output, metrics and exits come over one TCP connection that each agent opens to this process. The
connection breaks when a host dies; a host that freezes, or whose network does, falls silent. Both
end the gang; so does a notice that a host will go, a hang, and a wish of the launcher's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.attempts.links import Links
from launcher.errors import ClusterError, Superseded
from launcher.hosts.member import LEFT_EARLY, TAIL_BYTES, Ending, Member, Place, describe
from launcher.judging.evidence import Hang, Host, Notice, Told

SILENCE_SECONDS = 10.0  # an agent sends a heartbeat every second
CONNECT_SECONDS = 60.0
KILL_SECONDS = 15.0  # beyond the grace, for SIGKILL to be confirmed
STACKS_SECONDS = 20.0  # for the agents to say where the processes hang
KEPT_BYTES = 2**26  # after so much output of a process its host is told what it need not keep


class Sink(Protocol):
    """Where a gang's events go, as they happen."""

    def output(self, member: Member, chunk: bytes) -> None: ...

    def metrics(self, member: Member, line: str) -> None: ...

    def ended(self, ending: Ending) -> None: ...

    def noticed(self, notice: Notice) -> None: ...

    def hung(self, hang: Hang) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How an attempt ended, in the terms of `Evidence`. The endings are one for each process, none
    when it was stopped for the loss of the Ray head.
    """

    endings: tuple[Ending, ...] = ()
    hosts: tuple[Host, ...] = ()
    notices: tuple[Notice, ...] = ()
    hang: Hang | None = None
    stopped_at: float | None = None
    head_lost: str = ""
    recall: str = ""  # why the launcher itself has ended it


class Gang:
    """The supervisor's side of a running attempt. `close` lets go of every connection.

    With the `key` of an attempt that runs already, its agents can be attached to this supervisor.
    """

    def __init__(
        self,
        address: str,
        hosts: Collection[Place],
        members: Sequence[Member],
        straggler_timeout: float | None = None,
        silence: float = SILENCE_SECONDS,
        *,
        hang_timeout: float | None = None,
        key: str | None = None,
        recalled: Callable[[], str] = lambda: "",
    ) -> None:
        self.hosts = hosts
        self.recalled = recalled
        self.recall = ""
        self.members = {(m.place, m.index): m for m in members}
        self.key = key or secrets.token_hex(16)
        self.links = Links(address, self.key, len(hosts))
        self.moved = time.monotonic()  # when a process last gave output or metrics
        self.first_told: float | None = None  # when the first ending arrived
        self.straggler_timeout = straggler_timeout
        self.hang_timeout = hang_timeout
        self.silence = silence
        self.kept = KEPT_BYTES
        self.gone: set[Place] = set()
        self.reports: dict[Place, Host] = {}
        self.notices: list[Notice] = []
        self.hang: Hang | None = None
        self.stacked: set[Place] = set()  # hosts that have said where their processes hang
        self.tails: dict[Member, bytes] = {}
        self.last_metrics = ""
        self.stopped_at: float | None = None
        self.ordered = False
        self.superseded = False

    @property
    def callback(self) -> str:
        """Where the agents report, as `address:port`."""
        return self.links.callback

    def await_links(self, seconds: float = CONNECT_SECONDS) -> None:
        """Until every agent has connected, so that an order to stop reaches all of them."""
        self.links.wait_for(lambda: set(self.hosts) - self.gone, seconds)

    def close(self) -> None:
        """End the threads and connections of this gang; the agents may forget the attempt, unless
        another supervisor follows it.
        """
        for place in () if self.superseded else self.gone:
            self.links.send(place, kind="done")
        self.links.close()

    # --- the attempt ------------------------------------------------------------------------------

    def follow(self, sink: Sink, pause: Callable[[float], None]) -> list[Ending]:
        """Every ending, in the order of their arrival, up to the last or to a reason to stop all:
        a failure, a notice, a hang, a recall. Raises Superseded.
        """
        endings: list[Ending] = []
        running = set(self.members.values())
        self.moved = time.monotonic()
        while running and not self.notices and not self.hang and not self.recall:
            endings += self._take(sink, running)
            if any(ending.code != 0 for ending in endings):
                break
            if running and self._is_overdue():
                endings[0] = left_early(endings[0], running)
                break
            if running and self._stands_still():
                endings += self._note_hang(sink, running)
            pause(0)
            self.recall = self.recalled() if running else ""
        return endings

    def _take(self, sink: Sink, running: set[Member]) -> list[Ending]:
        """Handle the next frame, if there is one soon; what ended by it runs no more."""
        return self._tell(sink, running, self._next(sink, running))

    def _tell(self, sink: Sink, running: set[Member], new: Iterable[Ending]) -> list[Ending]:
        endings = list(new)
        if endings and self.first_told is None:
            self.first_told = time.monotonic()
        for ending in endings:
            running.discard(ending.member)
            sink.ended(ending)
        return endings

    def _is_overdue(self) -> bool:
        """Whether the others still run so long after the first has ended that they must hang.

        By when it was told: it may have ended long before this supervisor attached.
        """
        limit, first = self.straggler_timeout, self.first_told
        return limit is not None and first is not None and time.monotonic() - first > limit

    def _stands_still(self) -> bool:
        limit = self.hang_timeout
        return limit is not None and time.monotonic() - self.moved > limit

    def _note_hang(self, sink: Sink, running: set[Member]) -> list[Ending]:
        """Have the agents add the processes' stacks to their output, and wait for that."""
        since = time.time() - (time.monotonic() - self.moved)
        self.hang = Hang(since, tuple(sorted(running)), step_of(self.last_metrics))
        sink.hung(self.hang)
        self.stacked.clear()
        for place in self._reachable():
            self._order(place, kind="stacks")
        endings: list[Ending] = []
        deadline = time.monotonic() + STACKS_SECONDS
        while self._reachable() - self.stacked and time.monotonic() < deadline:
            endings += self._take(sink, running)
        return endings

    def stop(
        self, sink: Sink, grace: float, left: Iterable[Member], *, hurried: bool = False
    ) -> list[Ending]:
        """End what still runs; wait until every living host has confirmed it.

        `hurried` ends sooner what only waits, as for a peer that has died. What ends by this order
        is collateral: it says nothing of the cause. A host that does not confirm in time counts as
        lost. Does nothing when nothing was started, or the attempt is another supervisor's.
        """
        if self.superseded or not self.ordered:
            return []
        self.stopped_at = time.time()
        endings: list[Ending] = []
        running = set(left)
        with contextlib.suppress(ClusterError):
            self.await_links(seconds=2)
        for place in self.hosts:  # a silent one may wake up
            self._order(place, kind="stop", grace=grace, hurried=hurried)
        deadline = time.monotonic() + grace + KILL_SECONDS
        while self._reachable() and time.monotonic() < deadline:
            endings += self._take(sink, running)
        for frame in iter(lambda: self.links.next_frame(seconds=0), None):
            endings += self._tell(sink, running, self._handle(sink, running, *frame))
        for place in self._reachable():
            lost = self._lose(place, "its host did not confirm", running, silent_since=deadline)
            endings += self._tell(sink, running, lost)
        gone = [self._ending(m, None, "its host is gone") for m in sorted(running)]
        return endings + self._tell(sink, running, gone)

    def report(self, endings: Iterable[Ending]) -> Report:
        return Report(
            endings=tuple(endings),
            hosts=tuple(self.reports[place] for place in sorted(self.reports)),
            notices=tuple(self.notices),
            hang=self.hang,
            stopped_at=self.stopped_at,
            recall=self.recall,
        )

    # --- orders and frames ------------------------------------------------------------------------

    def _reachable(self) -> set[Place]:
        return set(self.hosts) - self.gone

    def _order(self, place: Place, **order: Any) -> None:
        if not self.links.send(place, **order):
            self.gone.add(place)

    def _next(self, sink: Sink, running: set[Member]) -> Iterator[Ending]:
        if frame := self.links.next_frame():
            yield from self._handle(sink, running, *frame)
        for place, since in self.links.silent(self.silence, self._reachable()).items():
            reason = f"its host was silent for {self.silence:g} s"
            yield from self._lose(place, reason, running, silent_since=since)

    def _handle(
        self, sink: Sink, running: set[Member], place: Place, frame: dict[str, Any], payload: bytes
    ) -> Iterator[Ending]:
        member = self.members.get((place, frame.get("process", 0)))
        match frame["kind"]:
            case "output" if member:
                self.moved = time.monotonic()
                self.tails[member] = (self.tails.get(member, b"") + payload)[-TAIL_BYTES:]
                sink.output(member, payload)
                self._acknowledge(member, frame["offset"], len(payload))
            case "metrics" if member:
                self.moved = time.monotonic()
                self.last_metrics = payload.decode(errors="replace")
                sink.metrics(member, self.last_metrics)
            case "exit" if member in running:
                self.tails[member] = payload
                yield self._ending(member, frame["code"], frame["why"], frame)
            case "notice":
                self._take_notice(sink, place, frame)
            case "stacks":
                self.stacked.add(place)
            case "gone":
                self._confirm(place, frame)
            case "replaced":
                raise self.supersede()
            case "lost" if place not in self.gone:
                reason = "its host's connection broke"
                yield from self._lose(place, reason, running, broke_at=frame["time"])
            case "lost" if place in self.reports and self.reports[place].alive:
                # It went right after its processes.
                self.reports[place] = Host(place, alive=False, broke_at=frame["time"])

    def _acknowledge(self, member: Member, offset: int, size: int) -> None:
        """Now and then, that the sink has the output: its host need not keep it."""
        if (offset + size) // self.kept > offset // self.kept:
            self.links.send(member.place, kind="kept", process=member.index, size=offset + size)

    def _take_notice(self, sink: Sink, place: Place, frame: Mapping[str, Any]) -> None:
        notice = Notice(place, Told(frame["told"]), frame["time"], frame["word"])
        if notice not in self.notices:
            self.notices.append(notice)
            sink.noticed(notice)

    def _confirm(self, place: Place, frame: Mapping[str, Any]) -> None:
        self.gone.add(place)
        self.reports[place] = Host(place, alive=True, oom_kills=frame["oom_kills"])

    def _ending(
        self, member: Member, code: int | None, reason: str, frame: Mapping[str, Any] | None = None
    ) -> Ending:
        """That of an exit frame, or of a process on a host that was lost."""
        tail = self.tails.get(member, b"").decode(errors="replace")
        reason = reason or describe(code or 0)
        if frame:
            return Ending(member, code, reason, frame["time"], frame["ordered"], tail)
        return Ending(member, code, reason, time.time(), self.stopped_at is not None, tail)

    def _lose(
        self,
        place: Place,
        reason: str,
        running: set[Member],
        *,
        silent_since: float | None = None,  # by the monotonic clock
        broke_at: float | None = None,
    ) -> Iterator[Ending]:
        if silent_since is not None:
            silent_since += time.time() - time.monotonic()
        self.gone.add(place)
        self.reports[place] = Host(place, alive=False, silent_since=silent_since, broke_at=broke_at)
        for member in sorted(running):
            if member.place == place:
                yield self._ending(member, None, reason)

    def lose(self, places: Collection[Place], reason: str, sink: Sink) -> list[Ending]:
        """The endings of hosts that have nothing of this attempt."""
        running = set(self.members.values())
        return [
            ending
            for place in sorted(places)
            for ending in self._tell(sink, running, self._lose(place, reason, running))
        ]

    def supersede(self) -> Superseded:
        """From now on nothing here is ours to end; the error to raise."""
        self.superseded = True
        return Superseded("another supervisor has taken this attempt over")


def left_early(ending: Ending, running: Collection[Member]) -> Ending:
    """What ended well alone, while its peers wait for it in vain, has failed them."""
    others = ", ".join(map(str, sorted(running)))
    reason = f"ended with exit code 0 while {others} went on (retry.straggler_timeout)"
    return dataclasses.replace(ending, code=LEFT_EARLY, reason=reason)


def step_of(line: str) -> int | None:
    """The step that a metrics line tells."""
    try:
        value = json.loads(line).get("step")
    except (ValueError, RecursionError, AttributeError):
        return None
    return value if type(value) is int else None
