"""`up`: slices and cluster without a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, session

if TYPE_CHECKING:
    from launcher.session import Session


def up(arguments: Arguments) -> int:
    spec, plan = load(arguments, workload=False)
    if spec.cluster.coordinator != "here":
        from launcher.remote import runs

        return runs.launch("up", spec, plan, None)
    with session(spec, plan) as current:
        lines = list(brought_up(current))
    print("\n".join(lines))
    return 0


def brought_up(current: Session) -> Iterator[str]:
    """Bring it up, wherever the session is; what there is to say about it."""
    from launcher import cluster, provision

    current.tell("plan", headline(current.spec, current.plan))
    with provision.acquired(current, stays=True) as joined:
        nodes = joined.choice.nodes
        view = cluster.view()
        address = joined.head.gcs_address
    name = current.spec.name
    yield f"{name} is up: Ray at {address}, {view['nodes']} nodes"
    for resource, amount in sorted(view["resources"].items()):
        if resource.startswith("TPU") or resource in nodes:
            yield f"  {resource}: {amount:g}"
    yield f"run on it:    python -m launcher run name={name} …"
    yield f"take it down: python -m launcher down {name}"
