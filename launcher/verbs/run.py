"""`run`: provision, run, supervise, tear down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher import registry
from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, scan, session

if TYPE_CHECKING:
    from launcher.session import Session
    from launcher.source import Manifest


def run(arguments: Arguments) -> int:
    from launcher import git, source

    spec, plan = load(arguments)
    manifest = scan(spec)
    if spec.cluster.coordinator != "here":
        from launcher.remote import runs

        return runs.launch("run", spec, plan, manifest)
    with session(spec, plan) as current:
        return supervised(current, manifest, source.describe(manifest), git.state(manifest.root))


def supervised(
    current: Session, manifest: Manifest, about_code: str, git_state: Mapping[str, Any]
) -> int:
    """Run to the end, wherever the session is; the exit code."""
    from launcher import supervise

    current.folder.begin()
    current.tell("plan", headline(current.spec, current.plan), supervisor=registry.this_process())
    current.tell("code", about_code.removeprefix("code: "))
    if attempt := current.folder.attempt:
        name = current.spec.name
        text = f"{name} ran before, up to attempt {attempt - 1}: same folder, same checkpoints"
        current.tell("resumes", text)
    current.folder.write("source.json", git_state)
    result = supervise.run(current, manifest)
    return int(result["exit_code"])
