"""One gang: a process on every host or chip; all start or none, and the first failure stops all.

Output, metrics and exits come over one TCP connection that each agent opens to this process. The
connection breaks when a host dies; a host that freezes falls silent. Both end the gang.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from launcher.cluster import Host, Place
from launcher.errors import ClusterError
from launcher.plan import Process

SILENCE_SECONDS = 30.0  # an agent sends a heartbeat every second
START_SECONDS = 60.0
KILL_SECONDS = 15.0  # beyond the grace, for SIGKILL to be confirmed
CHUNK_BYTES = 8 * 2**20


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


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is new in each attempt, beside the plan's processes."""

    number: int
    code: str  # digest of the packed working directory
    env: Mapping[str, str]
    grace: float


class Gang:
    """A running attempt, as a context manager that leaves no process behind."""

    def __init__(self, address: str, hosts: Mapping[Place, Host], ranks: Sequence[Rank]) -> None:
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

    def start(self, orders: Mapping[Place, dict[str, Any]]) -> None:
        import ray

        now = time.monotonic()
        self.heard = dict.fromkeys(self.hosts, now)
        calls = [self.hosts[place].agent.start.remote(order) for place, order in orders.items()]
        ray.get(calls, timeout=START_SECONDS)
        self.await_links()

    def await_links(self) -> None:
        """Until every agent has connected, so that an order to stop reaches all of them."""
        deadline = time.monotonic() + START_SECONDS
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
    from signal import Signals

    return f"killed by {Signals(-code).name}"


def ship(hosts: Mapping[Place, Host], digest: str, chunks: Callable[[], Iterable[bytes]]) -> None:
    """Put the code on every host that has not got it. `chunks` gives the archive anew each time."""
    import ray

    has = ray.get([host.agent.has_code.remote(digest) for host in hosts.values()])
    targets = [host.agent for host, there in zip(hosts.values(), has, strict=True) if not there]
    if not targets:
        return
    pending: Any = None
    for pending, following in pairs(chunks()):
        chunk = ray.put(pending)
        ray.get([agent.receive_code.remote(digest, chunk, following is None) for agent in targets])


def pairs(items: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """Each item with the one after it; None after the last."""
    iterator = iter(items)
    current = next(iterator, b"")
    for following in iterator:
        yield current, following
        current = following
    yield current, None


def run(
    address: str,
    hosts: Mapping[Place, Host],
    processes: Sequence[Process],
    attempt: Attempt,
    sink: Sink,
    pause: Callable[[float], None],
) -> list[Ending]:
    """Run one attempt to its end. The endings are complete: one for each process.

    Whatever happens, `Interrupted` included, no process is left when this returns or raises.
    """
    ranks = [rank_of(process, processes) for process in processes]
    gang = Gang(address, hosts, ranks)
    endings: list[Ending] = []
    try:
        gang.start(make_orders(gang, hosts, processes, attempt))
        endings += gang.follow(sink, pause)
    finally:
        left = set(ranks) - {ending.rank for ending in endings}
        endings += gang.stop(sink, attempt.grace, left)
        gang.close()
    return endings


def rank_of(process: Process, processes: Sequence[Process]) -> Rank:
    single = sum(other.place == process.place for other in processes) == 1
    return Rank(process.slice, process.host, process.index, single)


def make_orders(
    gang: Gang, hosts: Mapping[Place, Host], processes: Sequence[Process], attempt: Attempt
) -> dict[Place, dict[str, Any]]:
    """What each agent is to start: the plan's processes with this attempt's rendezvous."""
    import ray

    calls = {place: host.agent.prepare.remote(attempt.code) for place, host in hosts.items()}
    prepared = dict(zip(calls, ray.get(list(calls.values()), timeout=START_SECONDS), strict=True))
    if bare := [place for place, answer in prepared.items() if not answer["code"]]:
        raise ClusterError(f"the code did not reach {', '.join(f's{s} h{h}' for s, h in bare)}")
    meeting = rendezvous(hosts, prepared[min(hosts)]["port"])
    return {
        place: {
            "callback": gang.callback,
            "key": gang.key,
            "host": list(place),
            "code": attempt.code,
            "processes": [
                {
                    "process": process.index,
                    "argv": list(process.argv),
                    "env": {**meeting[place], **process.env, **attempt.env},
                }
                for process in processes
                if process.place == place
            ],
        }
        for place in hosts
    }


def rendezvous(hosts: Mapping[Place, Host], port: int) -> dict[Place, dict[str, str]]:
    """How the processes find each other: what a plain `jax.distributed.initialize()` reads.

    The MEGASCALE_* keys are always set, empty for one slice: JAX asks a metadata server for those
    that are absent.
    """
    slices = sorted({slice_ for slice_, _ in hosts})
    many = len(slices) > 1
    first = hosts[min(hosts)].address
    return {
        (slice_, worker): {
            "TPU_WORKER_HOSTNAMES": ",".join(
                h.address for h in hosts.values() if h.slice == slice_
            ),
            "JAX_COORDINATOR_PORT": str(port),
            "MEGASCALE_COORDINATOR_ADDRESS": first if many else "",
            "MEGASCALE_NUM_SLICES": str(len(slices)) if many else "",
            "MEGASCALE_SLICE_ID": str(slice_) if many else "",
        }
        for slice_, worker in hosts
    }
