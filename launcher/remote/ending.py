"""Ends remote runs: by their own supervisors if these can be reached, from here if not."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from launcher import registry
from launcher.ending import Tell, every
from launcher.errors import ClusterError
from launcher.providers import Pause, project_of
from launcher.provisioning import removal
from launcher.provisioning.requests import Identity
from launcher.record import Progress
from launcher.remote import package, sites
from launcher.remote.follow import End, Follower, Lost
from launcher.remote.jobs import Jobs
from launcher.remote.package import Job
from launcher.remote.standing import Record, follower, reached, recorded_provider, vanished
from launcher.screen import Screen
from launcher.spec import ProviderSpec


def end(
    name: str,
    record: Record,
    tell: Tell,
    pause: Pause = time.sleep,
    *,
    for_good: Collection[str] = (),
) -> None:
    """Stop the job of a run, and remove what is left of the run.

    A run that is to end `for_good` is given up where its coordinator does not answer: a cluster of
    somebody's holds nothing that is billed for it, and a VM is taken down first, so that nobody
    makes its slices again. Raises ClusterError when a coordinator does not answer that may.
    """
    registry.update(name, remote={**record["remote"], "ending": True})  # for who follows it
    try:
        with reached(record, pause) as jobs:
            if stopped(jobs, record, pause) is None and record["remote"].get("vm"):
                take_down(jobs, record, pause)
    except ClusterError as error:
        first = str(error).splitlines()[0]
        if record["resources"] or vanished(record) or is_new(record):
            tell(f"{name}: {first}; its slices are deleted from here")
            delete_from_here(record, pause)
        elif name not in for_good:
            hint = f"`python -m launcher down {name}` gives it up"
            raise ClusterError(f"{error}\n{hint}") from error
        elif record["remote"].get("vm"):
            tell(f"{name}: {first}")
            tell(f"{name}: {vm_taken_down(record, for_good, pause)}, then its slices from here")
            delete_from_here(record, pause)
        else:
            tell(f"{name}: {first}; if the job still runs there, it goes on")
    else:
        if record["resources"]:
            delete_from_here(record, pause)
    registry.forget(name)
    tell(f"{name}: nothing is left")


def vm_taken_down(record: Record, runs: Collection[str], pause: Pause) -> str:
    """What was done with the VM of these runs. Raises ConfigError when it serves others."""
    from launcher.remote import vm, vm_making

    found = vm.find(record["remote"]["vm"])
    assert found is not None  # it would have vanished
    with recorded_provider(record) as provider:
        provider.get()
        return vm_making.take_down(found, pause, but_for=runs)


def is_new(record: Record) -> bool:
    """Whether its VM has yet to come up for the first time: no job can have been submitted."""
    from launcher.remote import vm

    found = vm.find(record["remote"].get("vm") or "")
    return found is not None and not found.address


def stopped(jobs: Jobs, record: Record, pause: Pause) -> End | None:
    """The end of a job that has nothing up, after it was told to leave if need be; None if the
    job cannot be trusted to have cleaned up.
    """
    job = record["remote"]["job"]
    state = jobs.state(job)
    if state and not state.ended:
        jobs.stop(job)
        late = time.monotonic() + removal.DELETE_SECONDS + package.STOP_MARGIN
        while (state := jobs.state(job)) and not state.ended and time.monotonic() < late:
            pause(0.2)
    try:
        found = follower(jobs, record, None).catch_up()
    except Lost:
        return None
    return found if found and not found.up else None


def take_down(jobs: Jobs, record: Record, pause: Pause) -> None:
    """By a job on the coordinator, whose record of the run knows what there is."""
    name, folder = record["name"], Path(record["folder"])
    project = project_of(ProviderSpec(**record["provider"]))
    identity = Identity(record["owner"], registry.machine_id(), project)
    job_id = f"{name}-down-{secrets.token_hex(4)}"
    job = Job(job_id, "down", name, folder, identity, None, (), "", {}, Progress(), {})
    package.send(jobs, job, None, pause)
    with tempfile.TemporaryDirectory() as scratch:
        watcher = Follower(jobs, job_id, f"{name}-down", Path(scratch), Screen())
        if (ended := watcher.follow(pause)).code:
            raise ClusterError(f"{name} could not be taken down (exit code {ended.code})")


def delete_from_here(record: Record, pause: Pause = time.sleep) -> None:
    """All that carries the run's labels."""
    with recorded_provider(record) as provider:
        removal.delete_resources(record, provider.get(), pause)
    sites.forget_token(record["remote"])


def release(names: Iterable[str] | None, tell: Tell, pause: Pause) -> None:
    """Stop or delete the VMs that served these runs, or all, and serve none now."""
    from launcher.remote import vm, vm_making

    def release_one(found: vm.Vm) -> None:
        if users := vm.users_of(found):
            tell(f"{found.title} stays: it serves {', '.join(users)}")
            return
        with recorded_provider({"provider": found.provider}) as provider:
            provider.get()
            tell(vm_making.take_down(found, pause))

    wanted = None if names is None else set(names)
    vms = [v for v in vm.on_record() if wanted is None or wanted & {v.name, *v.runs}]
    every(*(partial(release_one, found) for found in vms))
