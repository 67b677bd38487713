"""What a run comes to: `result.json`, and the last words on screen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import Interrupted, LauncherError, PreemptionBudgetSpent, WorkloadError
from launcher.providers import KINDS
from launcher.session import Session
from launcher.verdict import Verdict

STATUS: Mapping[type[LauncherError], str] = {
    WorkloadError: "failed",
    PreemptionBudgetSpent: "preempted",
    Interrupted: "cancelled",
}


@dataclass(slots=True)
class Account:
    """What a run has used up so far."""

    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    final_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Charge the time of the block to a phase, however it ends."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = self.seconds.get(phase, 0.0) + time.monotonic() - started
            self.seconds[phase] = round(spent, 3)


def summarise(
    session: Session, account: Account, verdict: Verdict | None, error: LauncherError | None
) -> dict[str, Any]:
    cause = verdict.cause if verdict else None
    hours = account.seconds["total"] / 3600
    billed = KINDS[session.spec.provider.kind].billed
    rate = session.plan.cost_per_hour_usd if billed else 0.0
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
        "preemptions": account.preemptions,
        "failures": account.failures,
        "resumed_from": [] if account.attempts <= 1 else None,  # not known yet
        "final_step": account.final_step,
        "seconds": account.seconds,
        "goodput": None,  # not known yet: it takes the steps that were lost
        "cost_usd": round(rate * hours, 4) if rate is not None else None,
    }


def report(session: Session, result: Mapping[str, Any], error: LauncherError | None) -> None:
    seconds = result["seconds"]
    if error is None:
        session.tell("done", f"succeeded in {seconds['total']:.1f} s; {session.folder.path}")
        return
    failure = result["first_failure"]
    log = f"\n                      log: {failure['log']}" if failure else ""
    session.tell(
        result["status"], f"{error}{log}\n                      all of it: {session.folder.path}"
    )
