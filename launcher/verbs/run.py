"""`run`: provision, run, supervise, tear down."""

from __future__ import annotations

from launcher import registry
from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, scan, session


def run(arguments: Arguments) -> int:
    from launcher import git, source, supervise

    spec, plan = load(arguments)
    manifest = scan(spec)
    with session(spec, plan) as current:
        current.folder.begin()
        current.tell("plan", headline(spec, plan), supervisor=registry.this_process())
        current.tell("code", source.describe(manifest).removeprefix("code: "))
        if attempt := current.folder.attempt:
            text = f"{spec.name} ran before: attempt {attempt} has the same folder and checkpoints"
            current.tell("resumes", text)
        current.folder.write("source.json", git.state(manifest.root))
        result = supervise.run(current, manifest)
    return int(result["exit_code"])
