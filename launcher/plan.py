"""Spec → Plan: the literal API requests, and the argv and environment of each process. Pure."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.provisioning.prices import cost_per_hour
from launcher.provisioning.requests import Identity, Request, requests_for
from launcher.ranks import chips
from launcher.ranks.rendezvous import torchrun
from launcher.spec import Offer, Spec
from launcher.startup import host_config, startup_script

# From the grant until READY, by the number of hosts from which it holds (marin#6087).
PROVISION_SECONDS = ((256, 1800.0), (64, 1200.0), (0, 900.0))


@dataclass(frozen=True, slots=True)
class Process:
    """One rank: where it runs, and what is known of it before the hosts are there.

    `index` counts the processes of its host; `rank` all of them, by (slice, worker id, index).
    `chips` are those of its host that are its own alone; empty: all of them.
    """

    slice: int
    host: int
    index: int
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    chips: tuple[int, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        return self.slice, self.host


@dataclass(frozen=True, slots=True)
class Choice:
    """One link of the fallback chain, with all that follows from it.

    `cost_per_hour_usd` is for all slices, None where no price is known; `provision_timeout` is in
    seconds.
    """

    offer: Offer
    hosts: int
    chips: int
    requests: tuple[Request, ...]
    processes: tuple[Process, ...]
    cost_per_hour_usd: float | None
    provision_timeout: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """The ids of the nodes, in the order of slices."""
        return tuple(node for request in self.requests for node in request.nodes)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The same by their full names."""
        return tuple(name for request in self.requests for name in request.node_names)

    def requests_of(self, part: Collection[int] | None) -> dict[int, Request]:
        """By slice number, of some slices or all; a queued resource of several is one request, and
        has no part.
        """
        return {i: r for i, r in enumerate(self.requests) if part is None or i in part}

    @property
    def title(self) -> str:
        offer, slices = self.offer, len(self.nodes)
        count = f"{slices} x " if slices > 1 else ""
        return f"{count}{offer.accelerator.accelerator_type} {offer.capacity} in {offer.zone}"

    def to_json(self) -> dict[str, Any]:
        return {
            "accelerator_type": self.offer.accelerator.accelerator_type,
            "capacity": self.offer.capacity,
            "zone": self.offer.zone,
            "hosts": self.hosts,
            "chips": self.chips,
            "requests": [request.to_json() for request in self.requests],
            "processes": [asdict(process) for process in self.processes],
            "cost_per_hour_usd": self.cost_per_hour_usd,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run will do, as data: its choices in the order in which they are tried."""

    name: str
    choices: tuple[Choice, ...]

    @property
    def first(self) -> Choice:
        return self.choices[0]

    @property
    def and_more(self) -> str:
        """What a line on the first choice ends in: how many others there are, if there are any."""
        others = len(self.choices) - 1
        return f", and {others} more choice{'' if others == 1 else 's'}" if others else ""

    def widest(self, choice: Choice) -> Choice:
        """The choice of the same offer with the most slices."""
        return next(each for each in self.choices if each.offer == choice.offer)

    def to_json(self) -> dict[str, Any]:
        """The form that `plan --json` prints and `plan.json` holds."""
        fallback = [choice.to_json() for choice in self.choices[1:]]
        return {"name": self.name, **self.first.to_json(), "fallback": fallback}


def make_plan(spec: Spec, identity: Identity) -> Plan:
    """No call is made. A larger number of slices comes before a better offer."""
    choices = (
        make_choice(spec, offer, identity, slices)
        for slices in spec.mode.sizes
        for offer in spec.cluster.offers
    )
    return Plan(spec.name, tuple(choices))


def make_choice(spec: Spec, offer: Offer, identity: Identity, slices: int) -> Choice:
    accelerator = offer.accelerator
    hosts = accelerator.hosts * slices
    default = next(seconds for least, seconds in PROVISION_SECONDS if hosts >= least)
    return Choice(
        offer=offer,
        hosts=hosts,
        chips=accelerator.chips * slices,
        requests=requests_for(spec, offer, identity, host_script(spec, offer), slices),
        processes=tuple(plan_processes(spec, offer, slices)),
        cost_per_hour_usd=cost_per_hour(accelerator, offer.capacity, offer.zone, slices),
        provision_timeout=spec.cluster.provision_timeout or default,
    )


def part_of(spec: Spec, choice: Choice, nodes: Collection[str]) -> Choice:
    """The choice with these of its nodes alone, each of a request of its own.

    Slices are numbered anew, from 0, in the order of the nodes of the whole.
    """
    offer, slices = choice.offer, len(nodes)
    return replace(
        choice,
        hosts=offer.accelerator.hosts * slices,
        chips=offer.accelerator.chips * slices,
        requests=tuple(r for r in choice.requests if set(r.nodes) <= set(nodes)),
        processes=tuple(plan_processes(spec, offer, slices)),
        cost_per_hour_usd=cost_per_hour(offer.accelerator, offer.capacity, offer.zone, slices),
    )


def host_script(spec: Spec, offer: Offer) -> str:
    """The startup script of every host."""
    requirements = (*spec.mode.requirements, *(spec.workload.requirements if spec.workload else ()))
    config = host_config(
        offer.accelerator.chips_per_host,
        spec.cluster.join_timeout,
        requirements,
        platform.python_version(),
    )
    machine = spec.cluster.machine
    return startup_script(config, requirements, before=machine.startup, env=machine.env)


def plan_processes(spec: Spec, offer: Offer, slices: int) -> list[Process]:
    """In the order of ranks: slice, worker id, then index on the host."""
    if spec.workload is None:
        return []
    by_chip, accelerator = spec.mode.processes == "chip", offer.accelerator
    per_host = chips.per_host(accelerator) if by_chip else 1
    argv, ranks = spec.workload.argv("python3"), slices * accelerator.hosts * per_host
    processes = []
    for rank in range(ranks):
        whole, index = divmod(rank, per_host)
        slice_, host = divmod(whole, accelerator.hosts)
        env = process_env(spec, slices, slice_, host, rank, ranks)
        if by_chip:
            env |= chips.one_of_slice(accelerator, host, index)
            env |= torchrun(spec.name, rank, ranks, index, per_host)
        own = (index,) if by_chip else ()
        processes.append(Process(slice_, host, index, rank, argv, env | shown_env(spec), own))
    return processes


def process_env(
    spec: Spec, slices: int, index: int, host: int, rank: int, ranks: int
) -> dict[str, str]:
    """What is the same in every attempt; `Meeting` adds addresses and ports."""
    return {
        "LAUNCHER_RUN": spec.name,
        "LAUNCHER_NUM_SLICES": str(slices),
        "LAUNCHER_SLICE": str(index),
        "LAUNCHER_HOST": str(host),
        "LAUNCHER_PROCESS_ID": str(rank),
        "LAUNCHER_NUM_PROCESSES": str(ranks),
        "TPU_WORKER_ID": str(host),
    }


def shown_env(spec: Spec) -> dict[str, str]:
    """The user's variables, without those that are secrets."""
    assert spec.workload is not None
    return {k: v for k, v in spec.workload.env.items() if k not in spec.workload.secret_env}
