"""Attempts: run the gang, judge how it ended, go on or stop. Writes the result."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import tenacity

from launcher import archive, fanout, provision
from launcher.errors import (
    LauncherError,
    PreemptionBudgetSpent,
    WorkloadError,
)
from launcher.gang import Ending, Rank
from launcher.providers import Provider
from launcher.provision import Joined
from launcher.result import Account, report, summarise
from launcher.session import Session
from launcher.source import Manifest
from launcher.verdict import Evidence, Outcome, Verdict, judge

LOST = (Outcome.PREEMPTED, Outcome.HOST_LOST)
NEWS_SECONDS = 3.0  # how long the API may lag behind a host's death


class Feed:
    """Passes a gang's events on to the screen and the run folder."""

    def __init__(self, session: Session, account: Account) -> None:
        self.session = session
        self.account = account

    def output(self, rank: Rank, chunk: bytes) -> None:
        self.session.folder.output(rank, chunk)
        self.session.screen.output(rank, chunk)

    def metrics(self, rank: Rank, line: str) -> None:
        value = self.session.folder.metrics(line)
        step = value.get("step") if value else None
        if isinstance(step, int):
            self.account.final_step = step

    def ended(self, ending: Ending) -> None:
        fields = dataclasses.asdict(ending) | {"rank": str(ending.rank)}
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
    account.charge("total", started)
    result = summarise(session, account, verdict, error)
    session.folder.write("result.json", result)
    session.screen.finish()
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
    with provision.acquired(session, stays=session.spec.keep) as joined:
        mark = account.charge("acquire", mark)
        code = archive.digest(manifest)
        fanout.ship(joined.hosts, code, lambda: archive.pack(manifest))
        mark = account.charge("stage", mark)
        endings = run_gang(session, joined, code, account)
        mark = account.charge("run", mark)
        verdict = judge(gather_evidence(session, endings))
        write_verdict(session, verdict, endings)
    account.charge("release", mark)
    account.preemptions += verdict.outcome in LOST
    account.failures += verdict.outcome is Outcome.WORKLOAD_FAILED
    return verdict


def run_gang(session: Session, joined: Joined, code: str, account: Account) -> list[Ending]:
    number = session.folder.attempt
    session.tell(
        "start", f"attempt {number}: {len(session.plan.processes)} processes", attempt=number
    )
    attempt = fanout.Attempt(number, code, attempt_env(session, number), session.spec.retry.grace)
    return fanout.run(
        joined.head.address,
        joined.hosts,
        session.plan.processes,
        attempt,
        Feed(session, account),
        session.interrupt.pause,
    )


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
    if session.spec.provider.kind == "local":
        return str(session.folder.path / "checkpoints")
    return None


def gather_evidence(session: Session, endings: list[Ending]) -> Evidence:
    """Ask the API about the slices when something failed; give it a moment when a host is lost."""
    if all(ending.code == 0 for ending in endings):
        return Evidence(endings, {})
    provider = session.provider.get()
    deadline = time.monotonic() + NEWS_SECONDS
    while True:
        states = node_states(provider, (request.name for request in session.plan.requests))
        suspicious = any(e.code is None and not e.collateral for e in endings)
        all_ready = all(state == "READY" for state in states.values())
        if not (suspicious and all_ready) or time.monotonic() > deadline:
            break
        session.interrupt.pause(0.2)
    return Evidence(endings, states)


def node_states(provider: Provider, names: Iterable[str]) -> dict[int, str]:
    found = [provider.get(name) for name in names]
    return {i: node.raw_state if node else "GONE" for i, node in enumerate(found)}


def write_verdict(session: Session, verdict: Verdict, endings: list[Ending]) -> None:
    session.folder.event("verdict", outcome=verdict.outcome, summary=verdict.summary)
    content = {"outcome": verdict.outcome, "summary": verdict.summary, "code": verdict.code}
    rows = [dataclasses.asdict(e) | {"rank": str(e.rank)} for e in endings]
    session.folder.write(
        f"verdicts/attempt-{session.folder.attempt}.json", content | {"endings": rows}
    )


def failure_of(verdict: Verdict, account: Account, session: Session) -> LauncherError | None:
    if verdict.outcome is Outcome.SUCCEEDED:
        return None
    if verdict.outcome in LOST:
        limit = session.spec.retry.max_preemptions
        return PreemptionBudgetSpent(
            f"{verdict.summary}; preempted {account.preemptions} times,"
            f" retry.max_preemptions is {limit}"
        )
    return WorkloadError(verdict.summary, verdict.code)
