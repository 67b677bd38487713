"""Starts one attempt on all hosts, or attaches to one that runs; follows it to its end.

All processes start or none: every host has the code and has ended its earlier processes before
the first order to start is given.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.attempts.gang import Gang, Report, Sink
from launcher.cluster import Host
from launcher.deadline import Deadline
from launcher.errors import ClusterError
from launcher.hosts.member import Ending, Member, Place
from launcher.plan import Process
from launcher.providers import Pause
from launcher.ranks.rendezvous import Meeting, ports_of_host

ANSWER_SECONDS = 60.0  # to prepare, to start, or to take a piece of the code
LOOK_SECONDS = 0.1  # between looks at the head, and for Ctrl-C, while answers are waited for


class HostsLost(ClusterError):
    """Hosts died, or no longer answer, while an attempt was being started."""

    def __init__(self, places: Sequence[Place], reason: str) -> None:
        self.places = places
        names = ", ".join(f"s{s} h{h}" for s, h in places)
        super().__init__(f"lost {names} while starting: {reason}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What runs on the hosts, and what ends it. Times are seconds.

    `key`: 128 random bits, by which the agents know the attempt. `reattach`: for how long the
    processes go on without a supervisor. `hang_timeout`: from the last output or metrics of any
    process to the end of all; None: never. `standby`: the hosts make the imports of the next
    attempt meanwhile. `recalled`: why the processes are to save and leave now, for another attempt;
    "" while they are not.
    """

    number: int
    key: str
    code: str  # digest of the packed working directory
    processes: Sequence[Process]
    env: Mapping[str, str]  # beside that of each process
    grace: float
    straggler_timeout: float | None
    hang_timeout: float | None = None
    reattach: float = 0.0
    standby: bool = False
    recalled: Callable[[], str] = lambda: ""


def run(
    address: str,
    hosts: Mapping[Place, Host],
    attempt: Attempt,
    sink: Sink,
    pause: Pause,
) -> Report:
    """Run one attempt to its end. The endings are complete: one for each process.

    Whatever happens, `Interrupted` included, every living host has ended its processes, or is
    among the endings as lost, when this returns or raises. Raises HostsLost before the start, and
    Superseded when another supervisor has taken the attempt over by its key: then nothing is ended.
    """
    gang = make_gang(address, hosts, attempt)

    def begin() -> list[Ending]:
        orders = make_orders(gang, hosts, attempt, pause)
        gang.ordered = True
        started = ask(hosts, lambda host: host.agent.start.remote(orders[host.place]), pause)
        if not all(started.values()):
            raise gang.supersede()
        return []

    return conduct(gang, attempt, sink, pause, begin)


def attach(
    address: str,
    hosts: Mapping[Place, Host],
    attempt: Attempt,
    offsets: Mapping[Member, Sequence[int]],
    sink: Sink,
    pause: Pause,
) -> Report:
    """Follow an attempt that another supervisor has started, or went on with, to its end, as `run`.

    `offsets` say what is known of each process: bytes of output, lines of metrics; the sink is told
    all that came later, and every exit and notice again. Lost is a host without this attempt, and
    one of its hosts that is not among these.
    """
    gang = make_gang(address, hosts, attempt)

    def begin() -> list[Ending]:
        gang.ordered = True
        orders = attach_orders(gang, hosts, offsets)
        answers = ask(hosts, lambda host: host.agent.attach.remote(orders[host.place]), pause)
        if "later" in answers.values():
            raise gang.supersede()
        strangers = {place for place, answer in answers.items() if answer != attempt.key}
        absent = {member.place for member in gang.members.values()} - hosts.keys()
        lost = gang.lose(absent, "its host does not answer", sink)
        return lost + gang.lose(strangers, "its agent knows nothing of the attempt", sink)

    return conduct(gang, attempt, sink, pause, begin)


def make_gang(address: str, hosts: Mapping[Place, Host], attempt: Attempt) -> Gang:
    return Gang(
        address,
        hosts,
        members_of(attempt.processes),
        attempt.straggler_timeout,
        hang_timeout=attempt.hang_timeout,
        key=attempt.key,
        recalled=attempt.recalled,
    )


def conduct(
    gang: Gang,
    attempt: Attempt,
    sink: Sink,
    pause: Pause,
    begin: Callable[[], list[Ending]],
) -> Report:
    """Begin, follow, stop; `begin` gives the endings that are known already."""
    endings: list[Ending] = []
    try:
        endings += begin()
        gang.await_links()
        if not endings:
            endings += gang.follow(sink, pause)
    finally:
        left = set(gang.members.values()) - {ending.member for ending in endings}
        failed = gang.hang is not None or any(ending.code != 0 for ending in endings)
        hurried = failed and not gang.notices
        endings += gang.stop(sink, attempt.grace, left, hurried=hurried)
        gang.close()
    return gang.report(endings)


