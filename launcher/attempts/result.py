"""What a run comes to: `result.json`, and the last words on screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.attempts.account import Account
from launcher.errors import Interrupted, LauncherError, PreemptionBudgetSpent, WorkloadError
from launcher.judging.verdict import Verdict
from launcher.providers import KINDS
from launcher.session import Session

STATUS: Mapping[type[LauncherError], str] = {
    WorkloadError: "failed",
    PreemptionBudgetSpent: "preempted",
    Interrupted: "cancelled",
}


def summarise(
    session: Session,
    account: Account,
    cost_usd: float | None,
    verdict: Verdict | None,
    error: LauncherError | None,
) -> dict[str, Any]:
    cause = verdict.cause if verdict else None
    cost = cost_usd if KINDS[session.spec.provider.kind].billed else 0.0
    total = account.budget.total
    return {
        "name": session.spec.name,
        "status": STATUS.get(type(error), "error") if error else "succeeded",
        "exit_code": error.exit_code if error else 0,
        "workload_exit_code": verdict.code if verdict else None,
        "first_failure": {
            "member": str(cause.member),
            "slice": cause.member.slice,
            "host": cause.member.host,
            "reason": cause.reason,
            "log": str(session.folder.log_path(cause.member)),
        }
        if cause
        else None,
        "message": str(error) if error else "",
        "attempts": account.attempts,
        "preemptions": total["preemptions"],
        "failures": total["failures"],
        "resumed_from": account.resumed_from,
        "final_step": account.final_step,
        "seconds": session.timeline.seconds(),
        "goodput": session.timeline.goodput(),
        "cost_usd": None if cost is None else round(cost, 4),
    }


def report(session: Session, result: Mapping[str, Any], error: LauncherError | None) -> None:
    seconds = result["seconds"]
    if error is None:
        session.tell("done", f"succeeded in {seconds['total']:.1f} s; {session.folder.shown}")
        return
    failure = result["first_failure"]
    log = f"\n                      log: {failure['log']}" if failure else ""
    session.tell(
        result["status"], f"{error}{log}\n                      all of it: {session.folder.shown}"
    )
