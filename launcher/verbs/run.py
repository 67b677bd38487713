"""`run`: provision, run, supervise, tear down."""

from __future__ import annotations

from launcher.invocation import session, supervised
from launcher.verbs import Arguments
from launcher.verbs.loading import load, scan


def run(arguments: Arguments) -> int:
    from launcher import extras, git, source

    spec, plan = load(arguments)
    extras.require(spec)
    manifest = scan(spec)
    if spec.cluster.coordinator != "here":
        from launcher.remote.launch import launch

        return launch("run", spec, plan, manifest)
    with session(spec, plan) as current:
        return supervised(current, manifest, source.describe(manifest), git.state(manifest.root))
