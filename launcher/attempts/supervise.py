"""Attempts: run the gang, judge how it ended, repair what broke, go on or stop."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tenacity

from launcher import coordinator, registry
from launcher.attempts import fanout
from launcher.attempts.account import Account, open_account
from launcher.attempts.budget import SinceProgress
from launcher.attempts.feed import Feed
from launcher.attempts.gang import Report
from launcher.attempts.holding import LOOK_SECONDS, Hold, Holding
from launcher.attempts.inquiry import inquire, news_seconds
from launcher.attempts.packed import AsItIs, Code
from launcher.attempts.result import report, summarise
from launcher.cluster import Host
from launcher.errors import (
    Interrupted,
    LauncherError,
    PreemptionBudgetSpent,
    ProvisioningError,
    Refused,
    Superseded,
    WorkloadError,
)
from launcher.head_watch import HeadWatch
from launcher.hosts.member import Ending, Place
from launcher.judging import verdict
from launcher.judging.evidence import Cancelled, Earlier, Evidence, Refusal
from launcher.judging.outcome import Budget as Limit
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict, judge
from launcher.plan import Process
from launcher.providers import KINDS
from launcher.provisioning import provision
from launcher.provisioning.provision import Joined
from launcher.session import Session
from launcher.source import Manifest
from launcher.spec import Spec

HEAD_LOOK_SECONDS = 2.0


def run(session: Session, manifest: Manifest) -> Mapping[str, Any]:
    """Run to the end and return what `result.json` holds. Every outcome is a result.

    Raises Superseded when another supervisor has taken the run over; the result will be its own.
    """
    account = open_account(session)
    session = dataclasses.replace(session, setback=functools.partial(charge, session, account))
    holding = Holding(session, bill=account.bill)
    last: Verdict | None = None
    error: LauncherError | None
    code = AsItIs(manifest)
    try:
        with holding:
            last = succeeded_before(session, code, account)
            last = last or attempts(session, code, account, holding)
        error = failure_of(last, account)
    except Superseded:
        session.screen.finish()
        raise
    except LauncherError as raised:
        last, error = None, raised
    except Exception as raised:
        traceback.print_exc()
        last, error = None, LauncherError(f"a fault of launcher: {raised!r}; please report it")
    session.screen.finish()
    result = summarise(session, account, holding.cost_usd, last, error)
    session.folder.write("result.json", result)
    account.save(session, ended=True)
    session.under_way.write(None)
    report(session, result, error)
    return result


def succeeded_before(session: Session, code: Code, account: Account) -> Verdict | None:
    """Of a run whose launcher was killed when all was done but to delete the slices: they go now,
    and none is asked for to run the same program again.
    """
    attempt = session.under_way.read()
    if not attempt or not is_charged(attempt, account):
        return None
    choice = provision.left_choice(session)
    if not choice or account.earlier[-1].outcome != Outcome.SUCCEEDED:
        return None
    if attempt["program"] != program_of(session.spec, code.digest(), choice.processes):
        return None
    session.folder.turn_to(attempt["number"])
    account.stop = "succeeded"
    text = f"attempt {attempt['number']} has succeeded, and its launcher was killed after that"
    session.tell("adopt", text)
    provision.let_go(session)
    return Verdict(Outcome.SUCCEEDED, text)


def charge(session: Session, account: Account, what: str) -> None:
    """What was lost before processes ran on it, as `Session.setback`."""
    lost = Verdict(Outcome.PREEMPTED, what, retriable=True)
    account.stop = account.budget.charge(lost, None)
    account.save(session)
    if account.stop:
        raise PreemptionBudgetSpent(f"{what}; {account.stop}")


def attempts(session: Session, code: Code, account: Account, holding: Holding) -> Verdict:
    """Attempts until one is final or a budget is spent, with back-off between them."""
    backoff = session.spec.retry.backoff
    again = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda _: account.stop is None),
        wait=SinceProgress(
            account.budget,
            tenacity.wait_exponential_jitter(multiplier=backoff, max=60 * backoff, jitter=backoff),
        ),
        sleep=lambda seconds: rest(session, account, holding, seconds),
        before_sleep=lambda state: tell_again(session, account, state),
    )
    try:
        ended: Verdict = again(one_attempt, session, code, account, holding)
    except (Refused, Interrupted) as error:
        evidence = cut_short(error, account)
        write_verdict(session, judge(evidence), evidence)
        raise
    return ended


def rest(session: Session, account: Account, holding: Holding, seconds: float) -> None:
    """Wait for the next attempt. What is heard meanwhile may mend what the last one was charged.

    Raises PreemptionBudgetSpent.
    """
    gone = holding.rest(seconds)
    if not gone:
        return
    said = ", ".join(f"slice {index}: {word}" for index, word in gone.items())
    lost = Verdict(Outcome.PREEMPTED, said, slices=tuple(gone), retriable=True)
    since = time.time() - LOOK_SECONDS
    if heralds := account.amend(lost, since, news_seconds(session)):
        tell_corrected(session, lost, heralds)
        account.save(session)
    if account.stop:
        raise PreemptionBudgetSpent(f"{said}; {account.stop}")


def cut_short(error: Refused | Interrupted, account: Account) -> Evidence:
    """Of an attempt that did not come to an end of its own."""
    if isinstance(error, Interrupted):
        cancelled = Cancelled(str(error), time.time())
        return Evidence(cancelled=cancelled, step=account.step, earlier=account.earlier)
    return Evidence(refused=Refusal(error.reason, str(error)), earlier=account.earlier)


def tell_again(session: Session, account: Account, state: tenacity.RetryCallState) -> None:
    """Why another attempt follows, when, and how much of the budget is spent."""
    assert state.outcome is not None  # an attempt has been made
    ended: Verdict = state.outcome.result()
    retry, name = session.spec.retry, ended.budget.value
    limits = {Limit.PREEMPTIONS: retry.max_preemptions, Limit.FAILURES: retry.max_failures}
    limit = limits.get(ended.budget)
    charged = f" ({account.budget.spent[name]} of {limit} {name})" if limit is not None else ""
    seconds = state.next_action.sleep if state.next_action else 0.0
    number = session.folder.attempt + 1
    session.tell("again", f"{ended.summary}; attempt {number} in {seconds:.1f} s{charged}")


def one_attempt(
    session: Session, code: Code, account: Account, holding: Hold, *, keep_ended: bool = False
) -> Verdict:
    """One attempt from hosts that are ready to a verdict that has been charged.

    `keep_ended`: what ended while nobody watched is judged, even if the program is another by now.
    """
    going_on = left_to_judge(session, account) if not holding.held else None
    if holding.held:
        session.folder.next()
    joined = holding.ready(partly=going_on is not None)
    found = alive_on(session, joined, going_on) if going_on else None
    digest = code.digest()
    asked = program_of(session.spec, digest, joined.choice.processes)
    if found and found["program"] != asked and not (keep_ended and found["over"]):
        session.tell("other", "what runs there is another program, or has other arguments: it ends")
        found = None
    if not found and joined.absent:
        joined = holding.ready()
    if found:
        session.folder.turn_to(found["number"])
    else:
        account.begin_attempt(resumed=session.folder.attempt > 0)
    key = found["key"] if found else secrets.token_hex(16)
    attempt = make_attempt(session, joined, digest, key, recalls(session, account, holding))
    ended = run_gang(session, joined, account, attempt, None if found else code)
    evidence = inquire(session, joined, ended, account)
    judged = judge(evidence)
    write_verdict(session, judged, evidence)
    heralds = account.charge(session.folder.attempt, evidence, judged, news_seconds(session))
    tell_corrected(session, judged, heralds)
    holding.damaged(judged)
    account.save(session)  # before it is off the record: a charge is not forgotten
    if judged.outcome is not Outcome.SUCCEEDED:  # else it is on record until the run has its result
        session.under_way.write(None)
    session.screen.finish()
    return judged


def left_to_judge(session: Session, account: Account) -> Mapping[str, Any] | None:
    """The attempt that a launcher before this one has begun and not charged."""
    attempt = session.under_way.read() if account.stop is None else None
    return None if attempt and is_charged(attempt, account) else attempt


def is_charged(attempt: Mapping[str, Any], account: Account) -> bool:
    return bool(account.earlier) and account.earlier[-1].attempt == attempt["number"]


def recalls(session: Session, account: Account, holding: Hold) -> Callable[[], str]:
    """Why the attempt is to end for another on more slices, once it is under way: before its first
    step a program can save nothing, and may not heed SIGTERM yet.
    """

    def recalled() -> str:
        silent = account.final_step is None and session.timeline.phase == "productive"
        return holding.recalled() if account.step is not None or silent else ""

    return recalled


def alive_on(
    session: Session, joined: Joined, attempt: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The attempt, if each of the hosts that live still has it: its processes, or how they ended.
    Hosts keep what it has told until the next one is prepared, also when nothing of it is left.

    `over` is whether all have ended, `until` when the last of them did, or now; in seconds since
    1970.
    """
    states = states_of(session, joined.hosts)
    key = attempt["key"]
    if not states or not all(state.get("key") == key for state in states.values()):
        return None
    ends = [end["time"] for state in states.values() for end in state["exits"].values()]
    over = not any(state["running"] for state in states.values())
    return {**attempt, "over": over, "until": max(ends) if over else time.time()}


