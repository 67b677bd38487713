"""`up`: slices and cluster without a job."""

from __future__ import annotations

from launcher.invocation import brought_up, session
from launcher.verbs import Arguments
from launcher.verbs.loading import load


def up(arguments: Arguments) -> int:
    from launcher import extras

    spec, plan = load(arguments, workload=False)
    extras.require(spec)
    if spec.cluster.coordinator != "here":
        from launcher.remote.launch import launch

        return launch("up", spec, plan, None)
    with session(spec, plan) as current:
        lines = list(brought_up(current))
    print("\n".join(lines))
    return 0
