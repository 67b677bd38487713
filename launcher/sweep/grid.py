"""The plainest searcher: trials that are all known beforehand, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from launcher.sweep.protocol import Decision, Outcome, Past, Suggestion, Verb


class Grid:
    """Stops nothing, and learns nothing."""

    def __init__(self, trial_ids: Iterable[str]) -> None:
        self._left = deque(trial_ids)

    @property
    def exhausted(self) -> bool:
        return not self._left

    def next(self) -> Suggestion | None:
        return Suggestion(self._left.popleft(), {}) if self._left else None

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        return Verb.GO_ON

    def ended(
        self, trial_id: str, metrics: Mapping[str, float] | None, outcome: Outcome
    ) -> None: ...

    def restore(self, history: Sequence[Past]) -> None: ...
