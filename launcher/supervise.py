"""Attempts: run the gang, judge how it ended, go on or stop. Writes the result."""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tenacity

from launcher import archive, coordinator, fanout, provision
from launcher.errors import (
    LauncherError,
    PreemptionBudgetSpent,
    SliceLost,
    WorkloadError,
)
from launcher.member import Ending, Member
from launcher.providers import KINDS, Provider
from launcher.provision import Joined
from launcher.result import Account, report, summarise
from launcher.session import Session
from launcher.source import Manifest
from launcher.verdict import Evidence, Outcome, Verdict, judge

HEAD_LOOK_SECONDS = 2.0
STEP_EVENT_SECONDS = 1.0  # every step is in metrics.jsonl; events tell where the run stands
LOST = (Outcome.PREEMPTED, Outcome.HOST_LOST)
NEWS_SECONDS = 3.0  # how long the API may lag behind a host's death
# A lost host, or a process that a host took down with it: SIGTERM, SIGKILL, SIGHUP.
SUSPICIOUS = (None, -15, 143, -9, 137, -1, 129)


class Feed:
    """Passes a gang's events on to the screen and the run folder."""

    def __init__(self, session: Session, account: Account) -> None:
        self.session = session
        self.account = account
        self.told = -math.inf  # when the last step was made an event

    def output(self, member: Member, chunk: bytes) -> None:
        self.session.folder.output(member, chunk)
        self.session.screen.output(member, chunk)

    def metrics(self, member: Member, line: str) -> None:
        value = self.session.folder.metrics(line)
        step = value.get("step") if value else None
        if type(step) is int and step != self.account.final_step:
            self.account.final_step = step
            if time.monotonic() - self.told > STEP_EVENT_SECONDS:
                self.told = time.monotonic()
                self.session.folder.event("step", step=step)

    def ended(self, ending: Ending) -> None:
        fields = dataclasses.asdict(ending) | {"member": str(ending.member)}
        self.session.folder.event("died" if ending.code else "ended", **fields)


def run(session: Session, manifest: Manifest) -> Mapping[str, Any]:
    """Run to the end and return what `result.json` holds. Every outcome is a result."""
    account = Account()
    started = time.monotonic()
    try:
        verdict = attempts(session, manifest, account)
        error = failure_of(verdict, account, session)
    except LauncherError as raised:
        verdict, error = None, raised
    except Exception as raised:
        traceback.print_exc()
        verdict, error = None, LauncherError(f"a fault of launcher: {raised!r}; please report it")
    session.screen.finish()
    account.charge("total", started)
    result = summarise(session, account, verdict, error)
    session.folder.write("result.json", result)
    report(session, result, error)
    return result


def attempts(session: Session, manifest: Manifest, account: Account) -> Verdict:
    """Attempts until one is final or a budget is spent, with back-off between them."""
    retry = session.spec.retry

    def is_spent(_: tenacity.RetryCallState) -> bool:
        return account.preemptions > retry.max_preemptions or account.failures > retry.max_failures

    again = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda verdict: verdict.outcome is not Outcome.SUCCEEDED),
        stop=is_spent,
        wait=tenacity.wait_exponential_jitter(multiplier=retry.backoff, max=60 * retry.backoff),
        sleep=session.interrupt.pause,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    verdict: Verdict = again(one_attempt, session, manifest, account)
    return verdict


def one_attempt(session: Session, manifest: Manifest, account: Account) -> Verdict:
    if account.attempts:
        session.folder.next()
    account.attempts += 1
    mark = time.monotonic()
    try:
        with provision.acquired(session, stays=session.spec.keep) as joined:
            mark = account.charge("acquire", mark)
            evidence = gather_evidence(session, run_gang(session, joined, manifest, account))
            mark = account.charge("run", mark)
            verdict = judge(evidence)
            write_verdict(session, verdict, evidence)
    except SliceLost as lost:
        verdict = Verdict(Outcome.PREEMPTED, str(lost))
        write_verdict(session, verdict, Evidence([], {}))
    account.charge("release", mark)
    session.screen.finish()
    account.preemptions += verdict.outcome in LOST
    account.failures += verdict.outcome is Outcome.WORKLOAD_FAILED
    return verdict