def ask(hosts: Mapping[Place, Host], call: Callable[[Host], Any], pause: Pause) -> dict[Place, Any]:
    """Each host's answer to a call of its agent, all made at once. Raises HostsLost, and whatever
    `pause` raises, which is called all the while.
    """
    import ray

    calls = {call(host): place for place, host in hosts.items()}
    ready, late, deadline = list[Any](), list(calls), Deadline(ANSWER_SECONDS)
    while late and not deadline.passed:
        ready, late = ray.wait(list(calls), num_returns=len(calls), timeout=LOOK_SECONDS)
        pause(0)
    answers, lost, reason = {}, [calls[x] for x in late], f"no answer within {ANSWER_SECONDS:g} s"
    for answer in ready:
        try:
            answers[calls[answer]] = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            lost.append(calls[answer])
            reason = str(error).splitlines()[0]
        except ray.exceptions.RayTaskError as error:
            slice_, host = calls[answer]
            raise ClusterError(f"the agent on s{slice_} h{host} failed: {error.cause!r}") from error
    if lost:
        raise HostsLost(sorted(lost), reason)
    return answers


def going(hosts: Mapping[Place, Host], seconds: float) -> dict[Place, str]:
    """The hosts that have died, or had notice that they will go. What a host that does not answer
    within `seconds` is up to is not known.
    """
    import ray

    calls = {host.agent.notice.remote(): place for place, host in hosts.items()}
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=seconds)
    found: dict[Place, str] = {}
    for answer in ready:
        try:
            found[calls[answer]] = ray.get(answer)
        except ray.exceptions.RayActorError:
            found[calls[answer]] = "lost"
    return {place: word for place, word in found.items() if word}


def ship(
    hosts: Mapping[Place, Host], digest: str, chunks: Callable[[], Iterable[bytes]], pause: Pause
) -> None:
    """Put the code on every host that has not got it. `chunks` gives the archive anew each time."""
    import ray

    has = ask(hosts, lambda host: host.agent.has_code.remote(digest), pause)
    targets = {place: host for place, host in hosts.items() if not has[place]}
    if not targets:
        return
    for index, (piece, is_last) in enumerate(pieces(chunks())):
        arguments = (digest, ray.put(piece), index == 0, is_last)
        ask(targets, lambda host: host.agent.receive_code.remote(*arguments), pause)  # noqa: B023


def pieces(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each chunk, and whether it is the last one."""
    iterator = iter(chunks)
    current = next(iterator, b"")
    for following in iterator:
        yield current, False
        current = following
    yield current, True


def members_of(processes: Sequence[Process]) -> list[Member]:
    """One for each process, in their order."""
    on = Counter(process.place for process in processes)
    return [Member(p.slice, p.host, p.index, on[p.place] == 1) for p in processes]


def make_orders(
    gang: Gang, hosts: Mapping[Place, Host], attempt: Attempt, pause: Pause
) -> dict[Place, dict[str, Any]]:
    """What each agent is to start: the attempt's processes with a rendezvous of their own."""
    processes = attempt.processes
    ports = ports_of_host(max(process.index for process in processes) + 1)
    prepared = ask(
        hosts, lambda host: host.agent.prepare.remote(attempt.code, gang.key, ports), pause
    )
    require_ready(prepared)
    meeting = Meeting(
        {place: host.address for place, host in hosts.items()},
        {place: answer["ports"] for place, answer in prepared.items()},
        {place: host.node for place, host in hosts.items()},
    )
    shared = {
        "callback": gang.callback,
        "key": gang.key,
        "code": attempt.code,
        "grace": attempt.grace,
        "peers": sorted({host.address for host in hosts.values()}),
        "reattach": attempt.reattach,
        "since": time.time_ns(),
        "standby": attempt.standby,
    }
    own = {place: list[dict[str, Any]]() for place in hosts}
    for process in processes:
        env = {**meeting.env(process), **process.env, **attempt.env}
        one = {"process": process.index, "argv": list(process.argv), "env": env}
        own[process.place].append(one)
    orders = {place: {**shared, "host": list(place), "processes": own[place]} for place in hosts}
    if len(processes) > 1:
        orders[min(hosts)]["coordinator"] = meeting.coordinator
    return orders


def require_ready(prepared: Mapping[Place, Mapping[str, Any]]) -> None:
    """That each host can start, by its answer to `Agent.prepare`. Raises HostsLost for those where
    an earlier attempt lives on, and ClusterError.
    """
    if stuck := {place: answer["left"] for place, answer in prepared.items() if answer["left"]}:
        names = "; ".join(f"s{s} h{h}: {', '.join(map(str, ids))}" for (s, h), ids in stuck.items())
        raise HostsLost(sorted(stuck), f"processes of an earlier attempt do not die ({names})")
    if bare := [place for place, answer in prepared.items() if not answer["code"]]:
        raise ClusterError(f"the code did not reach {', '.join(f's{s} h{h}' for s, h in bare)}")


def attach_orders(
    gang: Gang, hosts: Mapping[Place, Host], offsets: Mapping[Member, Sequence[int]]
) -> dict[Place, dict[str, Any]]:
    """What each agent needs to know to report to this supervisor."""
    known = {place: dict[int, list[int]]() for place in hosts}
    for member, (size, lines) in offsets.items():
        if member.place in hosts:
            known[member.place][member.index] = [size, lines]
    shared = {"callback": gang.callback, "key": gang.key, "since": time.time_ns()}
    return {place: {**shared, "host": list(place), "offsets": known[place]} for place in hosts}
