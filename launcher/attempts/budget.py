"""How often a run is started again: two budgets, and a sense of progress. Pure but for its counts.

Preemptions and failures are counted apart. Both budgets are full again when an attempt came further
than any before it; attempts that fail at one and the same step stop the run, whatever is left.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tenacity

from launcher.judging.outcome import Budget as Limit
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.spec import Retry
from launcher.words import counted


@dataclass(slots=True)
class Budget:
    """What has been spent since the last progress, and what over all."""

    retry: Retry
    spent: Counter[str] = field(default_factory=Counter)  # by the name of the limit
    total: Counter[str] = field(default_factory=Counter)
    best_step: int | None = None
    failed_steps: list[int | None] = field(default_factory=list)  # in a row, without progress
    fruitless: int = 0  # attempts in a row without progress

    def charge(self, verdict: Verdict, step: int | None) -> str | None:
        """Charge an attempt that came to `step`; say why there is to be no other, or None."""
        if verdict.outcome is Outcome.SUCCEEDED:
            return "succeeded"
        progress = step is not None and (self.best_step is None or step > self.best_step)
        if progress:
            self.best_step = step
            self.fruitless = 0
            self.spent.clear()
        self.fruitless += 1
        if verdict.code in self.retry.stop_exit_codes:
            return f"exit code {verdict.code} is in retry.stop_exit_codes"
        free = verdict.code in self.retry.restart_exit_codes
        if verdict.budget is not Limit.NONE and not free:
            self.spent[verdict.budget] += 1
            self.total[verdict.budget] += 1
        if free:
            return self._same_step(verdict, step) if step is not None else None
        if not verdict.retriable:
            return "another attempt would end the same way"
        return self._same_step(verdict, step) or self._spent()

    def stops(self, verdict: Verdict, step: int | None) -> bool:
        """Whether this charge would be the last one. Nothing is charged."""
        return copy.deepcopy(self).charge(verdict, step) is not None

    def _same_step(self, verdict: Verdict, step: int | None) -> str | None:
        if verdict.budget is not Limit.FAILURES:
            return None
        if self.failed_steps and self.failed_steps[-1] != step:
            self.failed_steps = []
        self.failed_steps.append(step)
        limit = self.retry.same_step_limit
        if limit is None or len(self.failed_steps) < limit:
            return None
        where = "before the first step" if step is None else f"at step {step}"
        return f"failed {counted(limit, 'time')} {where} (retry.same_step_limit)"

    def _spent(self) -> str | None:
        limits = {
            Limit.PREEMPTIONS: self.retry.max_preemptions,
            Limit.FAILURES: self.retry.max_failures,
        }
        for budget, limit in limits.items():
            if self.spent[budget] > limit:
                spent = counted(self.spent[budget], budget.removesuffix("s"))
                return f"{spent}, retry.max_{budget} is {limit}"
        return None

    def restore(self, found: Mapping[str, Any]) -> None:
        """Go on with what `to_json` has kept."""
        self.spent, self.total = Counter(found["spent"]), Counter(found["total"])
        self.best_step, self.fruitless = found["best_step"], found["fruitless"]
        self.failed_steps = list(found["failed_steps"])

    def to_json(self) -> dict[str, Any]:
        names = ("spent", "total", "best_step", "failed_steps", "fruitless")
        return {name: copy.copy(getattr(self, name)) for name in names}


class SinceProgress(tenacity.wait.wait_base):
    """A wait that begins anew whenever the run has made progress. None after a resize: nothing has
    failed, and what the run was resized for is there and is paid for.
    """

    def __init__(self, budget: Budget, wait: tenacity.wait.wait_base) -> None:
        self._budget = budget
        self._wait = wait

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        ended: Verdict | None = retry_state.outcome.result() if retry_state.outcome else None
        if ended and ended.outcome is Outcome.RESIZED:
            return 0.0
        real = retry_state.attempt_number
        retry_state.attempt_number = max(1, self._budget.fruitless)
        try:
            return self._wait(retry_state)
        finally:
            retry_state.attempt_number = real
