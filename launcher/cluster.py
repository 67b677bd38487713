"""Slices → a Ray cluster of which every expected host is a part.

Nodes are counted by (slice, worker id), never by number. An agent is asked of Ray for each place
before its host exists; its first answer shows that the host has joined, so that no time passes
between a join and the use of the host.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher import coordinator, raynode
from launcher import hosts as package
from launcher.coordinator import Head
from launcher.errors import ClusterError, SliceLost
from launcher.hosts import agent, tpu_env
from launcher.hosts.member import Place
from launcher.words import counted

NAMESPACE = "launcher"
# Ray's labels (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html).
SLICE, WORKER, POD = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-pod-type"
KILL_SECONDS = 2.0  # for an agent that is not needed to be gone
# What Ray ships to the hosts by value: they have no launcher installed.
ON_HOSTS = tuple(
    importlib.import_module(f"{package.__name__}.{module.name}")
    for module in pkgutil.iter_modules(package.__path__)
)


class HostsMissing(ClusterError):
    """Hosts have not joined in time; `others` of the same slices have."""

    def __init__(self, message: str, *, others: bool) -> None:
        super().__init__(message)
        self.others = others


@dataclass(frozen=True, slots=True)
class Host:
    """A TPU VM that has joined, and the handle of its agent."""

    slice: int
    worker: int
    node: str
    address: str
    python: str
    ray: str
    agent: Any
    # What its metadata says otherwise than the launcher: the launcher's value and its own, by key.
    wrong: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return self.slice, self.worker


def connect(head: Head) -> None:
    """Make this process a driver of the head's cluster. Nothing inherited from RAY_* counts."""
    if head.token_path is not None:
        raynode.renew_environment(str(head.token_file), {"RAY_AUTH_TOKEN": head.token})
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)  # it tells of dead workers on the screen
    try:
        ray.init(
            address=head.gcs_address,
            namespace=NAMESPACE,
            _node_ip_address=head.address,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(
            f"no connection to the Ray head at {head.gcs_address}: {error}"
        ) from error
    keep_quiet()
    for module in ON_HOSTS:
        ray.cloudpickle.register_pickle_by_value(module)


def keep_quiet() -> None:
    """Ray prints news of dead nodes, whatever `ray.init` is told; the screen tells them better."""
    import ray._private.worker

    worker: Any = ray._private.worker
    worker.print_to_stdstream = lambda *_, **__: None


def is_connected() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())


def disconnect(head: Head | None = None) -> None:
    """Leave the cluster, unless its head is gone: Ray would wait for it, then end this process."""
    if ray := sys.modules.get("ray"):
        with contextlib.suppress(ClusterError):
            if head:
                coordinator.require_alive(head)
            ray.shutdown()


@dataclass(frozen=True, slots=True)
class Expected:
    """A slice whose hosts are to join: its node id, and what tells them from earlier ones.

    `says` is what the metadata of each of them has to say, if it says anything of these keys.
    """

    node: str
    incarnation: str
    says: Mapping[str, str] = field(default_factory=dict)

    def told(self, worker: int) -> dict[str, str]:
        """What a host is told of itself; nothing where no launcher has made the slice."""
        if not self.incarnation:
            return {}
        return {tpu_env.NODE: self.node, tpu_env.WORKER: str(worker), **self.says}


def gather(
    slices: Mapping[int, Expected],
    hosts_per_slice: int,
    is_late: Callable[[], bool],
    pause: Callable[[float], None],
    console: Callable[[str, int], str],
    joined: Callable[[Place], None],
    *,
    partly: bool = False,
) -> dict[Place, Host]:
    """Every host of every slice, as soon as all have joined; `slices` are by their numbers.

    An agent is asked for at each place. See `answered` for the rest.
    """
    agents = {
        (index, worker): ask(expected.node, worker, expected.incarnation)
        for index, expected in slices.items()
        for worker in range(hosts_per_slice)
    }
    return answered(agents, slices, is_late, pause, console, joined, partly=partly)


def answered(
    agents: Mapping[Place, Any],
    slices: Mapping[int, Expected],
    is_late: Callable[[], bool],
    pause: Callable[[float], None],
    console: Callable[[str, int], str],
    joined: Callable[[Place], None],
    *,
    partly: bool = False,
) -> dict[Place, Host]:
    """The hosts of these agents, once all of them have said who they are.

    `is_late` says that the deadline has passed, `pause` may raise to end the wait, `joined` is told
    of each host; `console` gives the log of a node's worker. Whatever ends the wait ends the agents
    that have not answered. Raises HostsMissing, which names them and shows their consoles,
    ClusterError that says which hosts are not what they should be, and SliceLost for one that died.
    With `partly`, those that are late or have died are left out instead.
    """
    import ray

    hosts = heard(agents, slices, is_late, pause, joined, partly=partly)
    if not partly and (late := agents.keys() - hosts.keys()):
        absent = missing(slices, late, console)
        words = [absent, *strangers(slices, agents, ray.nodes())]
        raise HostsMissing("\n".join(words), others=bool(hosts))
    require_true(hosts)
    require_equal_versions(hosts)
    return dict(sorted(hosts.items()))


