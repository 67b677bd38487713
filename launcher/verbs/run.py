"""`run`: provision, run, supervise, tear down."""

from __future__ import annotations

from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, scan, session


def run(arguments: Arguments) -> int:
    from launcher import git, source, supervise

    spec, plan = load(arguments)
    manifest = scan(spec)
    with session(spec, plan) as current:
        current.folder.begin()
        current.tell("plan", headline(spec, plan))
        current.tell("code", source.describe(manifest))
        current.folder.write("source.json", git.state(manifest.root))
        result = supervise.run(current, manifest)
    return int(result["exit_code"])