def states_of(session: Session, hosts: Mapping[Place, Host]) -> Mapping[Place, Mapping[str, Any]]:
    """What each agent says of its attempt; those that have died since they joined are left out."""
    try:
        return fanout.ask(hosts, lambda host: host.agent.state.remote(), session.interrupt.pause)
    except fanout.HostsLost as lost:
        left = {place: host for place, host in hosts.items() if place not in lost.places}
    return states_of(session, left) if left else {}


def run_gang(
    session: Session,
    joined: Joined,
    account: Account,
    attempt: fanout.Attempt,
    code: Code | None,
) -> Report:
    """Ship the code and run, or follow what runs (None); lost hosts are endings as well.

    Raises HeadLost where the head is not ours to make anew.
    """
    try:
        if code is None:
            return follow(session, joined, account, attempt)
        fill_hosts(session, joined, code, attempt)
        return start(session, joined, account, attempt)
    except fanout.HostsLost as lost:
        members = [m for m in fanout.members_of(attempt.processes) if m.place in lost.places]
        endings = [Ending(member, None, str(lost), time.time()) for member in members]
        return Report(endings=tuple(endings))
    except coordinator.HeadLost as lost:
        if coordinator.given_head():
            raise
        return Report(head_lost=str(lost))
    finally:
        if session.timeline.phase in ("init", "productive"):
            session.timeline.enter("recovery")


