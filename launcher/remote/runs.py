"""What the verbs do with runs that are supervised elsewhere.

The record of such a run has `remote`: its coordinator, the id of its job, and whether the job was
submitted. Its run folder here is the mirror of the coordinator's.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import git, registry, removal, slices, source
from launcher.errors import ClusterError, ConfigError, Interrupted, PreemptionBudgetSpent
from launcher.interrupt import Interrupt
from launcher.plan import Plan
from launcher.providers import KINDS, Pause
from launcher.providers.states import State
from launcher.record import Progress
from launcher.remote import package, sites
from launcher.remote.follow import End, Follower, Lost
from launcher.remote.jobs import Jobs
from launcher.remote.package import Job
from launcher.requests import Identity
from launcher.screen import Screen
from launcher.session import LazyProvider, Session
from launcher.source import Manifest
from launcher.spec import ProviderSpec, Spec

GROWING = ("events.jsonl", "metrics.jsonl")  # files that all attempts of a run share
STOP_MARGIN = 120.0
AWAY_SECONDS = 60.0  # how long a coordinator that is followed may not answer
Record = Mapping[str, Any]


def launch(verb: str, spec: Spec, plan: Plan, manifest: Manifest | None) -> int:
    """Submit the job and follow it; the exit code is that of a local run.

    A job of this name that goes on is followed; nothing new is submitted then.
    """
    from launcher.verbs.loading import session

    spec = anchored(spec)
    if spec.cluster.coordinator == "host0" and (verb != "run" or spec.keep):
        raise ConfigError("coordinator=host0 ends with its slice: no keep=true and no up; take vm")
    if goes_on(spec.name):
        print(f"{spec.name} goes on at its coordinator; this follows it", file=sys.stderr)
        return attached(spec.name)
    losses, started = 0, None
    while True:
        earlier = registry.record(spec.name)
        with session(spec, plan) as current:
            current.screen.started = started or current.screen.started
            try:
                submit(verb, current, manifest)
            except BaseException:
                restore(spec.name, earlier)
                raise
            started = current.screen.started
        try:
            return attached(spec.name, started)
        except Lost as lost:
            losses += 1
            if spec.cluster.coordinator != "host0":
                raise
            print(
                f"{str(lost).splitlines()[0]} ({losses} of {spec.retry.max_preemptions})",
                file=sys.stderr,
            )
            if losses > spec.retry.max_preemptions:
                end(spec.name, registry.record(spec.name) or {}, for_good=True)
                raise PreemptionBudgetSpent(
                    f"lost its slice {losses} times, retry.max_preemptions is"
                    f" {spec.retry.max_preemptions}"
                ) from lost


def anchored(spec: Spec) -> Spec:
    """The spec with what depends on this machine made explicit."""
    provider, workload = spec.provider, spec.workload
    if provider.kind == "local":
        from launcher.providers.local import state_folder

        folder = str(state_folder(provider).absolute())
        provider = replace(provider, options={**provider.options, "state_dir": folder})
    if workload and workload.checkpoint_dir is None and KINDS[provider.kind].shares_disk:
        folder = str(Path.cwd() / "runs" / spec.name / "checkpoints")
        workload = replace(workload, checkpoint_dir=folder)
    return replace(spec, provider=provider, workload=workload)


def goes_on(name: str) -> bool:
    """Whether a job of this run is under way. Raises ConfigError when the run is a local one."""
    record = registry.record(name)
    if record is None:
        return False
    if not record.get("remote"):
        raise ConfigError(slices.taken(name, "with its Ray head on this machine"))
    try:
        return caught_up(record) is None
    except Lost:
        return False
    except ClusterError as error:
        hint = f"`python -m launcher down {name}` forgets the run"
        raise ClusterError(f"{error}\n{name} may go on there; {hint}") from error


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
        removal.delete_resources(earlier, session.provider.get())
    intent = slices.intent(session, "", bool(earlier.get("stays")))
    remote = {"job": job, "verb": verb, "submitted": False}
    intent |= {"supervisor": None, "remote": {**site.record, **remote}}
    registry.write_record(name, intent)
    site.prepare(session)
    with site.reached(session.interrupt.pause) as jobs:
        session.screen.wait("submitting the job")
        session.tell("submitted", f"job {job}")
        send(jobs, make_job(verb, job, session, manifest), manifest, session.interrupt.pause)
        registry.update(name, remote={**site.record, **remote, "submitted": True})
        session.screen.wait("")


def make_job(verb: str, job: str, session: Session, manifest: Manifest | None) -> Job:
    files = manifest.files if manifest else ()
    folder = session.folder
    project = session.spec.provider.project or KINDS[session.spec.provider.kind].project
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


def send(jobs: Jobs, job: Job, manifest: Manifest | None, pause: Pause) -> None:
    """Ray's own limit from SIGTERM to SIGKILL is 3 s: a supervisor deletes its slices meanwhile."""
    grace = job.spec.retry.grace if job.spec else 0.0
    patience = int(grace + removal.DELETE_SECONDS + STOP_MARGIN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{job.id}.zip"
        package.write(path, job, manifest)
        jobs.submit(job.id, path, {"RAY_JOB_STOP_WAIT_TIME_S": str(patience)}, pause)


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
            interrupt.uninstall()
            print(f"{stopped}: stops the job, and deletes the slice", file=sys.stderr)
            end(name, record, for_good=True)
            return stopped.exit_code
        print(f"{stopped}: detached from {name}, which goes on; {how_to(name)}", file=sys.stderr)
        return stopped.exit_code
    finally:
        screen.wait("")
        interrupt.uninstall()
    settle(record, ended)
    if record["resources"]:
        delete_from_here(record)
        registry.forget(name)
    return ended.code


def followed(record: Record, screen: Screen, pause: Pause) -> End:
    """The end of a job. A connection that breaks is made anew; raises Lost, and ClusterError when
    the coordinator does not answer for a while.
    """
    last = time.monotonic()
    while True:
        try:
            with reached(record, pause) as jobs:
                last = time.monotonic()
                return follower(jobs, record, screen).follow(pause)
        except Lost:
            raise
        except ClusterError as error:
            if record["resources"] and slice_is_lost(record):
                raise Lost(
                    f"{record['name']} has lost its slice, and the Ray head on it"
                ) from error
            if time.monotonic() - last > AWAY_SECONDS:
                raise
            pause(1.0)


def slice_is_lost(record: Record) -> bool:
    with provider_of(record) as provider:
        found = [provider.get().get(name) for name in record["nodes"]]
    return any(node is None or node.state in (State.DEAD, State.DELETING) for node in found)


def how_to(name: str) -> str:
    return f"python -m launcher logs -f {name}; python -m launcher cancel {name}"


def follower(jobs: Jobs, record: Record, screen: Screen | None) -> Follower:
    job, folder = record["remote"]["job"], Path(record["folder"])
    return Follower(jobs, job, record["name"], folder, screen)


@contextlib.contextmanager
def reached(record: Record, pause: Pause) -> Iterator[Jobs]:
    with sites.of_record(record["remote"]).reached(pause) as jobs:
        yield jobs


def caught_up(record: Record) -> End | None:
    """Bring the mirror up to now; the end of the job if it has ended, which is then settled.

    Raises Lost, and ClusterError when the coordinator cannot be reached.
    """
    try:
        with reached(record, time.sleep) as jobs:
            ended = follower(jobs, record, None).catch_up()
    except Lost:
        raise
    except ClusterError as error:
        if record["remote"]["submitted"]:
            raise
        raise Lost(f"{record['name']} was not submitted; the same command begins anew") from error
    if ended:
        settle(record, ended)
    return ended


def settle(record: Record, end: End) -> None:
    """After a job's last word: a run of which nothing is up is forgotten."""
    name = record["name"]
    if end.up or record["resources"]:
        remote = {**record["remote"], "ended": True}
        registry.write_record(name, {**record, "stays": end.up, "remote": remote})
    else:
        registry.forget(name)


def standing(record: Record) -> str:
    """For `status`, once it has caught up: what is the matter with the run, or nothing."""
    try:
        caught_up(record)
    except Lost:
        return "has lost its coordinator (the same command adopts or removes what is left)"
    except ClusterError as error:
        if vanished(record):
            return "has lost its coordinator, which does not run (see down)"
        return f"its coordinator does not answer ({str(error).splitlines()[0]})"
    return ""


def feed(record: Record, leaving: threading.Event) -> None:
    """For `logs -f`: keep the mirror growing until the job has ended, or `leaving` is set."""

    def pause(seconds: float) -> None:
        if leaving.wait(seconds):
            raise Interrupted("left")

    with contextlib.suppress(Interrupted), reached(record, pause) as jobs:
        while True:
            try:
                settle(record, follower(jobs, record, None).follow(pause))
                return
            except ConfigError:  # another process follows, and the mirror grows anyway
                pause(0.5)
                if registry.record(record["name"]) != record:
                    return


def is_lost(record: Record) -> bool:
    """For `gc`: whether what the run has left is looked after by nobody."""
    try:
        if caught_up(record) and record["resources"]:
            return True
    except Lost:
        return True
    except ClusterError:
        return vanished(record)
    return False


def nodes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Full names of what the events say was asked for, and not released since."""
    found: dict[str, None] = {}
    for event in events:
        if event["kind"] == "released":
            found.clear()
        elif event["kind"] == "provisioning":
            found[event["node"]] = None
    return list(found)


def end(name: str, record: Record, *, for_good: bool) -> None:
    """Stop the job of a run, and remove what is left of the run.

    A cluster that exists and does not answer holds nothing that is billed for the run: `for_good`
    forgets it then. Raises ClusterError when a coordinator does not answer that may.
    """
    try:
        with reached(record, time.sleep) as jobs:
            if stopped(jobs, record) is None and record["remote"].get("vm"):
                take_down(jobs, record)
    except ClusterError as error:
        first = str(error).splitlines()[0]
        if record["resources"] or vanished(record):
            print(f"{name}: {first}; its slices are deleted from here")
            delete_from_here(record)
        elif for_good and not record["remote"].get("vm"):
            print(f"{name}: {first}; if the job still runs there, it goes on")
        else:
            raise
    else:
        if record["resources"]:
            delete_from_here(record)
    registry.forget(name)
    print(f"{name}: nothing is left")


def stopped(jobs: Jobs, record: Record) -> End | None:
    """The end of a job that has nothing up, after it was told to leave if need be; None if the
    job cannot be trusted to have cleaned up.
    """
    job = record["remote"]["job"]
    state = jobs.state(job)
    if state and not state.ended:
        jobs.stop(job)
        late = time.monotonic() + removal.DELETE_SECONDS + STOP_MARGIN
        while (state := jobs.state(job)) and not state.ended and time.monotonic() < late:
            time.sleep(0.2)
    try:
        found = follower(jobs, record, None).catch_up()
    except Lost:
        return None
    return found if found and not found.up else None


def take_down(jobs: Jobs, record: Record) -> None:
    """By a job on the coordinator, whose record of the run knows what there is."""
    name, folder = record["name"], Path(record["folder"])
    project = record["provider"]["project"] or KINDS[record["provider"]["kind"]].project
    identity = Identity(record["owner"], registry.machine_id(), project)
    job_id = f"{name}-down-{secrets.token_hex(4)}"
    job = Job(job_id, "down", name, folder, identity, None, (), "", {}, Progress(), {})
    send(jobs, job, None, time.sleep)
    with tempfile.TemporaryDirectory() as scratch:
        watcher = Follower(jobs, job_id, f"{name}-down", Path(scratch), Screen())
        if (ended := watcher.follow(time.sleep)).code:
            raise ClusterError(f"{name} could not be taken down (exit code {ended.code})")


def vanished(record: Record) -> bool:
    """Whether the coordinator does not run any more, so that nobody else removes what is left."""
    from launcher.remote import vm

    key = record["remote"].get("vm")
    if key is None or (found := vm.find(key)) is None:
        return key is not None
    with provider_of(record) as provider:
        provider.get()
        instance = vm.Instances(found).get()
    return instance is None or instance.status not in ("PROVISIONING", "STAGING", "RUNNING")


def delete_from_here(record: Record) -> None:
    """All that carries the run's labels."""
    with provider_of(record) as provider:
        removal.delete_resources(record, provider.get())
    sites.forget_token(record["remote"])


def provider_of(record: Record) -> contextlib.closing[LazyProvider]:
    return contextlib.closing(LazyProvider(ProviderSpec(**record["provider"])))


def release(names: Iterable[str] | None) -> Iterator[str]:
    """Stop or delete the VMs that served these runs, or all, and serve none now; what was done."""
    from launcher.remote import vm

    wanted = None if names is None else set(names)
    for found in vm.on_record():
        if wanted is not None and not wanted & {found.name, *found.runs}:
            continue
        if users := vm.users_of(found):
            yield f"{found.title} stays: it serves {', '.join(users)}"
            continue
        with provider_of({"provider": found.provider}) as provider:
            provider.get()
            yield vm.take_down(found, time.sleep)
