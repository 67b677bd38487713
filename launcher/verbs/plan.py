"""`plan`: what `run` would do, and nothing done. No call is made, to Google or to the emulator."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher import registry
from launcher.config.values import seconds
from launcher.errors import ConfigError, Problem
from launcher.invocation import headline, owner
from launcher.plan import Choice, Plan
from launcher.providers import KINDS
from launcher.provisioning import prices
from launcher.provisioning.requests import Request
from launcher.spec import Offer, Spec
from launcher.verbs import Arguments
from launcher.verbs.loading import load, scan
from launcher.words import counted

if TYPE_CHECKING:
    from launcher.source import Manifest

FOR = "--for"
SHOWN = 8  # processes
MEANT: Mapping[str, Callable[[Offer], str]] = {
    "accelerator_type": lambda offer: offer.accelerator.accelerator_type,
    "runtime_version": lambda offer: offer.runtime_version,
    "zone": lambda offer: offer.zone,
}


def plan(arguments: Arguments) -> int:
    hours = hours_of(arguments.values.get(FOR))
    spec, planned = load(arguments)
    manifest, existing = scan(spec), on_record(planned.name)
    if "--json" in arguments.flags:
        print(json.dumps(as_json(spec, planned, manifest, existing, hours), indent=2))
        return 0
    told = (headline(spec, planned), *text(spec, planned, existing, arguments.values.get(FOR)))
    print("\n".join(told))
    print("\n".join(files(manifest, all_of_them="--show-files" in arguments.flags)))
    print("nothing was touched; --json prints all of it, --show-files what would be shipped")
    return 0


def hours_of(duration: str | None) -> float | None:
    """Raises ConfigError for what is no duration."""
    if duration is None:
        return None
    try:
        return seconds(duration) / 3600
    except ValueError:
        message = f"must be a duration with a unit, such as 90m or 12h, not {duration!r}"
        raise ConfigError([Problem(message, FOR)]) from None


def on_record(name: str) -> list[str]:
    """Full names of what this machine has, or was about to have, under the run's name."""
    record = registry.record(name)
    return list(record["resources"]) if record else []


def as_json(
    spec: Spec, planned: Plan, manifest: Manifest, existing: list[str], hours: float | None
) -> dict[str, Any]:
    """The plan, and what it takes to read more than the run's own records to know."""
    sizes = {"count": len(manifest.files), "bytes": manifest.total}
    more: dict[str, Any] = {"notes": list(spec.notes), "files": sizes, "exists": existing}
    more["coordinator"] = coordinator_of(spec)
    if hours is not None:
        more["cost_usd"] = cost(planned.first, hours)
    return {**planned.to_json(), **more}


def cost(choice: Choice, hours: float) -> float | None:
    """USD of all slices for so long; None where no price is known."""
    an_hour = choice.cost_per_hour_usd
    return None if an_hour is None else round(an_hour * hours, 2)


def text(spec: Spec, planned: Plan, existing: list[str], duration: str | None) -> Iterator[str]:
    """All but the first line and the files."""
    yield from (f"  note: {note}" for note in spec.notes)
    if existing:
        yield f"  up under this name, on record: {', '.join(existing)}"
    yield from choices(planned, duration)
    if spec.cluster.coordinator == "vm":
        yield f"  coordinator: {about_vm(spec)}"
    if not KINDS[spec.provider.kind].billed:
        yield "  emulated here at no cost; prices are Google's"
    yield from literal(planned.first)
    yield from others(planned)
    yield from processes(planned.first)


def choices(planned: Plan, duration: str | None) -> Iterator[str]:
    """In the order in which they are tried; the source of the prices is told once."""
    if len(planned.choices) > 1:
        yield "  tried in this order:"
    priced = next((each for each in planned.choices if each.cost_per_hour_usd is not None), None)
    for number, choice in enumerate(planned.choices, start=1):
        size = f"{counted(choice.hosts, 'host')}, {counted(choice.chips, 'chip')}"
        price = price_of(choice, with_source=choice is priced)
        whole = None if duration is None else cost(choice, seconds(duration) / 3600)
        so_long = "" if whole is None else f", {whole:.2f} USD for {duration}"
        yield f"  {number}. {choice.title}: {size}, {price}{so_long}"


