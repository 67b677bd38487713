"""What a run has used up so far; kept in its folder, so that it outlives the supervisor."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from launcher import registry
from launcher.budget import Budget
from launcher.codec import from_json, to_json
from launcher.evidence import Earlier
from launcher.session import Session

FILE = "account.json"


@dataclass(slots=True)
class Account:
    """`resumed_from`: the step that each attempt but the first went on from, None if it told none.

    `step` is the highest of the attempt that runs, `started` the time since 1970 of the first one.
    """

    budget: Budget
    started: float = field(default_factory=time.time)
    attempts: int = 0
    step: int | None = None
    final_step: int | None = None
    resumed_from: list[int | None] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    stop: str | None = None  # why there is to be no other attempt

    def begin_attempt(self, resumed: bool) -> None:
        """`resumed`: another attempt went before it, be it of an earlier invocation."""
        self.attempts += 1
        self.step = None
        if resumed:
            self.resumed_from.append(None)

    def save(self, session: Session) -> None:
        session.folder.write(
            FILE,
            {
                "started": self.started,
                "attempts": self.attempts,
                "final_step": self.final_step,
                "resumed_from": self.resumed_from,
                "budget": self.budget.to_json(),
                "earlier": [to_json(earlier) for earlier in self.earlier],
                "seconds": session.timeline.seconds(),
            },
        )


def open_account(session: Session) -> Account:
    """A new account; that of a supervisor which died, if this one goes on in its place."""
    budget = Budget(session.spec.retry)
    found = registry.read_json(session.folder.path / FILE)
    record = registry.record(session.spec.name)
    if not found or not record or (record["attempt"] is None and not found["attempts"]):
        return Account(budget)
    budget.restore(found["budget"])
    session.timeline.continue_from(found["seconds"], time.time() - found["started"])
    return Account(
        budget,
        started=found["started"],
        attempts=found["attempts"],
        final_step=found["final_step"],
        resumed_from=found["resumed_from"],
        earlier=[from_json(Earlier, row) for row in found["earlier"]],
    )
