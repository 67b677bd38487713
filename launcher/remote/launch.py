"""`run` and `up` with a coordinator elsewhere: a job is submitted, and followed to its end."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path

from launcher import git, invocation, registry, source
from launcher.attempts.budget import Budget
from launcher.errors import (
    ClusterError,
    ConfigError,
    Interrupted,
    PreemptionBudgetSpent,
    ProvisioningError,
)
from launcher.interrupt import Interrupt, interruptible
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.plan import Plan
from launcher.providers import KINDS, Pause, project_of
from launcher.providers.states import State
from launcher.provisioning import on_record, removal
from launcher.provisioning.requests import Identity
from launcher.record import Progress, last_step, runs_folder
from launcher.remote import package, sites
from launcher.remote.ending import delete_from_here, end
from launcher.remote.follow import End, Lost
from launcher.remote.package import Job
from launcher.remote.standing import (
    Record,
    caught_up,
    follower,
    reached,
    recorded_provider,
    settle,
    vanished,
)
from launcher.screen import Screen
from launcher.session import Session
from launcher.source import Manifest
from launcher.spec import Spec

GROWING = ("events.jsonl", "metrics.jsonl")  # files that all attempts of a run share
AWAY_SECONDS = 60.0  # how long a coordinator that is followed may not answer
STEADY_SECONDS = 5.0  # a connection that lasted longer was a real one


def launch(verb: str, spec: Spec, plan: Plan, manifest: Manifest | None) -> int:
    """Submit the job and follow it; the exit code is that of a local run.

    A job of this name that goes on is followed; nothing new is submitted then. When a slice is lost
    that the coordinator was on, it is acquired anew, and the job submitted again.
    """
    spec = anchored(spec)
    on_slice = spec.cluster.coordinator == "host0"
    if on_slice and (verb != "run" or spec.keep):
        raise ConfigError("coordinator=host0 ends with its slice: no keep=true and no up; take vm")
    started = None
    follows = goes_on(spec.name)
    if follows:
        print(f"{spec.name} goes on at its coordinator; this follows it", file=sys.stderr)
    while True:
        if not follows:
            started = submitted(verb, spec, plan, manifest, started)
        try:
            return attached(spec.name, started)
        except Lost as lost:
            if not on_slice:
                raise
            charge(spec, lost)
            follows = False


def anchored(spec: Spec) -> Spec:
    """The spec with what depends on this machine made explicit."""
    provider, workload = spec.provider, spec.workload
    if provider.kind == "local":
        from launcher.providers.local import state_folder

        folder = str(state_folder(provider).absolute())
        provider = replace(provider, options={**provider.options, "state_dir": folder})
    if workload and workload.checkpoint_dir is None and KINDS[provider.kind].shares_disk:
        folder = str(runs_folder() / spec.name / "checkpoints")
        workload = replace(workload, checkpoint_dir=folder)
    return replace(spec, provider=provider, workload=workload)


def goes_on(name: str) -> bool:
    """Whether a job of this run is under way. Raises ConfigError when the run is a local one, or
    is just being launched by another process.
    """
    record = registry.record(name)
    if record is None:
        return False
    if not record.get("remote"):
        raise ConfigError(on_record.taken(name, "with its Ray head on this machine"))
    if registry.is_alive(record["supervisor"]):
        raise ConfigError(invocation.going_on(name))
    try:
        follows = caught_up(record) is None
    except Lost:
        return False
    except ClusterError as error:
        if slice_is_lost(record) or vanished(record):
            print(f"{name} has lost its coordinator, and begins anew", file=sys.stderr)
            delete_from_here(record)
            return False
        hint = f"`python -m launcher down {name}` gives the run up"
        raise ClusterError(f"{error}\n{name} may go on there; {hint}") from error
    if follows:  # also one that a command has tried to end
        registry.update(name, remote={**record["remote"], "ending": False})
    return follows


def submitted(
    verb: str, spec: Spec, plan: Plan, manifest: Manifest | None, started: float | None
) -> float:
    """Submit, or leave everything as it was; when the screen's clock was started."""
    earlier = registry.record(spec.name)
    with invocation.session(spec, plan) as current:
        current.screen.started = started or current.screen.started
        try:
            submit(verb, current, manifest)
        except BaseException:
            restore(spec.name, earlier)
            raise
        return current.screen.started


def restore(name: str, earlier: Record | None) -> None:
    """A submission came to nothing: what was on record before is so again."""
    record = registry.record(name)
    if record is None or (record.get("remote") or {}).get("submitted"):
        return
    if record["resources"]:  # of host0
        delete_from_here(record)
    if earlier:
        registry.write_record(name, earlier)
    else:
        registry.forget(name)


def submit(verb: str, session: Session, manifest: Manifest | None) -> None:
    """Coordinator, then the job on it. Both are on record before they exist."""
    name, site = session.spec.name, sites.of_spec(session.spec, session)
    job = f"{name}-{secrets.token_hex(4)}"
    earlier = registry.record(name) or {}
    if earlier.get("resources"):  # of host0: a slice that is lost, or whose launcher was
        removal.delete_resources(earlier, session.provider.get(), session.interrupt.pause)
    intent = on_record.intent(session, "", bool(earlier.get("stays")))
    budget = (earlier.get("remote") or {}).get("budget")
    remote = {"job": job, "verb": verb, "submitted": False, "budget": budget}
    intent |= {"remote": {**site.record, **remote}}  # until it is submitted, this process is it
    registry.write_record(name, intent)
    site.prepare(session)
    with site.reached(session.interrupt.pause) as jobs:
        session.screen.wait("submitting the job")
        session.tell("submitted", f"job {job}")
        made = make_job(verb, job, session, manifest)
        package.send(jobs, made, manifest, session.interrupt.pause)
        registry.update(name, supervisor=None, remote={**site.record, **remote, "submitted": True})
        session.screen.wait("")


