"""What the config says of a search, and what no search can be made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.config.nearest import nearest_or_all
from launcher.errors import Problem
from launcher.spec import Sweep
from launcher.sweep.scores import mode_of
from launcher.sweep.search_space import Space, size

# The options of each scheduler, with their defaults. Steps are those of the metrics lines.
SCHEDULERS: Mapping[str, Mapping[str, float]] = {
    "asha": {"grace_steps": 1, "reduction": 3},  # one in three goes on at 1, 3, 9, … steps
    "median": {"grace_steps": 1},  # no trial is stopped before
    "pbt": {"interval": 5, "quantile": 0.25},  # steps between two looks; the worst and the best
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a search reads of `sweep`; `options` are all that the scheduler has."""

    search: str = "random"  # grid | random | tpe
    samples: int = 10
    seed: int = 0
    metric: str | None = None
    mode: str | None = None  # min | max
    scheduler: str | None = None
    options: Mapping[str, float] = field(default_factory=dict)


def settings(sweep: Sweep) -> tuple[Settings, list[Problem]]:
    """With defaults filled in, and what is wrong with them."""
    given: dict[str, Any] = dict(sweep.scheduler or {})
    kind = given.pop("kind", None)
    known = SCHEDULERS.get(kind or "", {})
    mode = sweep.mode or (mode_of(sweep.metric) if sweep.metric else None)
    found = Settings(
        sweep.search, sweep.samples, sweep.seed, sweep.metric, mode, kind, {**known, **given}
    )
    strange = [
        Problem(
            f"{kind} has no such option", f"sweep.scheduler.{key}", hint=nearest_or_all(key, known)
        )
        for key in given
        if key not in known
    ]
    return found, [*strange, *_missing(found)]


def _missing(settings: Settings) -> Iterator[Problem]:
    compares = settings.scheduler or ("tpe" if settings.search == "tpe" else None)
    if compares and settings.metric is None:
        hint = "the name of a number in the metrics lines: sweep.metric=accuracy"
        yield Problem(f"{compares} compares trials: by what?", "sweep.metric", hint=hint)
    elif compares and settings.mode is None:
        hint = "sweep.mode=min for a loss, sweep.mode=max for an accuracy"
        message = f"is a smaller {settings.metric} better, or a larger?"
        yield Problem(message, "sweep.mode", hint=hint)
    if settings.scheduler == "pbt" and settings.search == "tpe":
        message = "pbt changes its trials as they run: TPE could not tell which value did what"
        yield Problem(message, "sweep.search", hint="sweep.search=random")


def unsearchable(settings: Settings, space: Space) -> Iterator[Problem]:
    """What no values can be taken from."""
    if not space:
        hint = "give a key several values: 'workload.args.lr=interval(1e-5,1e-1)', or sweep.params"
        yield Problem("there is nothing to search", "sweep.params", hint=hint)
    for key, domain in space.items():
        if settings.search == "grid" and size({key: domain}) == math.inf:
            hint = "give choice(…) or range(…), or search with sweep.search=random"
            yield Problem("an interval has no grid", key, hint=hint)
