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
from launcher.gang import Gang, Sink
from launcher.member import Ending, Member, Place
from launcher.plan import Process

ANSWER_SECONDS = 60.0  # to prepare, to start, or to take a piece of the code


class HostsLost(ClusterError):
    """Hosts died, or no longer answer, while an attempt was being started."""

    def __init__(self, places: Sequence[Place], reason: str) -> None:
        self.places = places
        names = ", ".join(f"s{s} h{h}" for s, h in places)
        super().__init__(f"lost {names} while starting: {reason}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is new in each attempt, beside the plan's processes."""

    number: int
    code: str  # digest of the packed working directory
    env: Mapping[str, str]
    grace: float
    straggler_timeout: float | None


def run(
    address: str,
    hosts: Mapping[Place, Host],
    processes: Sequence[Process],
    attempt: Attempt,
    sink: Sink,
    pause: Callable[[float], None],
) -> list[Ending]:
    """Run one attempt to its end. The endings are complete: one for each process.

    Whatever happens, `Interrupted` included, every living host has ended its processes, or is
    among the endings as lost, when this returns or raises. Raises HostsLost before the start.
    """
    members = [member_of(process, processes) for process in processes]
    gang = Gang(address, hosts, members, attempt.straggler_timeout)
    endings: list[Ending] = []
    try:
        orders = make_orders(gang, hosts, processes, attempt)
        gang.ordered = True
        ask(hosts, lambda host: host.agent.start.remote(orders[host.place]))
        gang.await_links()
        endings += gang.follow(sink, pause)
    finally:
        left = set(members) - {ending.member for ending in endings}
        endings += gang.stop(sink, attempt.grace, left)
        gang.close()
    return endings


def ask(hosts: Mapping[Place, Host], call: Callable[[Host], Any]) -> dict[Place, Any]:
    """Each host's answer to a call of its agent, all made at once. Raises HostsLost."""
    import ray

    calls = {call(host): place for place, host in hosts.items()}
    ready, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS)
    answers, lost, reason = {}, [calls[x] for x in late], f"no answer within {ANSWER_SECONDS:g} s"
    for answer in ready:
        try:
            answers[calls[answer]] = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            lost.append(calls[answer])
            reason = str(error).splitlines()[0]
    if lost:
        raise HostsLost(sorted(lost), reason)
    return answers


def ship(hosts: Mapping[Place, Host], digest: str, chunks: Callable[[], Iterable[bytes]]) -> None:
    """Put the code on every host that has not got it. `chunks` gives the archive anew each time."""
    import ray

    has = ask(hosts, lambda host: host.agent.has_code.remote(digest))
    targets = {place: host for place, host in hosts.items() if not has[place]}
    if not targets:
        return
    for index, (piece, is_last) in enumerate(pieces(chunks())):
        arguments = (digest, ray.put(piece), index == 0, is_last)
        ask(targets, lambda host: host.agent.receive_code.remote(*arguments))  # noqa: B023


def pieces(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each chunk, and whether it is the last one."""
    iterator = iter(chunks)
    current = next(iterator, b"")
    for following in iterator:
        yield current, False
        current = following
    yield current, True


def member_of(process: Process, processes: Sequence[Process]) -> Member:
    single = sum(other.place == process.place for other in processes) == 1
    return Member(process.slice, process.host, process.index, single)


def make_orders(
    gang: Gang, hosts: Mapping[Place, Host], processes: Sequence[Process], attempt: Attempt
) -> dict[Place, dict[str, Any]]:
    """What each agent is to start: the plan's processes with this attempt's rendezvous."""
    prepared = ask(hosts, lambda host: host.agent.prepare.remote(attempt.code))
    if bare := [place for place, answer in prepared.items() if not answer["code"]]:
        raise ClusterError(f"the code did not reach {', '.join(f's{s} h{h}' for s, h in bare)}")
    meeting = rendezvous(hosts, prepared[min(hosts)]["port"])
    return {
        place: {
            "callback": gang.callback,
            "key": gang.key,
            "host": list(place),
            "code": attempt.code,
            "grace": attempt.grace,
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
    many = len({slice_ for slice_, _ in hosts}) > 1
    return {
        (slice_, worker): {
            "TPU_WORKER_HOSTNAMES": ",".join(
                host.address for host in hosts.values() if host.slice == slice_
            ),
            "JAX_COORDINATOR_PORT": str(port),
            "MEGASCALE_COORDINATOR_ADDRESS": hosts[min(hosts)].address if many else "",
            "MEGASCALE_NUM_SLICES": str(len({s for s, _ in hosts})) if many else "",
            "MEGASCALE_SLICE_ID": str(slice_) if many else "",
        }
        for slice_, worker in hosts
    }
