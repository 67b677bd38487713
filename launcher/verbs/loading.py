"""From a command line to a spec, a plan and the files that travel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher import registry
from launcher.invocation import asker
from launcher.plan import Plan, make_plan
from launcher.spec import Spec
from launcher.verbs import Arguments

if TYPE_CHECKING:
    from launcher.source import Manifest


def load(arguments: Arguments, *, workload: bool = True) -> tuple[Spec, Plan]:
    from launcher.compose import compose

    spec = compose(
        arguments.overrides,
        config_dirs=arguments.config_dirs,
        cwd=Path.cwd(),
        require_workload=workload,
    )
    return spec, make_plan(spec, asker(spec))


def scan(spec: Spec) -> Manifest:
    """What travels to the hosts; the workload's script must be among it."""
    from launcher import source

    workload = spec.workload
    assert workload is not None
    return source.scan(
        workload.working_dir,
        include=workload.include,
        exclude=(*workload.exclude, *own_files(workload.working_dir)),
        required=workload.target if workload.kind == "script" else (),
    )


def own_files(folder: Path) -> list[str]:
    """The launcher's own home, should it lie in the folder that travels."""
    home = registry.home().resolve()
    inside = home.is_relative_to(folder.resolve()) and home != folder.resolve()
    return [f"/{home.relative_to(folder.resolve())}/"] if inside else []
