"""What tells one trial from another: a hash of its overrides, whatever their order. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from launcher.config.overrides import settled

LENGTH = 8  # hexadecimal digits: in a sweep of 1000 trials one in 10,000 sweeps meets a collision
# They say how a trial is run, and not what it computes.
_MEANS = ("sweep", "hydra", "name", "keep", "retry")


def trial_id(overrides: Iterable[str]) -> str:
    """The same for the same values, in any order and spelling of them."""
    return _hash([list(pair) for pair in sorted(values(overrides).items())])


def values(overrides: Iterable[str]) -> dict[str, Any]:
    """The value of each key that matters to what a trial computes; of a key set twice, the last."""
    found = dict(settled(typed) for typed in overrides)
    return {key: value for key, value in found.items() if not is_means(key)}


def is_means(key: str) -> bool:
    """Whether a key says how trials are run, such as `sweep.per_trial` and `hydra/launcher`."""
    return key.partition(".")[0].partition("/")[0].lstrip("~") in _MEANS


def sweep_name(program: str, keys: Iterable[str], where: str) -> str:
    """For a sweep without a name: the same command, with values added or left out, has it again."""
    return f"{program}-sweep-{_hash([where, *sorted(set(keys))])[:4]}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:LENGTH]
