"""`gc`: find what dead runs of this machine left, and delete it with `--yes`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from launcher import registry
from launcher.accelerators import all_types, lookup
from launcher.ending import each, every, remove
from launcher.interrupt import interruptible
from launcher.invocation import owner
from launcher.providers import KINDS, Listing, Pause, Provider, Resource, find_provider
from launcher.providers.states import State
from launcher.provisioning import prices, removal
from launcher.provisioning.requests import LABEL_MACHINE, LABEL_OWNER, LABEL_RUN, is_queued
from launcher.spec import ProviderSpec
from launcher.verbs import Arguments
from launcher.verbs.loading import load

NOT_THERE = ""  # the state of what the API does not list


def gc(arguments: Arguments) -> int:
    """Looks at this machine's records, and at the provider that the overrides name."""
    from launcher import coordinator

    spec, _ = load(arguments, workload=False)
    provider = find_provider(spec.provider)
    with contextlib.closing(provider) if provider else contextlib.nullcontext():
        # What exists is read before the records: whatever a live run has made is on record by then.
        listing = provider.list({LABEL_OWNER: owner()}) if provider else Listing(())
        heads = coordinator.heads()
        records = registry.records()
        dead = [r for r in records if is_dead(r)]
        tell_idle_coordinators()
        heads = [head for head in heads if head.id not in {r["head"] for r in records}]
        strays = [r for r in listing.resources if is_stray(r, records)]
        for record in dead:
            names = names_of(record, listing)
            print(describe(record, names, states_of(record, names, spec.provider, listing)))
        for stray in strays:
            print(f"{describe_stray(stray, spec.provider)}, of a run that is not on record")
        for head in heads:
            print(f"a Ray head that nobody uses, at {head.gcs_address}")
        tell_what_is_not_ours(listing)
        if not dead and not heads and not strays:
            print("nothing is left by dead runs of this machine")
        elif "--yes" not in arguments.flags:
            if dead:
                print("to go on with a run of these, give its own command again")
            print("delete all of it with: python -m launcher gc --yes")
        else:
            for head in heads:
                coordinator.release_head(head.id)
            with interruptible() as pause:
                names, ended = [record["name"] for record in dead], partial(end_dead, pause=pause)
                every(partial(each, names, ended), partial(delete_strays, strays, provider, pause))
    return 0


def end_dead(name: str, pause: Pause) -> None:
    """Remove what a dead run left; one that has begun again meanwhile is left alone."""
    with registry.lock(f"run-{name}", "it has just begun again"):
        record = registry.record(name)
        if record and not is_dead(record):
            return
        remove(name, record, print, pause)


def is_dead(record: Mapping[str, Any]) -> bool:
    """Whether nobody looks after it. Who looks after a remote run is its coordinator, once the
    process that launches it has handed it over.
    """
    if record.get("remote") and registry.is_alive(record["supervisor"]):
        return False
    if record.get("remote"):
        from launcher.remote import standing

        return standing.is_lost(record)
    return not record["stays"] and not registry.is_alive(record["supervisor"])


def tell_idle_coordinators() -> None:
    """They are there for the next run, and not left by any."""
    if (registry.home() / "coordinators").is_dir():
        from launcher.remote import vm

        for found in vm.on_record():
            if not vm.users_of(found):
                print(f"{found.title} serves no run now: python -m launcher down {found.name}")


def is_stray(resource: Resource, records: list[dict[str, Any]]) -> bool:
    """Whether it was made on this machine, by a run that no record tells of."""
    on_record = {record["name"] for record in records}
    ours = of_this_machine().items() <= resource.labels.items()
    return ours and resource.labels.get(LABEL_RUN) not in on_record


def of_this_machine() -> dict[str, str]:
    """The labels of all that this user's runs have made on this machine."""
    return {LABEL_OWNER: owner(), LABEL_MACHINE: registry.machine_id()}


def delete_strays(strays: list[Resource], provider: Provider | None, pause: Pause) -> None:
    """The lock keeps a run of that name from beginning meanwhile."""

    def delete_those_of(run: str) -> None:
        with registry.lock(f"run-{run}", f"run {run} has just begun"):
            if registry.record(run) is None:
                names = [s.name for s in strays if s.labels[LABEL_RUN] == run]
                assert provider is not None  # it has listed them
                removal.delete_all(provider, names, {LABEL_RUN: run, **of_this_machine()}, pause)
                print(f"{run}: nothing is left")

    each(sorted({stray.labels[LABEL_RUN] for stray in strays}), delete_those_of)


def tell_what_is_not_ours(listing: Listing) -> None:
    for resource in listing.resources:
        if resource.labels.get(LABEL_MACHINE) != registry.machine_id():
            print(
                f"left alone: {resource.name} ({resource.raw_state}) is yours, made on another"
                " machine or with another $LAUNCHER_HOME"
            )
    for zone in listing.unreachable:
        print(f"not looked at: {zone} did not answer")


def names_of(record: Mapping[str, Any], listing: Listing) -> list[str]:
    """What a record names, and what besides carries its labels: what a coordinator elsewhere has
    made is on record there.
    """
    labels = {LABEL_RUN: record["name"], **of_this_machine()}
    labelled = [r.name for r in listing.resources if labels.items() <= r.labels.items()]
    return list(dict.fromkeys([*record["resources"], *labelled]))


def describe(record: Mapping[str, Any], names: Iterable[str], states: Mapping[str, str]) -> str:
    billed = KINDS[record["provider"]["kind"]].billed
    there = [name for name in names if states.get(name) != NOT_THERE]
    what = [f"{name} ({states[name]})" if name in states else name for name in there]
    cost = price(record["cost_per_hour_usd"]) if billed and there else ""
    own = "its job" if record.get("remote") else "its Ray head"
    return f"{record['name']}: {', '.join([*what, own])}{cost}"


def states_of(
    record: Mapping[str, Any], names: Iterable[str], spec: ProviderSpec, listing: Listing
) -> Mapping[str, str]:
    """The API's words for what has these names; none where another provider has to be asked."""
    theirs = record["provider"]
    if (theirs["kind"], theirs["project"]) != (spec.kind, spec.project):
        return {}
    silent = tuple(f"/locations/{zone}/" for zone in listing.unreachable)
    seen = [name for name in names if not any(zone in name for zone in silent)]
    return dict.fromkeys(seen, NOT_THERE) | {r.name: r.raw_state for r in listing.resources}


def describe_stray(stray: Resource, spec: ProviderSpec) -> str:
    """One node or queued resource, with what it costs: nothing unless it is a living node."""
    text = f"{stray.name} ({stray.raw_state})"
    if stray.state is State.DEAD:
        return f"{text}, not billed, but counted by the quota"
    is_node = not is_queued(stray.name)
    if not (KINDS[spec.kind].billed and is_node and stray.accelerator_type in all_types()):
        return text
    zone = stray.name.split("/")[3]
    cost = prices.cost_per_hour(lookup(stray.accelerator_type), "on-demand", zone, 1)
    return f"{text}{price(cost)}"


def price(usd_per_hour: float | None) -> str:
    return ", price unknown" if usd_per_hour is None else f", up to {usd_per_hour:.2f} USD/h"
