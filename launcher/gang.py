"""One gang: a process on every host or chip; the first failure stops all.

Output, metrics and exits come over one TCP connection that each agent opens to this process. The
connection breaks when a host dies; a host that freezes falls silent. Both end the gang.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from launcher.errors import ClusterError

SILENCE_SECONDS = 30.0  # an agent sends a heartbeat every second
CONNECT_SECONDS = 60.0
KILL_SECONDS = 15.0  # beyond the grace, for SIGKILL to be confirmed
Place = tuple[int, int]  # slice, worker id


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """A process by its place; prints as on every output line."""

    slice: int
    host: int
    index: int = 0
    single: bool = field(default=True, compare=False)  # the only process of its host

    def __str__(self) -> str:
        return f"s{self.slice} h{self.host}" + ("" if self.single else f" p{self.index}")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code, or minus the signal; None when its host was lost."""

    rank: Rank
    code: int | None
    reason: str
    time: float
    collateral: bool = False


class Sink(Protocol):
    """Where a gang's events go, as they happen."""

    def output(self, rank: Rank, chunk: bytes) -> None: ...

    def metrics(self, rank: Rank, line: str) -> None: ...

    def ended(self, ending: Ending) -> None: ...


class Gang:
    """A running attempt, as a context manager that leaves no process behind."""

    def __init__(self, address: str, hosts: Collection[Place], ranks: Sequence[Rank]) -> None:
        self.hosts = hosts
        self.ranks = ranks
        self.key = secrets.token_hex(16)
        self.server = socket.create_server((address, 0), backlog=len(hosts) + 8)
        self.events: queue.Queue[tuple[Place, dict[str, Any], bytes]] = queue.Queue()
        self.links: dict[Place, socket.socket] = {}
        self.heard: dict[Place, float] = {}
        self.gone: set[Place] = set()
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
        with link, link.makefile("rb") as frames:
            hello = read_frame(frames)
            if not hello or not hmac.compare_digest(str(hello[0].get("key")), self.key):
                return
            place = (hello[0]["host"][0], hello[0]["host"][1])
            self.links[place] = link
            while frame := read_frame(frames):
                self.events.put((place, *frame))
        self.events.put((place, {"kind": "lost", "time": time.time()}, b""))

    def await_links(self) -> None:
        """Until every agent has connected, so that an order to stop reaches all of them."""
        self.heard = dict.fromkeys(self.hosts, time.monotonic())
        deadline = time.monotonic() + CONNECT_SECONDS
        while absent := set(self.hosts) - self.links.keys():
            if time.monotonic() > deadline:
                places = ", ".join(f"s{s} h{h}" for s, h in sorted(absent))
                raise ClusterError(f"{places} cannot reach this machine at {self.callback}")
            time.sleep(0.005)

    def follow(self, sink: Sink, pause: Callable[[float], None]) -> list[Ending]:
        """Every ending, in the order of their arrival, up to the first failure or the last end."""
        endings: list[Ending] = []
        open_ranks = set(self.ranks)
        while open_ranks:
            for ending in self._next(sink, open_ranks):
                open_ranks.discard(ending.rank)
                endings.append(ending)
                sink.ended(ending)
            if any(ending.code != 0 for ending in endings):
                break
            pause(0)
        return endings

    def stop(self, sink: Sink, grace: float, left: Iterable[Rank]) -> list[Ending]:
        """End what still runs; return only when every living host has confirmed it.

        What ends after this moment is collateral: it says nothing of the cause.
        """
        stopped_at = time.time()
        endings: list[Ending] = []
        open_ranks = set(left)
        for place in set(self.hosts) - self.gone:
            self._order(place, {"kind": "stop", "grace": grace})
        deadline = time.monotonic() + grace + KILL_SECONDS
        while set(self.hosts) - self.gone and time.monotonic() < deadline:
            for ending in self._next(sink, open_ranks):
                open_ranks.discard(ending.rank)
                late = ending.time > stopped_at
                endings.append(dataclasses.replace(ending, collateral=late))
                sink.ended(endings[-1])
        return endings

    def close(self) -> None:
        self.server.close()
        for link in self.links.values():
            link.close()

    def _order(self, place: Place, order: dict[str, Any]) -> None:
        try:
            self.links[place].sendall(json.dumps(order).encode() + b"\n")
        except (KeyError, OSError):
            self.gone.add(place)

    def _next(self, sink: Sink, open_ranks: set[Rank]) -> Iterator[Ending]:
        """Handle the next event, or the silence of a host; yield the endings that it means."""
        try:
            place, frame, payload = self.events.get(timeout=0.1)
        except queue.Empty:
            yield from self._silent(open_ranks)
            return
        self.heard[place] = time.monotonic()
        rank = next(
            (
                r
                for r in self.ranks
                if (r.slice, r.host) == place and r.index == frame.get("process", r.index)
            ),
            None,
        )
        match frame["kind"]:
            case "output" if rank:
                sink.output(rank, payload)
            case "metrics" if rank:
                sink.metrics(rank, frame["line"])
            case "exit" if rank:
                yield Ending(rank, frame["code"], describe(frame["code"]), frame["time"])
            case "gone":
                self.gone.add(place)
            case "lost":
                yield from self._lose(place, "the host's connection broke", open_ranks)

    def _silent(self, open_ranks: set[Rank]) -> Iterator[Ending]:
        now = time.monotonic()
        for place, last in self.heard.items():
            if now - last > SILENCE_SECONDS and place not in self.gone:
                yield from self._lose(
                    place, f"the host was silent for {now - last:.0f} s", open_ranks
                )

    def _lose(self, place: Place, reason: str, open_ranks: set[Rank]) -> Iterator[Ending]:
        self.gone.add(place)
        for rank in sorted(open_ranks):
            if (rank.slice, rank.host) == place:
                yield Ending(rank, None, reason, time.time())


def read_frame(frames: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next frame and its payload; None at the end or when the other side speaks otherwise."""
    try:
        line = frames.readline(2**20)
        frame = json.loads(line) if line else None
        if not isinstance(frame, dict):
            return None
        return frame, frames.read(frame.get("size", 0))
    except (OSError, ValueError):
        return None


def describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"