def make_job(verb: str, job: str, session: Session, manifest: Manifest | None) -> Job:
    files = manifest.files if manifest else ()
    folder = session.folder
    project = project_of(session.spec.provider)
    return Job(
        id=job,
        verb=verb,
        name=session.spec.name,
        folder=folder.path,
        identity=Identity(session.owner, registry.machine_id(), project),
        spec=session.spec,
        files=tuple((str(e.path), e.size, e.mode, e.link) for e in files),
        about_code=source.describe(manifest) if manifest else "",
        git=git.state(manifest.root) if manifest else {},
        progress=Progress(folder.sequence, folder.attempt),
        sizes=sizes(folder.path),
    )


def sizes(folder: Path) -> dict[str, int]:
    found = ((name, folder / name) for name in GROWING)
    return {name: path.stat().st_size for name, path in found if path.exists()}


def charge(spec: Spec, lost: Lost) -> None:
    """A slice that took its supervisor along is charged here, by the same rules: the budget is in
    the record of the run. Raises PreemptionBudgetSpent, with nothing left up, and Interrupted when
    the run was ended by another command.
    """
    record = registry.record(spec.name)
    if record is None or record["remote"].get("ending"):
        raise Interrupted(f"{spec.name} was ended by another command") from lost
    budget = Budget(spec.retry)
    if found := record["remote"].get("budget"):
        budget.restore(found)
    why = str(lost).splitlines()[0]
    verdict = Verdict(Outcome.PREEMPTED, why, retriable=True)
    spent = budget.charge(verdict, last_step(Path(record["folder"])))
    registry.update(spec.name, remote={**record["remote"], "budget": budget.to_json()})
    count = f"{budget.spent[verdict.budget]} of {spec.retry.max_preemptions} preemptions"
    print(f"{why} ({count})", file=sys.stderr)
    if spent:
        with interruptible() as pause:
            end(spec.name, record, print, pause, for_good={spec.name})
        raise PreemptionBudgetSpent(f"{why}: {spent}") from lost


def attached(name: str, started: float | None = None) -> int:
    """Show a job as a local run would be shown, until it ends; Ctrl-C leaves it running."""
    record = registry.record(name)
    assert record is not None  # it has been submitted
    screen = Screen(started)
    interrupt = Interrupt(lambda _: None)
    interrupt.install()
    try:
        ended = followed(record, screen, interrupt.pause)
    except Interrupted as stopped:
        screen.finish()
        if record["resources"]:  # of host0: nobody else would delete them
            print(f"{stopped}: stops the job, and deletes the slice", file=sys.stderr)
            with interruptible() as pause:
                end(name, record, print, pause, for_good={name})
            return stopped.exit_code
        print(f"{stopped}: detached from {name}, which goes on; {how_to(name)}", file=sys.stderr)
        return stopped.exit_code
    finally:
        screen.wait("")
        interrupt.uninstall()
    settle(record, ended)
    if record["resources"]:
        screen.wait(f"deleting {name}")
        with interruptible() as pause:
            delete_from_here(record, pause)
        registry.forget(name)
        screen.phase("released", f"nothing is left of {name}")
        screen.wait("")
    return ended.code


def how_to(name: str) -> str:
    return f"python -m launcher logs -f {name}; python -m launcher cancel {name}"


def followed(record: Record, screen: Screen, pause: Pause) -> End:
    """The end of a job. A connection that breaks is made anew; raises Lost, and ClusterError when
    the coordinator does not answer for a while.
    """
    last = began = time.monotonic()
    while True:
        try:
            with reached(record, pause) as jobs:
                began = time.monotonic()
                return follower(jobs, record, screen).follow(pause)
        except Lost:
            raise
        except ClusterError as error:
            if record["resources"] and slice_is_lost(record):
                raise Lost(
                    f"{record['name']} has lost its slice, and the Ray head on it"
                ) from error
            now = time.monotonic()
            if now - began > STEADY_SECONDS and began > last:
                last = now  # it had been followed for a while
            if now - last > AWAY_SECONDS:
                raise ClusterError(f"{error}{left_behind(record)}") from error
            pause(1.0)


def left_behind(record: Record) -> str:
    """What goes on, and costs, when a coordinator on a slice of ours is given up."""
    if not record["resources"]:
        return ""
    names, down = ", ".join(record["resources"]), f"`python -m launcher down {record['name']}`"
    return f"\n{names} may go on: {down} deletes it"


def slice_is_lost(record: Record) -> bool:
    """Whether the API says so; where it cannot be asked, nothing is known to be lost."""
    try:
        with recorded_provider(record) as provider:
            found = [provider.get().get(name) for name in record["nodes"]]
    except ProvisioningError:
        return False
    return any(node is None or node.state in (State.DEAD, State.DELETING) for node in found)
