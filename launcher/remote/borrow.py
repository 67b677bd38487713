"""Whole slices of a Ray cluster that exists, KubeRay's included: found, held, given back.

Ray's labels tell which hosts make a slice (https://docs.ray.io/en/latest/ray-core/scheduling/
labels.html; `ray._private.accelerators.tpu` sets them). A slice is held in two ways: the agent of
each host takes its chips as a resource, so that Ray gives them to nobody else, and it has a name
that exists once in the cluster, so that of two runs of ours one finds out at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher import cluster, coordinator, raynode
from launcher.accelerators import Accelerator
from launcher.cluster import POD, SLICE, WORKER
from launcher.deadline import Deadline
from launcher.errors import ClusterError, Reason, Refused
from launcher.hosts.agent import Agent
from launcher.hosts.member import Place
from launcher.plan import Choice
from launcher.providers.states import GONE
from launcher.provisioning.provision import Joined
from launcher.session import Session

HOLD_SECONDS = 30.0  # for the agents of a free slice to start; in a busy one they would wait
AGAIN_SECONDS = 0.5


@dataclass(slots=True)
class Found:
    """A slice in the cluster: its pod type, and the chips of each worker that is there."""

    name: str
    pod: str
    chips: dict[int, float] = field(default_factory=dict)
    incarnation: str = ""  # of a slice that a launcher brought up

    def is_whole(self, accelerator: Accelerator) -> bool:
        return sorted(self.chips) == list(range(accelerator.hosts))

    def fits(self, accelerator: Accelerator) -> bool:
        """Ray's name of tpu7x is v7x."""
        return self.pod == accelerator.accelerator_type.replace("tpu7x", "v7x")


def find(nodes: Sequence[Mapping[str, Any]]) -> list[Found]:
    """Every slice among the nodes, in the form of `ray.nodes()`, by name."""
    found: dict[str, Found] = {}
    for node in nodes:
        labels = node.get("Labels") or {}
        if node["Alive"] and SLICE in labels and str(labels.get(WORKER, "")).isdecimal():
            name = labels[SLICE]
            slice_ = found.setdefault(name, Found(name, labels.get(POD, "")))
            slice_.chips[int(labels[WORKER])] = node["Resources"].get("TPU", 0.0)
            slice_.incarnation = labels.get(raynode.INCARNATION_LABEL, "")
    return [found[name] for name in sorted(found)]


def summary(found: Sequence[Found], why: Mapping[str, str]) -> str:
    """What there is, for an error."""
    if not found:
        return "the cluster has no TPU slice that Ray has labelled"
    lines = [
        f"  {s.name}: {s.pod or 'of unknown type'}, hosts {sorted(s.chips)}{note(why.get(s.name))}"
        for s in found
    ]
    return "\n".join(["the cluster has:", *lines])


def note(why: str | None) -> str:
    return f"; {why}" if why else ""


@contextlib.contextmanager
def acquired(session: Session) -> Iterator[Joined]:
    """Free slices of the first choice that has enough, for the time of the block.

    While all are busy this waits, up to cluster.queue_timeout; with host0, whose hosts are joining,
    up to cluster.join_timeout. Raises ClusterError, saying what there is, when the cluster has
    none; a later attempt waits for it to come back.
    """
    head = coordinator.given_head()
    assert head is not None  # the job has described it
    cluster.connect(head)
    session.interrupt.install()  # Ray has put handlers of its own in place of ours
    try:
        joined = wait_for_slices(session, head)
        session.tell("cluster", f"holds {', '.join(slice_names(joined))}")
        yield joined
    finally:
        cluster.disconnect(head)  # ends the agents, and with them the hold
        session.interrupt.install()


def slice_names(joined: Joined) -> list[str]:
    return list(dict.fromkeys(host.node for host in joined.hosts.values()))


def wait_for_slices(session: Session, head: coordinator.Head) -> Joined:
    limits, joining = session.spec.cluster, session.spec.cluster.coordinator == "host0"
    late = Deadline(limits.join_timeout if joining else limits.queue_timeout)
    patient = joining or session.folder.attempt > session.folder.first_attempt
    while True:
        found, why = find(alive_nodes()), dict[str, str]()
        for choice in session.plan.choices:
            if joined := hold(session, head, choice, found, why):
                return joined
        text = f"{wanted(session)}: none is free; {summary(found, why)}"
        if late.passed or not (patient or can_wait(session, found)):
            raise ClusterError(text)
        session.screen.wait("hosts joining" if joining else "slices of the cluster are busy")
        session.interrupt.pause(AGAIN_SECONDS)


