"""Starts one attempt on all hosts: ships the code, arranges the rendezvous, runs the gang.

All processes start or none: every host has the code and has ended its earlier processes before
the first order to start is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.cluster import Host
from launcher.errors import ClusterError
from launcher.gang import Ending, Gang, Place, Rank, Sink
from launcher.plan import Process

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is new in each attempt, beside the plan's processes."""

    number: int
    code: str  # digest of the packed working directory
    env: Mapping[str, str]
    grace: float


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
        start(hosts, make_orders(gang, hosts, processes, attempt))
        gang.await_links()
        endings += gang.follow(sink, pause)
    finally:
        left = set(ranks) - {ending.rank for ending in endings}
        endings += gang.stop(sink, attempt.grace, left)
        gang.close()
    return endings


def start(hosts: Mapping[Place, Host], orders: Mapping[Place, dict[str, Any]]) -> None:
    import ray

    calls = [hosts[place].agent.start.remote(order) for place, order in orders.items()]
    ray.get(calls, timeout=START_SECONDS)


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
