"""`gc`: find what dead runs left, on record or by label, and delete it with `--yes`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from launcher import registry
from launcher.plan import LABEL_OWNER
from launcher.providers import KINDS, Node, Provider
from launcher.verbs import Arguments
from launcher.verbs.down import each, end
from launcher.verbs.loading import load, owner

DELETE_SECONDS = 600.0


def gc(arguments: Arguments) -> int:
    """Looks at this machine's records, and at the provider that the overrides name."""
    from launcher import coordinator

    heads = coordinator.heads()  # before the records: a head is on record after its run
    records = registry.records()
    dead = [r for r in records if not r["stays"] and not registry.is_alive(r["supervisor"])]
    heads = [head for head in heads if head.id not in {r["head"] for r in records}]
    with reachable_provider(arguments) as provider:
        nodes = unrecorded(provider, records) if provider else []
        for line in [*map(describe, dead), *(f"node {n.name} ({n.raw_state})" for n in nodes)]:
            print(line)
        for head in heads:
            print(f"a Ray head that nobody uses, at {head.gcs_address}")
        if not dead and not nodes and not heads:
            print("nothing is left by dead runs")
        elif "--yes" not in arguments.flags:
            print("delete all of it with: python -m launcher gc --yes")
        else:
            for head in heads:
                coordinator.release_head(head.id, lambda: False)
            each([record["name"] for record in dead], end)
            if provider:
                each([n.name for n in nodes], partial(provider.delete, timeout=DELETE_SECONDS))
    return 0


def describe(record: Mapping[str, Any]) -> str:
    billed = KINDS[record["provider"]["kind"]].billed
    cost = f", {record['cost_per_hour_usd'] or 0:g} USD/h" if billed else ""
    return f"{record['name']}: {', '.join(record['nodes'])} and its Ray head{cost}"


@contextlib.contextmanager
def reachable_provider(arguments: Arguments) -> Iterator[Provider | None]:
    """The provider of the configuration, unless it is an emulator that does not run."""
    from launcher.providers import find_provider

    spec, _ = load(arguments, workload=False)
    provider = find_provider(spec.provider)
    try:
        yield provider
    finally:
        if provider:
            provider.close()


def unrecorded(provider: Provider, records: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Nodes that carry this user's label and that no record here names."""
    known = {name for record in records for name in record["nodes"]}
    return [n for n in provider.list({LABEL_OWNER: owner()}) if n.name not in known]