def run_gang(
    session: Session, joined: Joined, manifest: Manifest, account: Account
) -> list[Ending]:
    """Ship the code and run; hosts that are lost on the way are endings as well."""
    number, processes = session.folder.attempt, session.plan.processes
    code = archive.digest(manifest)
    env, grace = attempt_env(session, number), session.spec.retry.grace
    attempt = fanout.Attempt(number, code, env, grace, session.spec.retry.straggler_timeout)
    feed, pause = Feed(session, account), watchful_pause(session, joined)
    try:
        session.screen.wait("shipping the code")
        fanout.ship(joined.hosts, code, lambda: archive.pack(manifest))
        session.screen.wait("")
        session.tell("started", f"attempt {number}: {len(processes)} processes", attempt=number)
        return fanout.run(joined.head.address, joined.hosts, processes, attempt, feed, pause)
    except fanout.HostsLost as lost:
        members = [fanout.member_of(p, processes) for p in processes if p.place in lost.places]
        return [Ending(member, None, str(lost), time.time()) for member in members]


def watchful_pause(session: Session, joined: Joined) -> Callable[[float], None]:
    """A pause that also looks after the Ray head: Ray itself says nothing for a minute."""
    look = provision.Deadline(HEAD_LOOK_SECONDS)

    def pause(seconds: float) -> None:
        session.interrupt.pause(seconds)
        if look.passed:
            look.restart()
            coordinator.require_alive(joined.head)

    return pause


def attempt_env(session: Session, number: int) -> dict[str, str]:
    workload = session.spec.workload
    assert workload is not None
    env = {name: workload.env[name] for name in workload.secret_env}
    env["LAUNCHER_ATTEMPT"] = str(number)
    if folder := checkpoint_dir(session):
        env["LAUNCHER_CHECKPOINT_DIR"] = folder
    return env


def checkpoint_dir(session: Session) -> str | None:
    """The same in every attempt. Emulated hosts see the run folder; real ones need a bucket."""
    assert session.spec.workload is not None
    if named := session.spec.workload.checkpoint_dir:
        return named
    if KINDS[session.spec.provider.kind].shares_disk:
        return str(session.folder.path / "checkpoints")
    return None


def gather_evidence(session: Session, endings: list[Ending]) -> Evidence:
    """Ask the API about the slices when something failed; give it a moment when a host is lost."""
    if all(ending.code == 0 for ending in endings):
        return Evidence(endings, {})
    session.screen.wait("asking what became of the slices")
    provider = session.provider.get()
    deadline = time.monotonic() + NEWS_SECONDS
    while True:
        states = node_states(provider, (request.name for request in session.plan.requests))
        suspicious = any(e.code in SUSPICIOUS and not e.collateral for e in endings)
        all_ready = all(state == "READY" for state in states.values())
        if not (suspicious and all_ready) or time.monotonic() > deadline:
            break
        session.interrupt.pause(0.2)
    return Evidence(endings, states)


def node_states(provider: Provider, names: Iterable[str]) -> dict[int, str]:
    found = [provider.get(name) for name in names]
    return {i: node.raw_state if node else "GONE" for i, node in enumerate(found)}


def write_verdict(session: Session, verdict: Verdict, evidence: Evidence) -> None:
    """The judgement together with all that it was made of."""
    session.folder.event("verdict", outcome=verdict.outcome, summary=verdict.summary)
    content = {
        "outcome": verdict.outcome,
        "summary": verdict.summary,
        "code": verdict.code,
        "node_states": evidence.node_states,
        "endings": [dataclasses.asdict(e) | {"member": str(e.member)} for e in evidence.endings],
    }
    session.folder.write(f"verdicts/attempt-{session.folder.attempt}.json", content)


def failure_of(verdict: Verdict, account: Account, session: Session) -> LauncherError | None:
    if verdict.outcome is Outcome.SUCCEEDED:
        return None
    if verdict.outcome in LOST:
        limit = session.spec.retry.max_preemptions
        return PreemptionBudgetSpent(
            f"{verdict.summary}; lost its slices or hosts {account.preemptions} times,"
            f" retry.max_preemptions is {limit}"
        )
    return WorkloadError(verdict.summary, verdict.code)
