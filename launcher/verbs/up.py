"""`up`: slices and cluster without a job."""

from __future__ import annotations

from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, session


def up(arguments: Arguments) -> int:
    from launcher import cluster, provision

    spec, plan = load(arguments, workload=False)
    with session(spec, plan) as current:
        current.tell("plan", headline(spec, plan))
        with provision.acquired(current, stays=True) as joined:
            view = cluster.view()
            address = joined.head.gcs_address
    print(f"{spec.name} is up: Ray at {address}, {view['nodes']} nodes")
    for name, amount in sorted(view["resources"].items()):
        if name.startswith("TPU") or name in {request.node_id for request in plan.requests}:
            print(f"  {name}: {amount:g}")
    print(f"run on it:    python -m launcher run name={spec.name} …")
    print(f"take it down: python -m launcher down {spec.name}")
    return 0
