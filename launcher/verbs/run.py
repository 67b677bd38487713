"""`run`: provision, run, supervise, tear down."""

from __future__ import annotations

from dataclasses import replace

from launcher.errors import ConfigError
from launcher.invocation import session, supervised
from launcher.record import runs_folder
from launcher.sweep import folder as folders
from launcher.verbs import Arguments
from launcher.verbs.loading import load, scan


def run(arguments: Arguments) -> int:
    from launcher import extras, git, source

    spec, plan = load(arguments)
    if spec.multirun and not arguments.hydra:
        from launcher.passthrough import through_hydra

        return through_hydra(replace(arguments, hydra=("--multirun",)), run)
    if folders.read(runs_folder() / spec.name):
        raise ConfigError(f"{spec.name} is the name of a sweep; choose another name=")
    extras.require(spec)
    manifest = scan(spec)
    if spec.cluster.coordinator != "here":
        from launcher.remote.launch import launch

        return launch("run", spec, plan, manifest)
    with session(spec, plan) as current:
        code = supervised(current, manifest, source.describe(manifest), git.state(manifest.root))
    if arguments.hydra:
        current.interrupt.check()  # no signal ends a deletion: it ends the trials that follow
    return code
