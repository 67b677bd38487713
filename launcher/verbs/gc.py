"""`gc`: find what dead runs left, and delete it with `--yes`."""

from __future__ import annotations

from launcher import registry
from launcher.verbs import Arguments
from launcher.verbs.down import end


def gc(arguments: Arguments) -> int:
    """Find what dead runs left; delete it with --yes."""
    from launcher import coordinator

    dead = [
        r for r in registry.records() if not r["stays"] and not registry.is_alive(r["supervisor"])
    ]
    used = {record["head"] for record in registry.records()}
    heads = [head for head in coordinator.heads() if head.id not in used]
    for record in dead:
        cost = record["cost_per_hour_usd"] if record["provider"]["kind"] != "local" else 0
        print(
            f"{record['name']}: {', '.join(record['nodes'])} and its Ray head, {cost or 0:g} USD/h"
        )
    for head in heads:
        print(f"a Ray head that nobody uses: {head.id} at {head.gcs_address}")
    if not dead and not heads:
        print("nothing is left by dead runs")
    elif "--yes" not in arguments.flags:
        print("delete all of it with: python -m launcher gc --yes")
        return 0
    for record in dead:
        end(record["name"])
    for head in heads:
        coordinator.stop_head(head)
    return 0
