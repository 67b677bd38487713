"""Metrics as a person reads them: what is a number, what is good, and what comes last. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Words in the names of metrics of which a large value is good, and of those where a small one is.
_GOOD = (
    *("accuracy", "acc", "auc", "bleu", "f1", "iou", "map", "precision", "r2", "recall"),
    *("return", "reward", "rouge", "score"),
)
_BAD = ("error", "loss", "mae", "mse", "nll", "perplexity", "ppl", "regret", "rmse", "wer")
_HELD_OUT = ("dev", "eval", "test", "val", "valid", "validation")
STEP = "step"
# They say where a program is, not how good it is.
_STEPS = (STEP, "restored_step", "saved_step")


@dataclass(frozen=True, slots=True)
class Goal:
    """The metric by which trials are compared; `mode` is min or max."""

    metric: str
    mode: str

    def key(self, value: float | None) -> tuple[int, float]:
        """Sorts the best first. NaN and the infinite never win; what is missing is last."""
        if value is None:
            return 2, 0.0
        if not math.isfinite(value):
            return 1, 0.0
        return 0, -value if self.mode == "max" else value


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """What of a metrics line is a number, its steps apart. A truth value is none."""
    found = {key: number(value) for key, value in values.items() if key not in _STEPS}
    return {key: value for key, value in found.items() if value is not None}


def number(value: Any) -> float | None:
    """As a float; infinite where it is too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def mode_of(metric: str) -> str | None:
    """What the name of a metric says: max, min, or nothing."""
    words = _words(metric)
    good, bad = bool(words & {*_GOOD}), bool(words & {*_BAD})
    return None if good == bad else "max" if good else "min"


def goal(metric: str | None, mode: str | None, seen: Iterable[str]) -> Goal | None:
    """The goal that was asked for, else that of the likeliest metric among those `seen`."""
    if metric is not None:
        known = mode or mode_of(metric)
        return Goal(metric, known) if known else None
    likely = sorted(
        (name for name in dict.fromkeys(seen) if mode_of(name)),
        key=lambda name: (not _words(name) & {*_HELD_OUT}, mode_of(name) != "max"),
    )
    return goal(likely[0], mode, ()) if likely else None


def _words(metric: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", metric.lower()))
