"""One gang: a process on every host or chip; the first failure stops all.

Output, metrics and exits come over one TCP connection that each agent opens to this process. The
connection breaks when a host dies; a host that freezes falls silent. Both end the gang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

from launcher.errors import ClusterError
from launcher.member import Ending, Member, Place, describe

SILENCE_SECONDS = 30.0  # an agent sends a heartbeat every second
CONNECT_SECONDS = 60.0
KILL_SECONDS = 15.0  # beyond the grace, for SIGKILL to be confirmed
# Frames that wait to be handled; beyond that the connection slows the writer down.
BACKLOG = 256
LEFT_EARLY = 124  # the exit code of timeout(1)

Frame = tuple[Place, dict[str, Any], bytes]


class Sink(Protocol):
    """Where a gang's events go, as they happen."""

    def output(self, member: Member, chunk: bytes) -> None: ...

    def metrics(self, member: Member, line: str) -> None: ...

    def ended(self, ending: Ending) -> None: ...


class Gang:
    """The supervisor's side of a running attempt. `close` lets go of every connection."""

    def __init__(
        self,
        address: str,
        hosts: Collection[Place],
        members: Sequence[Member],
        straggler_timeout: float | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.hosts = hosts
        self.members = {(m.place, m.index): m for m in members}
        self.key = secrets.token_hex(16)
        self.server = socket.create_server((address, 0), backlog=len(hosts) + 8)
        self.frames: queue.Queue[Frame] = queue.Queue(BACKLOG)
        self.links: dict[Place, socket.socket] = {}
        self.heard: dict[Place, float] = {}
        self.straggler_timeout = straggler_timeout
        self.silence = silence
        self.gone: set[Place] = set()
        self.ordered = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def callback(self) -> str:
        address, port = self.server.getsockname()
        return f"{address}:{port}"

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(link,), daemon=True).start()

    def _read(self, link: socket.socket) -> None:
        """Turn one agent's frames into events; a stranger without the key is hung up on."""
        with link, link.makefile("rb") as stream:
            hello = read_frame(stream)
            if not hello or not hmac.compare_digest(str(hello[0].get("key")), self.key):
                return
            place = (hello[0]["host"][0], hello[0]["host"][1])
            self.links[place] = link
            while frame := read_frame(stream):
                self.heard[place] = math.inf  # it is not silent while we are slow to take its frame
                self.frames.put((place, *frame))
                self.heard[place] = time.monotonic()
        self.frames.put((place, {"kind": "lost", "time": time.time()}, b""))

    def await_links(self, seconds: float = CONNECT_SECONDS) -> None:
        """Until every agent has connected, so that an order to stop reaches all of them."""
        deadline = time.monotonic() + seconds
        while absent := set(self.hosts) - self.links.keys():
            if time.monotonic() > deadline:
                places = ", ".join(f"s{s} h{h}" for s, h in sorted(absent))
                raise ClusterError(f"{places} cannot reach this machine at {self.callback}")
            time.sleep(0.005)

    def follow(self, sink: Sink, pause: Callable[[float], None]) -> list[Ending]:
        """Every ending, in the order of their arrival, up to the first failure or the last end."""
        endings: list[Ending] = []
        running = set(self.members.values())
        while running:
            for ending in self._next(sink, running):
                running.discard(ending.member)
                endings.append(ending)
                sink.ended(ending)
            if any(ending.code != 0 for ending in endings):
                break
            if running and endings and self._is_overdue(endings[0]):
                endings[0] = left_early(endings[0], running)
                break
            pause(0)
        return endings

    def _is_overdue(self, first: Ending) -> bool:
        """Whether the others still run so long after the first has ended that they must hang."""
        limit = self.straggler_timeout
        return limit is not None and time.time() - first.time > limit

    def stop(self, sink: Sink, grace: float, left: Iterable[Member]) -> list[Ending]:
        """End what still runs; wait until every living host has confirmed it.

        What ends after this moment is collateral: it says nothing of the cause. A host that does
        not confirm in time counts as lost.
        """
        stopped_at = time.time()
        endings: list[Ending] = []
        running = set(left)
        if self.ordered:
            with contextlib.suppress(ClusterError):
                self.await_links(seconds=2)
        for place in set(self.hosts) - self.gone:
            self._order(place, {"kind": "stop", "grace": grace})
        deadline = time.monotonic() + grace + KILL_SECONDS
        while set(self.hosts) - self.gone and time.monotonic() < deadline:
            endings += self._next(sink, running - {ending.member for ending in endings})
        silent = running - {ending.member for ending in endings}
        endings += [Ending(m, None, "its host did not confirm", time.time()) for m in silent]
        endings = [dataclasses.replace(e, collateral=e.time > stopped_at) for e in endings]
        for ending in endings:
            sink.ended(ending)
        return endings

    def close(self) -> None:
        """End the threads and connections of this gang."""
        for link in (self.server, *self.links.values()):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        with contextlib.suppress(queue.Empty):  # a reader may be waiting for room
            while True:
                self.frames.get_nowait()

    def _order(self, place: Place, order: dict[str, Any]) -> None:
        try:
            self.links[place].sendall(json.dumps(order).encode() + b"\n")
        except (KeyError, OSError):
            self.gone.add(place)

    def _next(self, sink: Sink, running: set[Member]) -> Iterator[Ending]:
        """Handle the next frame, if there is one soon; yield the endings that come of it."""
        with contextlib.suppress(queue.Empty):
            yield from self._handle(sink, running, *self.frames.get(timeout=0.1))
        for place in self._silent():
            yield from self._lose(place, f"its host was silent for {self.silence:.0f} s", running)

    def _handle(
        self, sink: Sink, running: set[Member], place: Place, frame: dict[str, Any], payload: bytes
    ) -> Iterator[Ending]:
        member = self.members.get((place, frame.get("process", 0)))
        match frame["kind"]:
            case "output" if member:
                sink.output(member, payload)
            case "metrics" if member:
                sink.metrics(member, frame["line"])
            case "exit" if member:
                yield Ending(member, frame["code"], describe(frame["code"]), frame["time"])
            case "gone":
                self.gone.add(place)
            case "lost" if place not in self.gone:
                yield from self._lose(place, "its host's connection broke", running)

    def _silent(self) -> list[Place]:
        limit = time.monotonic() - self.silence
        return [p for p, heard in self.heard.items() if heard < limit and p not in self.gone]

    def _lose(self, place: Place, reason: str, running: set[Member]) -> Iterator[Ending]:
        self.gone.add(place)
        for member in sorted(running):
            if member.place == place:
                yield Ending(member, None, reason, time.time())


def left_early(ending: Ending, running: Collection[Member]) -> Ending:
    """What ended well alone, while its peers wait for it in vain, has failed them."""
    others = ", ".join(map(str, sorted(running)))
    reason = f"ended with exit code 0 while {others} went on (retry.straggler_timeout)"
    return dataclasses.replace(ending, code=LEFT_EARLY, reason=reason)


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next frame and its payload; None at the end or when the other side speaks otherwise."""
    try:
        line = stream.readline(2**20)
        frame = json.loads(line) if line else None
        if not isinstance(frame, dict):
            return None
        return frame, stream.read(frame.get("size", 0))
    except (OSError, ValueError):
        return None
