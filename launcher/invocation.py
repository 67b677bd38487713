"""What a verb does with one run, on this machine or as a job of its coordinator."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import registry, user
from launcher.errors import ConfigError
from launcher.plan import Plan
from launcher.providers import KINDS, project_of
from launcher.provisioning.requests import Identity
from launcher.spec import Spec
from launcher.words import counted

if TYPE_CHECKING:
    from launcher.record import RunFolder
    from launcher.screen import Screen
    from launcher.session import Session
    from launcher.source import Manifest


def owner() -> str:
    """This user as a label value: `[a-z0-9_-]`, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]", "-", user.name().lower())[:63]


def asker(spec: Spec) -> Identity:
    """Who asks for the slices of a spec."""
    return Identity(owner(), registry.machine_id(), project_of(spec.provider))


def ids(plan: Plan) -> list[str]:
    """Of all that any choice of the plan may make: emulated faults strike no others."""
    asked = [request for choice in plan.choices for request in choice.requests]
    return sorted({id for request in asked for id in (request.id, *request.nodes)})


def going_on(name: str) -> str:
    return f"run {name} is going on in another process; choose another name="


@contextlib.contextmanager
def session(spec: Spec, plan: Plan, screen: Screen | None = None) -> Iterator[Session]:
    """Hold the run's lock, open its folder, heed signals."""
    from launcher.attempts.under_way import OnRecord
    from launcher.interrupt import Interrupt
    from launcher.provisioning import provision
    from launcher.record import runs_folder
    from launcher.screen import Screen
    from launcher.session import LazyProvider, Session, Setbacks

    taken = going_on(spec.name)
    path = runs_folder() / spec.name
    with registry.lock(f"run-{spec.name}", taken), run_folder(path) as folder:
        shown = screen or Screen()
        interrupt = Interrupt(
            lambda name: shown.phase(
                "stopping", f"{name}: ends processes, deletes slices; once more to leave at once"
            )
        )
        interrupt.install()
        try:
            with contextlib.closing(LazyProvider(spec.provider, ids(plan))) as provider:
                about, lost = OnRecord(spec.name), Setbacks(spec.retry.max_preemptions)
                own = (owner(), folder, shown, interrupt, provider, about, lost)
                current = Session(spec, plan, *own)
                provision.require_same(current)
                put_down(current)
                yield current
        finally:
            interrupt.uninstall()


def put_down(session: Session) -> None:
    """What is asked for, in the run folder. Raises ConfigError when it cannot be written."""
    import yaml

    folder, shown = session.folder, session.screen
    folder.write_text("spec.yaml", yaml.safe_dump(dict(session.spec.config), sort_keys=False))
    folder.write("plan.json", session.plan.to_json())
    if folder.trouble:
        raise ConfigError(f"the run folder {folder.trouble}")
    folder.complain = lambda text: shown.phase("record", text)


def run_folder(path: Path) -> RunFolder:
    """The run's folder, opened. Raises ConfigError when it cannot be written."""
    from launcher.record import RunFolder

    try:
        return RunFolder(path)
    except OSError as error:
        raise ConfigError(f"the run folder cannot be used: {error}") from error


def supervised(
    current: Session, manifest: Manifest, about_code: str, git_state: Mapping[str, Any]
) -> int:
    """Run to the end, wherever the session is; the exit code."""
    from launcher.attempts import supervise

    current.folder.begin()
    announce(current)
    current.tell("code", about_code.removeprefix("code: "))
    if attempt := current.folder.attempt:
        name = current.spec.name
        text = f"{name} ran before, up to attempt {attempt - 1}: same folder, same checkpoints"
        current.tell("resumes", text)
    current.folder.write("source.json", git_state)
    result = supervise.run(current, manifest)
    return int(result["exit_code"])


def brought_up(current: Session) -> Iterator[str]:
    """Bring it up, wherever the session is; what there is to say about it."""
    from launcher import cluster
    from launcher.provisioning import provision

    announce(current)
    with provision.acquired(current, stays=True) as joined:
        nodes = joined.choice.nodes
        view = cluster.view()
        head = joined.head
    name = current.spec.name
    yield f"{name} is up: Ray at {head.gcs_address}, {view['nodes']} nodes"
    for resource, amount in sorted(view["resources"].items()):
        if resource.startswith("TPU") or resource in nodes:
            yield f"  {resource}: {amount:g}"
    same = [word for word in current.spec.overrides if not word.startswith("name=")]
    again = shlex.join([f"name={name}", *same])
    if head.token_path is not None:
        yield f"dashboard:    http://{head.dashboard}, with the token in {head.token_file}"
    yield f"run on it:    python -m launcher run {again} workload=…"
    yield f"take it down: python -m launcher down {name}"


def announce(session: Session) -> None:
    """What is going to be done, and what to know about it."""
    text = headline(session.spec, session.plan)
    session.tell("plan", text, supervisor=registry.this_process())
    for note in session.spec.notes:
        session.tell("note", note)


def headline(spec: Spec, plan: Plan) -> str:
    kind = KINDS[spec.provider.kind]
    first = plan.first
    offer = first.offer
    place = f"{kind.place}, {offer.capacity} in {offer.zone}" if kind.billed else kind.place
    if spec.cluster.coordinator not in ("here", "vm", "host0"):
        place = f"of the Ray cluster at {spec.cluster.coordinator}"
    cost = first.cost_per_hour_usd
    price = f", {cost:.2f} USD/h" if cost else ", price unknown"
    hosts = counted(first.hosts, "host")
    chips = "1 chip" if first.chips == 1 else f"{first.chips} chips"
    slices = f"{spec.mode.slices} x {offer.accelerator.accelerator_type}"
    cost_too = price if kind.billed else ""
    return f"{spec.name}: {slices}, {hosts}, {chips}{cost_too} ({place}){plan.and_more}"
