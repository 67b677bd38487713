"""`gc`: find what dead runs of this machine left, and delete it with `--yes`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from launcher import registry
from launcher.plan import LABEL_OWNER
from launcher.providers import KINDS, Node, find_provider
from launcher.verbs import Arguments
from launcher.verbs.down import each, end
from launcher.verbs.loading import load, owner


def gc(arguments: Arguments) -> int:
    """Looks at this machine's records, and at the provider that the overrides name."""
    from launcher import coordinator

    # What exists is read before the records: whatever a live run has made is on record by then.
    strangers = labelled_nodes(arguments)
    heads = coordinator.heads()
    records = registry.records()
    dead = [r for r in records if not r["stays"] and not registry.is_alive(r["supervisor"])]
    heads = [head for head in heads if head.id not in {r["head"] for r in records}]
    known = {name for record in records for name in record["nodes"]}
    for record in dead:
        print(describe(record))
    for head in heads:
        print(f"a Ray head that nobody uses, at {head.gcs_address}")
    for node in strangers:
        if node.name not in known:
            print(
                f"left alone: {node.name} ({node.raw_state}) is yours, by a run of another machine?"
            )
    if not dead and not heads:
        print("nothing is left by dead runs of this machine")
    elif "--yes" not in arguments.flags:
        print("delete all of it with: python -m launcher gc --yes")
    else:
        for head in heads:
            coordinator.release_head(head.id)
        each([record["name"] for record in dead], end)
    return 0


def describe(record: Mapping[str, Any]) -> str:
    billed = KINDS[record["provider"]["kind"]].billed
    cost = f", {record['cost_per_hour_usd'] or 0:g} USD/h" if billed else ""
    return f"{record['name']}: {', '.join(record['nodes'])} and its Ray head{cost}"


def labelled_nodes(arguments: Arguments) -> Sequence[Node]:
    """Nodes with this user's label at the provider that the overrides name.

    They are shown, never deleted: a run of this user on another machine looks just the same.
    """
    spec, _ = load(arguments, workload=False)
    provider = find_provider(spec.provider)
    if provider is None:
        return []
    with contextlib.closing(provider):
        return provider.list({LABEL_OWNER: owner()})
