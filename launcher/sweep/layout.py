"""How a cluster is shared out among trials: parts of it, and what a program sees of its part. Pure.

A program on a part cannot tell it from a cluster of that size: slices, hosts and chips count from
0, as they would in a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from launcher.accelerators import Accelerator
from launcher.errors import ConfigError, Problem
from launcher.hosts.member import Place
from launcher.plan import Choice, Process, plan_processes
from launcher.provisioning.requests import Request
from launcher.ranks import chips
from launcher.spec import Offer, Spec
from launcher.words import counted

KEY = "sweep.per_trial"
LIBTPU_PORT = 8476  # libtpu's own default; each part of a host has one of those that follow


@dataclass(frozen=True, slots=True)
class Part:
    """What one trial has. `hosts` are worker ids, of each of the `slices`; `chips` the first chip
    and how many, of a single host, or None for all of them.
    """

    slices: tuple[int, ...]
    hosts: tuple[int, ...]
    chips: tuple[int, int] | None = None
    alone: bool = True  # whether it is made of whole slices

    @property
    def places(self) -> Mapping[Place, Place]:
        """The hosts as the program counts them, and where they are in the cluster."""
        return {
            (slice_, host): (self.slices[slice_], self.hosts[host])
            for slice_ in range(len(self.slices))
            for host in range(len(self.hosts))
        }

    @property
    def title(self) -> str:
        """`s0`, `s0-1`, `s0 h2`, `s0 h0,2`, `s0 h0 c4-5`."""
        words = [f"s{_span(self.slices)}"]
        words += [] if self.alone and not self.chips else [f"h{_span(self.hosts)}"]
        words += [f"c{_span(range(self.chips[0], sum(self.chips)))}"] if self.chips else []
        return " ".join(words)


def _span(numbers: tuple[int, ...] | range) -> str:
    first, last = numbers[0], numbers[-1]
    if list(numbers) != [*range(first, last + 1)]:
        return ",".join(map(str, numbers))
    return str(first) if first == last else f"{first}-{last}"


def parts(spec: Spec, accelerator: Accelerator) -> tuple[Part, ...]:
    """Every part, in the order of slices, hosts and chips.

    Raises ConfigError where the cluster cannot be shared out so.
    """
    unit, count = spec.sweep.per_trial or ("slices", spec.mode.slices)
    if unit != "slices" and spec.mode.processes != "host":
        raise _problem(f"with mode.processes={spec.mode.processes} a trial has whole slices")
    return tuple(
        {"slices": _slices, "hosts": _hosts, "chips": _chips}[unit](spec, accelerator, count)
    )


def _slices(spec: Spec, accelerator: Accelerator, count: int) -> Iterator[Part]:
    if spec.mode.slices % count:
        whole = counted(spec.mode.slices, "slice")
        raise _problem(f"{whole} cannot be shared out by {count}", "mode.slices")
    for first in range(0, spec.mode.slices, count):
        yield Part(tuple(range(first, first + count)), tuple(range(accelerator.hosts)))


def _hosts(spec: Spec, accelerator: Accelerator, count: int) -> Iterator[Part]:
    if count == accelerator.hosts:
        yield from _slices(spec, accelerator, 1)
        return
    boxes = chips.boxes(accelerator, count)
    if not boxes:
        can = [n for n in range(1, accelerator.hosts) if chips.boxes(accelerator, n)]
        hint = f"hosts: {', '.join(map(str, [*can, accelerator.hosts]))}"
        name = accelerator.accelerator_type
        raise _problem(f"a {name} cannot be shared out by {count} of its hosts", hint=hint)
    for slice_ in range(spec.mode.slices):
        for hosts in boxes:
            yield Part((slice_,), hosts, alone=False)


def _chips(spec: Spec, accelerator: Accelerator, count: int) -> Iterator[Part]:
    if count == accelerator.chips_per_host:
        yield from _hosts(spec, accelerator, 1)
        return
    number = chips.parts(accelerator, count)
    if not number:
        can = [n for n in range(1, accelerator.chips_per_host + 1) if chips.parts(accelerator, n)]
        hint = f"chips: {', '.join(map(str, can))}"
        name = accelerator.accelerator_type
        raise _problem(f"a host of a {name} cannot be shared out by {count} chips", hint=hint)
    for slice_ in range(spec.mode.slices):
        for host in range(accelerator.hosts):
            for index in range(number):
                yield Part((slice_,), (host,), (index * count, count), alone=False)


def _problem(message: str, key: str = KEY, hint: str = "") -> ConfigError:
    return ConfigError([Problem(message, key, hint=hint)])


def choice_of(spec: Spec, choice: Choice, part: Part) -> Choice:
    """What a trial with this part has of a choice: its processes, and the nodes it stands on."""
    offer = _offer(choice.offer, part)
    slices = len(part.slices)
    whole = choice.offer.accelerator
    share = slices * offer.accelerator.chips / choice.chips
    cost = choice.cost_per_hour_usd
    return replace(
        choice,
        hosts=slices * offer.accelerator.hosts,
        chips=slices * offer.accelerator.chips,
        requests=tuple(_requests(choice, part)),
        processes=tuple(
            _kept(process, whole, part) for process in plan_processes(spec, offer, slices)
        ),
        cost_per_hour_usd=None if cost is None else cost * share,
    )


def _offer(offer: Offer, part: Part) -> Offer:
    """The same accelerator with the hosts and chips of a part."""
    whole = offer.accelerator
    per_host = part.chips[1] if part.chips else whole.chips_per_host
    hosts = len(part.hosts)
    small = replace(whole, hosts=hosts, chips=hosts * per_host, chips_per_host=per_host)
    return replace(offer, accelerator=small)


def _kept(process: Process, accelerator: Accelerator, part: Part) -> Process:
    """With what keeps it to its part; as it is where that is whole slices."""
    if part.alone:
        return process
    if len(part.hosts) > 1:
        own = chips.part_of_slice(accelerator, len(part.hosts), process.host)
        all_of_host = tuple(range(accelerator.chips_per_host))
        return replace(process, env={**process.env, **own}, chips=all_of_host)
    first, count = part.chips or (0, accelerator.chips_per_host)
    index = first // count
    own = chips.part_of_host(accelerator, count, index, LIBTPU_PORT + index)
    return replace(process, env={**process.env, **own})


def _requests(choice: Choice, part: Part) -> Iterator[Request]:
    """Those that the part's nodes come of, with these alone."""
    mine = {choice.nodes[index] for index in part.slices}
    for request in choice.requests:
        if nodes := tuple(node for node in request.nodes if node in mine):
            yield replace(request, nodes=nodes)