def wanted(session: Session) -> str:
    names = {c.offer.accelerator.accelerator_type: None for c in session.plan.choices}
    counts = " or ".join(map(str, session.spec.mode.sizes))
    return f"{counts} x {' or '.join(names)}"


def can_wait(session: Session, found: Sequence[Found]) -> bool:
    """Whether there are enough whole slices of some choice, though they are busy."""
    least = session.spec.mode.sizes[-1]
    accelerators = [choice.offer.accelerator for choice in session.plan.choices]
    return any(len(fitting(found, one)) >= least for one in accelerators)


def fitting(found: Sequence[Found], accelerator: Accelerator) -> list[Found]:
    return [slice_ for slice_ in found if slice_.fits(accelerator) and slice_.is_whole(accelerator)]


def alive_nodes() -> list[Mapping[str, Any]]:
    import ray

    return list(ray.nodes())


def hold(
    session: Session,
    head: coordinator.Head,
    choice: Choice,
    found: Sequence[Found],
    why: dict[str, str],
) -> Joined | None:
    """The first free slices that are enough for a choice; None, and none is held, if there are
    too few. `why` is told why a slice was not taken.
    """
    count = len(choice.nodes)
    hosts: dict[Place, cluster.Host] = {}
    names: list[str] = []
    for slice_ in fitting(found, choice.offer.accelerator):
        try:
            taken = take(session, slice_)
        except Refused as refused:
            why[slice_.name] = str(refused)
            continue
        for worker, host in taken.items():
            hosts[len(names), worker] = host
        names.append(slice_.name)
        if len(names) == count:
            return Joined(head, choice, renumbered(hosts), lambda: states(names, choice))
    let_go(host.agent for host in hosts.values())
    return None


def renumbered(hosts: Mapping[Place, cluster.Host]) -> dict[Place, cluster.Host]:
    """With the numbers of this run's slices in place of those by which the hosts were asked."""
    return {place: replace(host, slice=place[0]) for place, host in hosts.items()}


def take(session: Session, slice_: Found) -> dict[int, cluster.Host]:
    """The hosts of a slice with an agent on each. Raises Refused when somebody has it."""
    require_idle(slice_)
    agents: dict[Place, Any] = {}
    try:
        for worker in sorted(slice_.chips):
            agents[0, worker] = ask(slice_, worker)
        late = Deadline(HOLD_SECONDS)
        expected = {0: cluster.Expected(slice_.name, slice_.incarnation)}
        pause = session.interrupt.pause
        answers = cluster.answered(
            agents, expected, lambda: late.passed, pause, lambda *_: "", lambda _: None
        )
    except BaseException as error:
        let_go(agents.values())
        if isinstance(error, ValueError):
            raise Refused(Reason.TAKEN, "another run of ours holds it") from error
        if isinstance(error, ClusterError) and late.passed:
            raise Refused(Reason.TAKEN, "its chips are in use") from error
        raise
    return {worker: host for (_, worker), host in answers.items()}


def require_idle(slice_: Found) -> None:
    """Of a slice that a launcher brought up: its own run may be going on, which takes no chips."""
    import ray

    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        name = f"{slice_.name}-w0-{slice_.incarnation}"
        agent = ray.get_actor(name, namespace=cluster.NAMESPACE)
        if ray.get(agent.busy.remote(), timeout=HOLD_SECONDS):
            raise Refused(Reason.TAKEN, "the run that brought it up uses it")


def ask(slice_: Found, worker: int) -> Any:
    """An agent that lives as long as this job. Raises ValueError when its name is taken."""
    import ray

    return (
        ray.remote(Agent)
        .options(
            name=f"{slice_.name}-w{worker}",
            num_cpus=0,
            max_restarts=0,
            resources={"TPU": slice_.chips[worker]} if slice_.chips[worker] else None,
            label_selector={SLICE: slice_.name, WORKER: str(worker)},
        )
        .remote()
    )


def let_go(agents: Any) -> None:
    import ray

    for agent in agents:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(agent)


def states(names: Sequence[str], choice: Choice) -> dict[int, str]:
    """In the API's words, from what Ray knows: READY while every host is alive."""
    by_name = {slice_.name: slice_ for slice_ in find(alive_nodes())}
    accelerator = choice.offer.accelerator
    whole = (name in by_name and by_name[name].is_whole(accelerator) for name in names)
    return {index: "READY" if ok else GONE for index, ok in enumerate(whole)}
