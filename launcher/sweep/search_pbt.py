"""Population based training (arXiv:1711.09846): bad trials go on as changed copies of good ones.

The first generation is drawn by another search; all of it should run at the same time. Every
`interval` steps a trial is compared with the others that run. One of the worst `quantile` takes
over the newest checkpoint of one of the best, and its values, each changed: drawn anew one time in
four, else multiplied by 0.8 or 1.2, or moved to the next choice. These are the paper's numbers.

A trial goes back by less than an `interval` for it, so that every population comes to its end.

It is by hand because Ray Tune's is bound to Tune's own controller (it pauses trials and copies
their checkpoints), and Optuna has none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.sweep.protocol import (
    Decision,
    Exploit,
    Outcome,
    Past,
    Search,
    Suggestion,
    Verb,
)
from launcher.sweep.search_settings import Settings
from launcher.sweep.search_space import Choice, Domain, Space, draw, number_of, text_of

RESAMPLE = 0.25
FACTORS = (0.8, 1.2)


@dataclass(slots=True)
class Member:
    """A trial that runs: its values now, its last score and step, and when it was looked at."""

    overrides: Mapping[str, str]
    score: float | None = None
    step: int = 0
    looked: int = 0


class Population:
    """A search whose trials learn from each other; `first` draws them."""

    def __init__(self, settings: Settings, space: Space, first: Search) -> None:
        self.settings, self.space, self.first = settings, space, first
        self.members: dict[str, Member] = {}
        self.before: dict[str, Member] = {}  # what a trial was before it was last changed

    @property
    def exhausted(self) -> bool:
        return self.first.exhausted

    def next(self) -> Suggestion | None:
        suggestion = self.first.next()
        if suggestion:
            self.members[suggestion.trial_id] = Member(suggestion.overrides)
        return suggestion

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        member, score = self.members.get(trial_id), metrics.get(self.settings.metric or "")
        if member is None or score is None:
            return Verb.GO_ON
        member.score, member.step = score, step
        if step - member.looked < self.settings.options["interval"]:
            return Verb.GO_ON
        member.looked = step
        rng = random.Random(f"{self.settings.seed} {trial_id} {step}")
        source = self._better(trial_id, rng)
        if not source:
            return Verb.GO_ON
        self.before[trial_id] = replace(member)
        return self._exploit(member, source, rng)

    def kept(self, trial_id: str) -> None:
        if before := self.before.pop(trial_id, None):
            self.members[trial_id] = before

    def ended(self, trial_id: str, metrics: Mapping[str, float] | None, outcome: Outcome) -> None:
        self.members.pop(trial_id, None)
        self.first.ended(trial_id, metrics, outcome)

    def restore(self, history: Sequence[Past]) -> None:
        self.first.restore(history)
        for past in history:
            if past.outcome is None:
                self.members[past.trial_id] = self._as_it_was(past)

    def _as_it_was(self, past: Past) -> Member:
        member = Member(past.overrides)
        for report in past.reports:
            member.score = report.metrics.get(self.settings.metric or "", member.score)
            member.step = report.step
            if report.step - member.looked >= self.settings.options["interval"]:
                member.looked = report.step
        return member

    def _better(self, trial_id: str, rng: random.Random) -> str | None:
        """One of the best, if the trial is one of the worst."""
        heard = [name for name, member in self.members.items() if member.score is not None]
        ranked = sorted(heard, key=self._badness)
        few = min(math.ceil(len(ranked) * self.settings.options["quantile"]), len(ranked) // 2)
        if few == 0 or trial_id not in ranked[-few:]:
            return None
        source = rng.choice(ranked[:few])
        back = self.members[trial_id].step - self.members[source].step
        better = self._badness(source) < self._badness(trial_id)
        return source if better and back < self.settings.options["interval"] else None

    def _badness(self, trial_id: str) -> float:
        score = self.members[trial_id].score
        if score is None or not math.isfinite(score):
            return math.inf
        return -score if self.settings.mode == "max" else score

    def _exploit(self, member: Member, source: str, rng: random.Random) -> Exploit:
        taken = self.members[source]
        values = {
            key: _changed(domain, taken.overrides[key], rng) for key, domain in self.space.items()
        }
        member.overrides, member.score = values, taken.score
        member.step = member.looked = taken.step
        return Exploit(source, values)


def _changed(domain: Domain, text: str, rng: random.Random) -> str:
    if rng.random() < RESAMPLE:
        return draw(domain, rng)
    if isinstance(domain, Choice):
        moved = domain.texts.index(text) + rng.choice((-1, 1))
        return domain.texts[min(max(moved, 0), len(domain.texts) - 1)]
    value = number_of(domain, text)
    assert value is not None  # it was drawn from this interval
    return text_of(domain, value * rng.choice(FACTORS))
