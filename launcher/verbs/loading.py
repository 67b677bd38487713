"""From a command line to a session: what `run`, `plan` and `up` have in common."""

from __future__ import annotations

import contextlib
import getpass
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import registry
from launcher.errors import ConfigError
from launcher.plan import Plan, make_plan
from launcher.providers import KINDS
from launcher.requests import Identity
from launcher.spec import Spec
from launcher.verbs import Arguments

if TYPE_CHECKING:
    from launcher.record import RunFolder
    from launcher.session import Session
    from launcher.source import Manifest


def owner() -> str:
    """This user as a label value: `[a-z0-9_-]`, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:63]


def load(arguments: Arguments, *, workload: bool = True) -> tuple[Spec, Plan]:
    from launcher.compose import compose

    spec = compose(
        arguments.overrides,
        config_dirs=arguments.config_dirs,
        cwd=Path.cwd(),
        require_workload=workload,
    )
    project = spec.provider.project or KINDS[spec.provider.kind].project
    return spec, make_plan(spec, Identity(owner(), registry.machine_id(), project))


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


@contextlib.contextmanager
def session(spec: Spec, plan: Plan) -> Iterator[Session]:
    """Hold the run's lock, open its folder, heed signals."""
    import yaml

    from launcher.interrupt import Interrupt
    from launcher.record import runs_folder
    from launcher.screen import Screen
    from launcher.session import LazyProvider, Session

    taken = f"run {spec.name} is going on in another process; choose another name="
    path = runs_folder() / spec.name
    with registry.lock(f"run-{spec.name}", taken), run_folder(path) as folder:
        screen = Screen()
        interrupt = Interrupt(
            lambda name: screen.phase(
                "stopping", f"{name}: ends processes, deletes slices; once more to leave at once"
            )
        )
        interrupt.install()
        folder.write_text("spec.yaml", yaml.safe_dump(dict(spec.config), sort_keys=False))
        folder.write("plan.json", plan.to_json())
        asked = [request for choice in plan.choices for request in choice.requests]
        nodes = sorted({id for request in asked for id in (request.id, *request.nodes)})
        try:
            with contextlib.closing(LazyProvider(spec.provider, nodes)) as provider:
                yield Session(spec, plan, owner(), folder, screen, interrupt, provider)
        finally:
            interrupt.uninstall()


def run_folder(path: Path) -> RunFolder:
    """The run's folder, opened. Raises ConfigError when it cannot be written."""
    from launcher.record import RunFolder

    try:
        return RunFolder(path)
    except OSError as error:
        raise ConfigError(f"the run folder cannot be used: {error}") from error


def headline(spec: Spec, plan: Plan) -> str:
    kind = KINDS[spec.provider.kind]
    first = plan.first
    offer = first.offer
    more = f", and {len(plan.choices) - 1} other choices" if len(plan.choices) > 1 else ""
    place = f"{kind.place}, {offer.capacity} in {offer.zone}" if kind.billed else kind.place
    if spec.cluster.coordinator not in ("here", "vm", "host0"):
        place = f"of the Ray cluster at {spec.cluster.coordinator}"
    cost = first.cost_per_hour_usd
    price = f", {cost:.2f} USD/h" if cost else ", price unknown"
    hosts = "1 host" if first.hosts == 1 else f"{first.hosts} hosts"
    chips = "1 chip" if first.chips == 1 else f"{first.chips} chips"
    slices = f"{spec.mode.slices} x {offer.accelerator.accelerator_type}"
    return f"{spec.name}: {slices}, {hosts}, {chips}{price if kind.billed else ''} ({place}){more}"