def follow(session: Session, joined: Joined, account: Account, attempt: fanout.Attempt) -> Report:
    """Go on with what another supervisor has started."""
    feed = Feed(session, account)
    text = f"to attempt {attempt.number}, which went on by itself"
    session.tell("attached", text, attempt=attempt.number)
    session.timeline.begin_attempt()
    feed.catch_up()
    known = session.folder.known(fanout.members_of(attempt.processes))
    pause = watchful_pause(session, joined)
    return fanout.attach(joined.head.address, joined.hosts, attempt, known, feed, pause)


def start(session: Session, joined: Joined, account: Account, attempt: fanout.Attempt) -> Report:
    put_on_record(session, account, attempt)
    feed, pause = Feed(session, account), watchful_pause(session, joined)
    return fanout.run(joined.head.address, joined.hosts, attempt, feed, pause)


def fill_hosts(session: Session, joined: Joined, code: Code, attempt: fanout.Attempt) -> None:
    session.timeline.enter("dependencies")
    session.screen.wait("shipping the code")
    fanout.ship(joined.hosts, attempt.code, code.pack, watchful_pause(session, joined))
    session.screen.wait("")


def put_on_record(session: Session, account: Account, attempt: fanout.Attempt) -> None:
    """That this attempt is about to run on the hosts, for a supervisor that comes after this."""
    program = program_of(session.spec, attempt.code, attempt.processes)
    session.under_way.write({"number": attempt.number, "key": attempt.key, "program": program})
    account.save(session)
    processes = len(attempt.processes)
    count = "1 process" if processes == 1 else f"{processes} processes"
    session.tell("started", f"attempt {attempt.number}: {count}", attempt=attempt.number)
    session.timeline.begin_attempt()


def program_of(spec: Spec, code: str, processes: Sequence[Process]) -> str:
    """Tells programs apart: the digest of the code, the arguments and what is set for each process;
    in which order `workload.args` were given does not matter.
    """
    named = len(spec.workload.args) if spec.workload else 0
    ranks = []
    for process in processes:
        target = len(process.argv) - named
        argv = [*process.argv[:target], *sorted(process.argv[target:])]
        ranks.append([argv, dict(process.env)])
    text = json.dumps([code, ranks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def make_attempt(
    session: Session, joined: Joined, code: str, key: str, recalled: Callable[[], str]
) -> fanout.Attempt:
    retry, number = session.spec.retry, session.folder.attempt
    return fanout.Attempt(
        number=number,
        key=key,
        code=code,
        processes=joined.choice.processes,
        env=attempt_env(session, number),
        grace=retry.grace,
        straggler_timeout=retry.straggler_timeout,
        hang_timeout=retry.hang_timeout,
        reattach=retry.reattach_timeout,
        standby=session.spec.mode.standby,
        recalled=recalled,
    )


def watchful_pause(session: Session, joined: Joined) -> Callable[[float], None]:
    """A pause that also looks after the Ray head."""
    watch = HeadWatch(joined.head, HEAD_LOOK_SECONDS)

    def pause(seconds: float) -> None:
        session.interrupt.pause(seconds)
        watch.look()

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


def write_verdict(session: Session, judged: Verdict, evidence: Evidence) -> None:
    """The judgement together with all that it was made of."""
    session.folder.event("verdict", outcome=judged.outcome, summary=judged.summary)
    content = verdict.record(evidence, judged)
    session.folder.write(f"verdicts/attempt-{session.folder.attempt}.json", content)


def tell_corrected(session: Session, lost: Verdict, heralds: Sequence[Earlier]) -> None:
    """Of earlier verdicts that a loss explains: on screen, and in their own files."""
    for earlier in heralds:
        number = earlier.attempt
        text = f"attempt {number} was no failure, it was the same loss ({lost.summary})"
        session.tell("corrected", text, number=number)
        name = f"verdicts/attempt-{number}.json"
        content = registry.read_json(session.folder.path / name) or {}
        session.folder.write(name, {"corrected": lost.summary, **content})


def failure_of(judged: Verdict, account: Account) -> LauncherError | None:
    if judged.outcome is Outcome.SUCCEEDED:
        return None
    text = f"{judged.summary}; {account.stop}"
    if judged.outcome is Outcome.CANCELLED:
        return Interrupted(text)
    if judged.outcome in (Outcome.STOCKOUT, Outcome.REFUSED):
        return ProvisioningError(text)
    if judged.budget is Limit.PREEMPTIONS:
        return PreemptionBudgetSpent(text)
    return WorkloadError(text, judged.code)