def heard(
    agents: Mapping[Place, Any],
    slices: Mapping[int, Expected],
    is_late: Callable[[], bool],
    pause: Callable[[float], None],
    joined: Callable[[Place], None],
    *,
    partly: bool,
) -> dict[Place, Host]:
    """The hosts that say who they are before it is late; the agents of the others are ended.

    Raises SliceLost for one that has died, unless they are wanted `partly`.
    """
    import ray

    told = {place: slices[place[0]].told(place[1]) for place in agents}
    waiting = {handle.hello.remote(told[place]): place for place, handle in agents.items()}
    hosts: dict[Place, Host] = {}
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.1)
            for answer in ready:
                place = waiting[answer]
                with contextlib.suppress(SliceLost) if partly else contextlib.nullcontext():
                    hosts[place] = to_host(place, answer, agents[place])
                    joined(place)
                del waiting[answer]
            if not ready and is_late():
                break
            pause(0)
    except coordinator.HeadLost:
        waiting.clear()  # Ray answers nothing without
        raise
    finally:
        end({answer: agents[place] for answer, place in waiting.items()})
    return hosts


def end(agents: Mapping[Any, Any]) -> None:
    """Agents, by the answers that they have not given: they would wait for ever for their hosts."""
    import ray

    for handle in agents.values():
        ray.kill(handle)
    if agents:  # a name is free again when its agent is gone
        ray.wait(list(agents), num_returns=len(agents), timeout=KILL_SECONDS)


def ask(node: str, worker: int, incarnation: str, suffix: str = "") -> Any:
    """The agent of that place: the living one, or one that starts as soon as the host joins.

    With a suffix it is another one beside it, for a part of the host.

    It takes a sliver of the resource that each host of the slice has by its name. Ray sends a
    request for nothing by way of any node, perhaps of one whose death it has not noticed yet, and
    that ends the actor; a request for something goes by way of the caller's own node.
    """
    import ray

    return (
        ray.remote(agent.Agent)
        .options(
            name=f"{node}-w{worker}-{incarnation}{suffix}",
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            resources={node: 0.001},
            max_restarts=0,
            label_selector={
                SLICE: node,
                WORKER: str(worker),
                raynode.INCARNATION_LABEL: incarnation,
            },
        )
        .remote()
    )


def greeted(agents: Mapping[Place, Any], seconds: float) -> dict[Place, Host]:
    """Further agents on hosts that have joined, once they are up. Raises SliceLost."""
    import ray

    answers = {place: handle.hello.remote() for place, handle in agents.items()}
    _, late = ray.wait(list(answers.values()), num_returns=len(answers), timeout=seconds)
    if late:
        names = ", ".join(f"s{s} h{h}" for (s, h), answer in answers.items() if answer in late)
        raise SliceLost(f"no answer of an agent on {names} within {seconds:g} s")
    return {place: to_host(place, answer, agents[place]) for place, answer in answers.items()}


def to_host(place: Place, answer: Any, handle: Any) -> Host:
    import ray

    try:
        hello = ray.get(answer)
    except ray.exceptions.RayActorError as error:
        # Of a host that has gone Ray tells a paragraph; of a fault in the agent, in the last line.
        fault = f": {str(error).splitlines()[-1]}" if "creation task" in str(error) else ""
        raise SliceLost(f"s{place[0]} h{place[1]} died while it joined{fault}") from error
    except ray.exceptions.RayError as error:
        raise ClusterError(f"the agent on s{place[0]} h{place[1]} failed: {error}") from error
    own = (hello["node"], hello["address"], hello["python"], hello["ray"])
    return Host(*place, *own, handle, hello["wrong"])


def require_true(hosts: Mapping[Place, Host]) -> None:
    """Raises ClusterError if the metadata of a host contradicts what the launcher asked for."""
    lines = [
        f"  s{s} h{h} ({host.node}): its metadata says {key}={found}, the launcher {asked}"
        for (s, h), host in sorted(hosts.items())
        for key, (asked, found) in host.wrong.items()
    ]
    if lines:
        raise ClusterError("\n".join(["slices are not what they were asked to be:", *lines]))


def require_equal_versions(hosts: Mapping[Place, Host]) -> None:
    """Raises ClusterError with a table unless all run Ray and Python of the coordinator."""
    import ray

    own = (ray.__version__, platform.python_version())
    other = {place: host for place, host in hosts.items() if (host.ray, host.python) != own}
    if other:
        rows = [
            f"  s{s} h{h}: Ray {host.ray}, Python {host.python}" for (s, h), host in other.items()
        ]
        raise ClusterError(
            f"versions differ from this machine's (Ray {own[0]}, Python {own[1]}):\n"
            + "\n".join(rows)
        )


def missing(
    slices: Mapping[int, Expected],
    places: set[Place],
    console: Callable[[str, int], str],
) -> str:
    hosts = counted(len(places), "host")
    lines = [f"{hosts} did not join the cluster in time (cluster.join_timeout):"]
    for index, worker in sorted(places):
        node = slices[index].node
        lines.append(f"  s{index} h{worker} ({node} worker {worker}); end of its console log:")
        text = console(node, worker).strip() or "(empty: it may never have booted)"
        lines += [f"    | {line}" for line in text.splitlines()[-12:]]
    return "\n".join(lines)


def strangers(
    slices: Mapping[int, Expected], places: Iterable[Place], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """A line for each name by which no host, or more than one, was to join, among the `nodes`, in
    the form of `ray.nodes()`, of these slices: their metadata gave it to them.
    """
    own = {each.incarnation for each in slices.values()}
    wanted = {(slices[index].node, str(worker)) for index, worker in places}
    labels = [node["Labels"] for node in nodes if node["Alive"]]
    mine = [each for each in labels if each.get(raynode.INCARNATION_LABEL) in own]
    counts = Counter((each.get(SLICE, ""), each.get(WORKER, "")) for each in mine)
    for name, count in sorted(counts.items()):
        if count > 1 or name not in wanted:
            yield f"  {counted(count, 'host')} joined as {name[0]} worker {name[1]}"


def view() -> dict[str, Any]:
    """The cluster as Ray shows it: alive nodes and total resources."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {"nodes": len(nodes), "resources": ray.cluster_resources()}
