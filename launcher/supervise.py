"""Attempts: run the gang, judge how it ended, go on or stop. Writes the result."""

from __future__ import annotations

import contextlib
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
        self.failed = False
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
        failed = ending.code != 0
        if failed and not self.failed:
            grace = f"{self.session.spec.retry.grace:g} s"
            text = f"{ending.member}: {ending.reason}; the others have {grace} to leave"
            self.session.screen.phase("died", text)
        self.failed = self.failed or failed
        fields = dataclasses.asdict(ending) | {"member": str(ending.member)}
        self.session.folder.event("died" if failed else "ended", **fields)


def run(session: Session, manifest: Manifest) -> Mapping[str, Any]:
    """Run to the end and return what `result.json` holds. Every outcome is a result."""
    account = Account()
    try:
        with account.timed("total"):
            verdict = attempts(session, manifest, account)
        error = failure_of(verdict, account, session)
    except LauncherError as raised:
        verdict, error = None, raised
    except Exception as raised:
        traceback.print_exc()
        verdict, error = None, LauncherError(f"a fault of launcher: {raised!r}; please report it")
    session.screen.finish()
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
        before_sleep=lambda state: tell_again(session, account, state),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    verdict: Verdict = again(one_attempt, session, manifest, account)
    return verdict


def tell_again(session: Session, account: Account, state: tenacity.RetryCallState) -> None:
    """Why another attempt follows, when, and how much of the budget is spent."""
    assert state.outcome is not None  # an attempt has been made
    verdict: Verdict = state.outcome.result()
    spent, limit = account.failures, session.spec.retry.max_failures
    if verdict.outcome in LOST:
        spent, limit = account.preemptions, session.spec.retry.max_preemptions
    seconds = state.next_action.sleep if state.next_action else 0.0
    number = session.folder.attempt + 1
    text = f"{verdict.summary}; attempt {number} in {seconds:.1f} s ({spent} of {limit})"
    session.tell("again", text)


def one_attempt(session: Session, manifest: Manifest, account: Account) -> Verdict:
    if account.attempts:
        session.folder.next()
    account.attempts += 1
    try:
        with contextlib.ExitStack() as stack:
            with account.timed("acquire"):
                acquiring = provision.acquired(session, stays=session.spec.keep)
                joined = stack.enter_context(acquiring)
            with account.timed("run"):
                evidence = gather_evidence(session, run_gang(session, joined, manifest, account))
            verdict = judge(evidence)
            write_verdict(session, verdict, evidence)
            with account.timed("release"):
                stack.close()
    except SliceLost as lost:
        verdict = Verdict(Outcome.PREEMPTED, str(lost))
        write_verdict(session, verdict, Evidence([], {}))
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
        count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
        session.tell("started", f"attempt {number}: {count}", attempt=number)
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
