"""A place of the cluster that runs one trial at a time, with agents of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from launcher import cluster
from launcher.coordinator import Head
from launcher.hosts.member import Place as HostPlace
from launcher.judging.outcome import Repair
from launcher.judging.verdict import Verdict
from launcher.provisioning.provision import Joined
from launcher.spec import Spec
from launcher.sweep.desk import Stopped
from launcher.sweep.layout import Part, choice_of

TAKES_PLACE = (Repair.SLICES, Repair.ZONE)  # after which the slices are others
OPEN_SECONDS = 120.0  # for the agents of a part to start, on a host that is busy

Lost = Callable[[frozenset[int]], None]
"""Is told of slices that must be replaced."""


class Place:
    """One part of a cluster that has joined; `open` before the first trial."""

    def __init__(self, part: Part, joined: Joined, lost: Lost) -> None:
        self.part = part
        self.usable = True
        self.headless = False  # it was left since the Ray head did not answer
        self._joined = joined
        self._lost = lost
        self._hosts: Mapping[HostPlace, cluster.Host] = {}

    @property
    def title(self) -> str:
        return self.part.title

    @property
    def slices(self) -> tuple[int, ...]:
        return self.part.slices

    def open(self, incarnations: Mapping[str, str]) -> None:
        """Have an agent on each of its hosts. Raises ClusterError, or SliceLost."""
        own = self._agents(incarnations)
        answers = cluster.greeted(own, OPEN_SECONDS) if own else {}
        hosts = {**self._joined.hosts, **answers}
        where = self.part.places
        self._hosts = {
            here: dataclasses.replace(hosts[there], slice=here[0], worker=here[1])
            for here, there in where.items()
        }

    def _agents(self, incarnations: Mapping[str, str]) -> dict[HostPlace, object]:
        """Those beside the host's first one, which serves the host's first part."""
        chips, nodes = self.part.chips, self._joined.choice.nodes
        if not chips or chips[0] == 0:
            return {}
        return {
            there: cluster.ask(
                nodes[there[0]], there[1], incarnations[nodes[there[0]]], suffix(chips)
            )
            for there in self.part.places.values()
        }

    def joined(self, spec: Spec) -> Joined:
        """What a trial is given in place of a cluster."""
        choice = choice_of(spec, self._joined.choice, self.part)
        return dataclasses.replace(self._joined, choice=choice, hosts=self._hosts)

    @property
    def head(self) -> Head:
        return self._joined.head

    def stranded(self) -> Stopped:
        """The head is gone, and the cluster with it: the trial is to go on on another one."""
        self.usable, self.headless = False, True
        return Stopped("the Ray head is gone", again=True)

    def give_up(self, lost: Iterable[int] = ()) -> None:
        """These of its slices, all if none is named, are lost: no trial begins here any more.

        They are numbered as a trial in this place has them.
        """
        self.usable = False
        self._lost(frozenset(self.slices[index] for index in lost) or frozenset(self.slices))


def suffix(chips: tuple[int, int]) -> str:
    """Ends the name of the agent of some chips of a host."""
    first, count = chips
    return f"-c{first}-{count}"


class Hold:
    """A place, lent to one attempt of a trial."""

    held = False

    @property
    def head(self) -> Head:
        return self._place.head

    def __init__(self, place: Place, spec: Spec) -> None:
        self._place = place
        self._spec = spec

    def ready(self, *, partly: bool = False) -> Joined:
        return self._place.joined(self._spec)

    def recalled(self) -> str:
        return ""  # a place does not grow

    def damaged(self, verdict: Verdict) -> None:
        if verdict.repair in TAKES_PLACE:
            self._place.give_up(verdict.slices)


def end_others(places: Iterable[Place], incarnations: Mapping[str, str]) -> None:
    """End agents of an earlier layout: their processes may still have the chips."""
    import ray

    wanted = {suffix(place.part.chips) for place in places if place.part.chips}
    for name in ray.util.list_named_actors():
        node, _, rest = name.rpartition("-w")
        _worker, _, rest = rest.partition("-")
        own, dash, chips = rest.partition("-")
        if dash and incarnations.get(node) == own and f"-{chips}" not in wanted:
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name))