def price_of(choice: Choice, *, with_source: bool) -> str:
    offer, usd = choice.offer, choice.cost_per_hour_usd
    if usd is None or with_source:
        return prices.describe(offer.accelerator, offer.capacity, offer.zone, len(choice.nodes))
    return f"{usd:.2f} USD/h"


def coordinator_of(spec: Spec) -> dict[str, Any]:
    """`usd_per_hour` is what it costs beside the slices; None where no price is known."""
    kind, machine_type = spec.cluster.coordinator, spec.cluster.vm.machine_type
    if kind != "vm":
        return {"kind": kind, "name": None, "machine_type": None, "usd_per_hour": 0.0}
    from launcher.remote import vm

    price = prices.machine_price(machine_type, vm.zone_of(spec))
    usd, name = price.usd if price else None, vm.name_of(spec, owner())
    return {"kind": kind, "name": name, "machine_type": machine_type, "usd_per_hour": usd}


def about_vm(spec: Spec) -> str:
    from launcher.remote import vm

    zone, machine_type = vm.zone_of(spec), spec.cluster.vm.machine_type
    price = prices.machine_price(machine_type, zone)
    usd = f"{price.usd:.2f} USD/h (list price of {price.date})" if price else "price unknown"
    return f"VM {vm.name_of(spec, owner())}, {machine_type} in {zone}, {usd}"


def literal(choice: Choice) -> Iterator[str]:
    """The requests in short form: a startup script is counted, not shown."""
    for request in choice.requests:
        yield f"  {request.method} ({request.version}) {request.name}"
        yield from (f"    {key}: {brief(value)}" for key, value in request.body.items())


def others(planned: Plan) -> Iterator[str]:
    """How the requests of the other choices differ, those that differ alike in one line."""
    alike: dict[str, list[int]] = {}
    for number, choice in enumerate(planned.choices[1:], start=2):
        alike.setdefault(", ".join(differences(planned.first, choice)), []).append(number)
    for fields, numbers in alike.items():
        yield f"  {', '.join(map(str, numbers))} the same, but for {fields}"


def processes(choice: Choice) -> Iterator[str]:
    """Each rank in a line, as far as a screen goes; all have the same argv."""
    several = any(process.index for process in choice.processes)
    for process in choice.processes[:SHOWN]:
        index = f" p{process.index}" if several else ""
        yield f"  s{process.slice} h{process.host}{index}: {shlex.join(process.argv)}"
    if left := len(choice.processes[SHOWN:]):
        yield f"  … and {left} more of the same"


def brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {brief(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{'; '.join(map(brief, value))}]"
    lines = str(value)
    return f"<{len(lines.splitlines())} lines>" if "\n" in lines else lines


def differences(first: Choice, other: Choice) -> list[str]:
    """The names of all fields in which the requests of two choices differ."""
    one, two = first.requests[0], other.requests[0]
    if (one.method, one.version) != (two.method, two.version):
        # The bodies have other fields: compare what is meant.
        asked = [name for name in MEANT if MEANT[name](first.offer) != MEANT[name](other.offer)]
        return [f"{two.method} ({two.version}) in place of {one.method} ({one.version})", *asked]
    fewer = len(first.nodes) - len(other.nodes)
    found = [f"{len(other.nodes)} in place of {len(first.nodes)} slices"] if fewer else []
    pairs = zip(first.requests, other.requests, strict=False)
    found += [name for one, two in pairs for name in different_fields(leaves(one), leaves(two))]
    return list(dict.fromkeys(found))


def different_fields(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    for path in sorted({*one, *two}):
        if one.get(path) != two.get(path):
            yield path.rpartition(".")[2]


def leaves(request: Request) -> dict[str, Any]:
    """Every value of a request by its path, the zone for the names that it stands in."""
    zone = request.parent.rpartition("/")[2]
    return {"zone": zone, **dict(_leaves(request.body, "", zone))}


def _leaves(value: Any, path: str, zone: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if not value:
            yield path, {}
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}", zone)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]", zone)
    else:
        yield path, value.replace(f"/locations/{zone}", "") if isinstance(value, str) else value


def files(manifest: Manifest, *, all_of_them: bool) -> Iterator[str]:
    from launcher import source

    yield f"  {source.describe(manifest)}"
    if all_of_them:
        yield from (f"    {entry.path} ({entry.size} bytes)" for entry in manifest.files)
