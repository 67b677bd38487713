"""The searches behind `hydra/sweeper=tune`: which trial is next, and which are not worth going on.

Grid and random search, Optuna's TPE; asynchronous successive halving (ASHA) and the median rule.
Population based training is in `search_pbt.py`, the values that are searched in `search_space.py`.

It is made of Optuna's samplers and pruners, which are driven through its public ask-and-tell
interface. Ray Tune's objects were the other way. Its TPE is this one, wrapped, but tells Optuna of
a trial that was stopped as of one that had ended; its schedulers want Tune's own Trial and
controller, of which stand-ins would have to be made; a trial whose metric is NaN passes every rung
of its ASHA; and `import ray.tune` takes 3.4 s and 190 MB, `import optuna` 0.7 s and 40 MB
(measured; 2 cores).

* **A number that is none.** NaN and both infinities are worse than every number. So is a trial
  that failed: what makes a program diverge or run out of memory is not to be tried again.
* **The seed.** The n-th trial is a function of the seed, n, and what is known by then: each is
  drawn by a sampler of its own. A search that goes on after a kill -9 draws what the one before
  would have drawn.
* **No trial twice.** One that was drawn before is drawn again, differently.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError
from launcher.sweep.protocol import Decision, Identify, Outcome, Past, Search, Suggestion, Verb
from launcher.sweep.search_settings import Settings, unsearchable
from launcher.sweep.search_space import Choice, Domain, Interval, Space, number_of, size, text_of
from launcher.sweep.search_space import texts as texts_of

if TYPE_CHECKING:
    import optuna

MEDIAN_TRIALS = 3  # that must have ended before one is stopped
TRIES = 20  # draws of one trial, until it is one that there was not


def make_search(settings: Settings, space: Space, identify: Identify) -> Search:
    """Raises ConfigError, also if the extra `tune` is not installed."""
    if found := list(unsearchable(settings, space)):
        raise ConfigError(found)
    study = Study(settings, space, identify)
    if settings.scheduler == "pbt":
        from launcher.sweep.search_pbt import Population

        return Population(settings, space, study)
    return study


class Study:
    """A search on one Optuna study in memory."""

    def __init__(self, settings: Settings, space: Space, identify: Identify) -> None:
        self.settings, self.space, self.identify = settings, space, identify
        self.study = _new_study(settings)
        self.distributions = {key: _distribution(domain) for key, domain in space.items()}
        self.trials: dict[str, optuna.Trial] = {}  # that have not ended
        self.known: dict[str, Mapping[str, str]] = {}
        self.heard: dict[str, int] = {}  # the last step, by trial
        self.stopped: set[str] = set()
        self.limit = (
            size(space) if settings.search == "grid" else min(settings.samples, size(space))
        )
        self.dry = False
        self.grid = self._walk() if settings.search == "grid" else None

    @property
    def exhausted(self) -> bool:
        return self.dry or len(self.known) >= self.limit

    def next(self) -> Suggestion | None:
        """One that has not been; None from when there is none left."""
        for attempt in range(0 if self.exhausted else TRIES):
            trial = self._draw(len(self.known), attempt)
            if trial is None:
                break
            overrides = {key: _text(self.space[key], trial.params[key]) for key in self.space}
            identity = self.identify(overrides)
            if identity not in self.known:
                self.trials[identity], self.known[identity] = trial, overrides
                return Suggestion(identity, overrides)
            self._close(trial, "FAIL")
        self.dry = True
        return None

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        value = metrics.get(self.settings.metric or "")
        if trial_id not in self.trials or value is None:
            return Verb.GO_ON
        if self._hear(trial_id, step, value):
            self.stopped.add(trial_id)
        return Verb.STOP if trial_id in self.stopped else Verb.GO_ON

    def kept(self, trial_id: str) -> None: ...

    def ended(self, trial_id: str, metrics: Mapping[str, float] | None, outcome: Outcome) -> None:
        trial = self.trials.pop(trial_id, None)
        if trial is None:
            return
        value = (metrics or {}).get(self.settings.metric or "")
        if outcome is Outcome.STOPPED:
            self._close(trial, "PRUNED")
        elif outcome is Outcome.FAILED:
            self.study.tell(trial, self._finite(math.nan))
        elif value is None:
            self._close(trial, "FAIL")  # nothing is known of it
        else:
            self.study.tell(trial, self._finite(value))

    def restore(self, history: Sequence[Past]) -> None:
        """A trial with values that are searched no more is none of this search."""
        for past in history:
            values = _draws(self.space, past.overrides)
            if values is None or past.trial_id in self.known:
                continue
            self.study.enqueue_trial(values)
            trial = self.study.ask(self.distributions)
            self.trials[past.trial_id] = trial
            self.known[past.trial_id] = dict(past.overrides)
            for report in past.reports:
                self.report(past.trial_id, report.step, report.metrics)
            self.stopped.discard(past.trial_id)
            if past.outcome is not None:
                last = dict(ChainMap(*(dict(each.metrics) for each in reversed(past.reports))))
                self.ended(past.trial_id, last or None, past.outcome)

    def _draw(self, number: int, attempt: int) -> optuna.Trial | None:
        """Nothing if there is no other. What chance has not found is looked up in the end."""
        grid = self.grid
        if grid is None and attempt == TRIES - 1 and size(self.space) < math.inf:
            grid = self._walk()
        if grid is None:
            self.study.sampler = _sampler(self.settings, number, attempt)
        elif (values := next(grid, None)) is not None:
            self.study.enqueue_trial(values)
        else:
            return None
        return self.study.ask(self.distributions)

    def _walk(self) -> Iterator[dict[str, Any]]:
        """The grid, the last key changing fastest, without what is known by then."""
        for row in itertools.product(*(texts_of(domain) for domain in self.space.values())):
            overrides = dict(zip(self.space, row, strict=True))
            values = _draws(self.space, overrides)
            if values is not None and self.identify(overrides) not in self.known:
                yield values

    def _close(self, trial: optuna.Trial, state: str) -> None:
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState[state])

    def _hear(self, trial_id: str, step: int, value: float) -> bool:
        """Whether the trial is not worth going on. A step that was heard is not heard again."""
        if step <= self.heard.get(trial_id, -1):
            return False
        self.heard[trial_id] = step
        trial = self.trials[trial_id]
        trial.report(self._finite(value), step)
        grace = self.settings.options.get("grace_steps", math.inf)
        return (step >= grace and not math.isfinite(value)) or trial.should_prune()

    def _finite(self, value: float) -> float:
        """What Optuna is told: it can compare neither NaN nor two infinities."""
        worst = -sys.float_info.max if self.settings.mode == "max" else sys.float_info.max
        return value if math.isfinite(value) else worst


def _new_study(settings: Settings) -> optuna.Study:
    try:
        import optuna
    except ImportError as error:
        from launcher.extras import command

        message = f"hydra/sweeper=tune needs Optuna, which is not here\n{command('tune')}"
        raise ConfigError(message) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    better = optuna.study.StudyDirection["MAXIMIZE" if settings.mode == "max" else "MINIMIZE"]
    return optuna.create_study(direction=better, pruner=_pruner(settings))


def _pruner(settings: Settings) -> optuna.pruners.BasePruner:
    from optuna import pruners

    options = {name: int(value) for name, value in settings.options.items()}
    match settings.scheduler:
        case "asha":
            return pruners.SuccessiveHalvingPruner(options["grace_steps"], options["reduction"])
        case "median":
            return pruners.MedianPruner(MEDIAN_TRIALS, options["grace_steps"])
    return pruners.NopPruner()


def _sampler(settings: Settings, number: int, attempt: int) -> optuna.samplers.BaseSampler:
    """Of one draw; `constant_liar` keeps trials that run at the same time apart."""
    from optuna import samplers

    seed = random.Random(f"{settings.seed} {number} {attempt}").getrandbits(32)
    if settings.search == "tpe" and attempt < TRIES // 2:
        return samplers.TPESampler(seed=seed, constant_liar=True)
    return samplers.RandomSampler(seed)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna import distributions

    match domain:
        case Choice(texts, ordered=True):
            return distributions.IntDistribution(0, len(texts) - 1)
        case Choice(texts):
            return distributions.CategoricalDistribution(texts)
        case Interval(low, high, whole=True):
            return distributions.IntDistribution(int(low), int(high), log=domain.log)
    return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _text(domain: Domain, drawn: Any) -> str:
    match domain:
        case Choice(texts, ordered=True):
            return str(texts[drawn])
        case Choice():
            return str(drawn)
    return text_of(domain, drawn)


def _drawn(domain: Domain, text: str) -> Any:
    """What a draw of `text` would have given; None if there is no such draw."""
    match domain:
        case Choice(texts, ordered):
            return None if text not in texts else texts.index(text) if ordered else text
    return number_of(domain, text)


def _draws(space: Space, overrides: Mapping[str, str]) -> dict[str, Any] | None:
    found = {key: _drawn(domain, overrides.get(key, "")) for key, domain in space.items()}
    return None if None in found.values() else found
