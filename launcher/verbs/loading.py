"""From a command line to a session: what `run`, `plan` and `up` have in common."""

from __future__ import annotations

import contextlib
import getpass
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import registry
from launcher.plan import Plan, make_plan
from launcher.providers import EMULATED_PROJECT
from launcher.spec import Spec
from launcher.verbs import Arguments

if TYPE_CHECKING:
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
    return spec, make_plan(spec, owner(), spec.provider.project or EMULATED_PROJECT)


def scan(spec: Spec) -> Manifest:
    """What travels to the hosts; the workload's script must be among it."""
    from launcher import source

    workload = spec.workload
    assert workload is not None
    return source.scan(
        workload.working_dir,
        include=workload.include,
        exclude=workload.exclude,
        required=workload.target if workload.kind == "script" else (),
    )


@contextlib.contextmanager
def session(spec: Spec, plan: Plan) -> Iterator[Session]:
    """Hold the run's lock, open its folder, heed signals."""
    import yaml

    from launcher.interrupt import Interrupt
    from launcher.record import RunFolder
    from launcher.screen import Screen
    from launcher.session import LazyProvider, Session

    taken = f"run {spec.name} is going on in another process; choose another name="
    path = Path.cwd() / "runs" / spec.name
    with registry.lock(f"run-{spec.name}", taken), RunFolder(path) as folder:
        interrupt, screen = Interrupt(), Screen()
        interrupt.on_first = lambda name: screen.phase(
            "stopping", f"{name}: ending processes and deleting slices; again to leave at once"
        )
        interrupt.install()
        folder.write_text("spec.yaml", yaml.safe_dump(dict(spec.config), sort_keys=False))
        folder.write("plan.json", plan.to_json())
        with contextlib.closing(LazyProvider(spec.provider)) as provider:
            yield Session(spec, plan, owner(), folder, screen, interrupt, provider)


def headline(spec: Spec, plan: Plan) -> str:
    where = {"local": "emulated on this machine; provider=google for real TPUs"}
    place = where.get(spec.provider.kind, f"{spec.provider.kind}, {spec.cluster.zones[0]}")
    cost = (
        f", {plan.cost_per_hour_usd:.2f} USD/h"
        if spec.provider.kind != "local" and plan.cost_per_hour_usd
        else ""
    )
    return (
        f"{spec.name}: {spec.mode.slices} x {spec.cluster.accelerator.accelerator_type},"
        f" {plan.hosts} hosts, {plan.chips} chips{cost} ({place})"
    )
