"""What a run has used up so far; kept in its folder, so that it outlives the supervisor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher import registry
from launcher.attempts.budget import Budget
from launcher.codec import from_json, to_json
from launcher.judging import herald, verdict
from launcher.judging.evidence import Earlier, Evidence
from launcher.judging.verdict import Verdict
from launcher.provisioning.prices import Bill
from launcher.session import Session

FILE = "account.json"


@dataclass(slots=True)
class Account:
    """`resumed_from`: the step that each attempt but the first went on from, None if it told none.

    `step` is the highest of the attempt that runs, `started` the time since 1970 of the first one.
    `before` is what the budget was before each of the `earlier` attempts was charged.
    """

    budget: Budget
    bill: Bill = field(default_factory=Bill)
    started: float = field(default_factory=time.time)
    attempts: int = 0
    step: int | None = None
    final_step: int | None = None
    resumed_from: list[int | None] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    before: list[Mapping[str, Any]] = field(default_factory=list)
    stop: str | None = None  # why there is to be no other attempt

    def begin_attempt(self, resumed: bool) -> None:
        """`resumed`: another attempt went before it, be it of an earlier invocation."""
        self.attempts += 1
        self.step = None
        if resumed:
            self.resumed_from.append(None)

    def charge(
        self, attempt: int, evidence: Evidence, judged: Verdict, seconds: float
    ) -> Sequence[Earlier]:
        """Charge an attempt; returns the earlier ones whose charges are taken back for it.

        `seconds` is by how much news of a loss may be late.
        """
        heralds = herald.heralds(evidence, judged, seconds)
        if heralds:
            self.budget.restore(self.before[-len(heralds)])
            del self.earlier[-len(heralds) :], self.before[-len(heralds) :]
        steps = [s for s in (evidence.step, *(e.step for e in heralds)) if s is not None]
        unsure = herald.is_unsure(judged)
        self.before.append(self.budget.to_json())
        self.earlier.append(verdict.in_short(attempt, evidence, judged, unsure))
        self.stop = self.budget.charge(judged, max(steps, default=None))
        return heralds

    def amend(self, lost: Verdict, since: float, seconds: float) -> Sequence[Earlier]:
        """Charge slices that went between two attempts, where they explain how the last one ended.

        Returns the attempts whose charges are taken back for it; of other losses nothing comes.
        """
        known = Evidence(stopped_at=since, earlier=self.earlier)
        heralds = herald.heralds(known, lost, seconds)
        return self.charge(heralds[-1].attempt, known, lost, seconds) if heralds else ()

    def save(self, session: Session, *, ended: bool = False) -> None:
        """`ended`: the run has its result. The next of its name on these slices counts anew."""
        session.folder.write(
            FILE,
            {
                "ended": ended,
                "started": self.started,
                "attempts": self.attempts,
                "final_step": self.final_step,
                "resumed_from": self.resumed_from,
                "budget": self.budget.to_json(),
                "bill": self.bill.to_json(),
                "earlier": [to_json(earlier) for earlier in self.earlier],
                "before": self.before,
                "seconds": session.timeline.seconds(),
            },
        )


def open_account(session: Session) -> Account:
    """A new account; that of a supervisor which died, if this one goes on in its place."""
    budget, bill = Budget(session.spec.retry), Bill()
    found = registry.read_json(session.folder.path / FILE)
    begun = (
        found and not found["ended"] and (found["attempts"] or session.under_way.read() is not None)
    )
    if not found or not begun or not session.under_way.left_behind:
        return Account(budget)
    budget.restore(found["budget"])
    bill.restore(found["bill"])
    session.timeline.continue_from(found["seconds"], time.time() - found["started"])
    return Account(
        budget,
        bill,
        started=found["started"],
        attempts=found["attempts"],
        final_step=found["final_step"],
        resumed_from=found["resumed_from"],
        earlier=[from_json(Earlier, row) for row in found["earlier"]],
        before=found["before"],
    )
