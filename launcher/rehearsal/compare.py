"""What two runs have told, compared; and how many steps one of them made in vain. Pure.

A line of metrics is a JSON object as in `metrics.jsonl`, with `attempt` and `process`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Name = tuple[str, str]  # process, key

# Of where a run was, not of what it computed.
OF_THE_COURSE = frozenset({"attempt", "process", "restored_step", "saved_step"})
# Words in the names of times and speeds, which differ from run to run.
OF_TIME = frozenset(
    {
        *("time", "times", "timestamp", "date", "duration", "elapsed", "eta", "second", "seconds"),
        *("sec", "secs", "s", "ms", "per", "speed", "throughput", "fps", "mfu"),
    }
)
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """`equal` is None where there was nothing to compare; `text` says what was found."""

    equal: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Steps that were made again; `everything`: an attempt began anew though steps were done."""

    steps: int = 0
    everything: bool = False


def compare(clean: Iterable[Line], other: Iterable[Line], tolerance: float = 0.0) -> Comparison:
    """The last value of each key that both runs tell, times and speeds apart.

    `tolerance` is relative to the greater of two numbers; 0 asks for the same digits.
    """
    expected, found = values(clean), values(other)
    if not expected:
        return Comparison(None, "no metrics: not compared")
    common = sorted(expected.keys() & found.keys(), key=lambda name: (name[1] != "step", name))
    if not common:
        return Comparison(False, f"told none of {_names(expected)}")
    differing = [
        name for name in common if not same(_last(expected[name]), _last(found[name]), tolerance)
    ]
    if not differing:
        return Comparison(True, f"equal: {_names(common)}")
    shown = (
        _difference(name, expected[name], found[name], tolerance) for name in differing[:SHOWN]
    )
    return Comparison(False, "; ".join(shown))


def values(lines: Iterable[Line]) -> dict[Name, list[tuple[int | None, Any]]]:
    """What was told under each key that can be compared, with its step, in the order of time."""
    found: dict[Name, list[tuple[int | None, Any]]] = {}
    for line in lines:
        for key, value in line.items():
            if is_compared(key):
                name = (str(line.get("process", "")), key)
                found.setdefault(name, []).append((line.get("step"), value))
    return found


def is_compared(key: str) -> bool:
    words = re.split(r"[^a-z]+", key.lower())
    return key not in OF_THE_COURSE and OF_TIME.isdisjoint(words)


def same(one: Any, two: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    numbers = all(type(value) in (int, float) for value in (one, two))
    if tolerance and numbers:
        return math.isclose(one, two, rel_tol=tolerance)
    return bool(one == two)


def _last(told: Sequence[tuple[int | None, Any]]) -> Any:
    return told[-1][1]


def _difference(
    name: Name,
    expected: Sequence[tuple[int | None, Any]],
    found: Sequence[tuple[int | None, Any]],
    tolerance: float,
) -> str:
    text = f"{name[1]} {_last(found)!r}, not {_last(expected)!r}"
    by_step = dict(expected)
    for step, value in found:
        if step is not None and step in by_step and not same(by_step[step], value, tolerance):
            return f"{text} (differs from step {step} on)"
    return text


def _names(names: Iterable[Name]) -> str:
    keys = list(dict.fromkeys(key for _, key in names))
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def last_step(lines: Iterable[Line]) -> int | None:
    """The highest step that was told; None if none was."""
    return max((line["step"] for line in lines if type(line.get("step")) is int), default=None)


def lost(lines: Iterable[Line]) -> Lost:
    """What attempts did beyond the step that the next one went on from."""
    steps, everything, high, attempt = 0, False, 0, None
    for line in lines:
        origin = _origin(line)
        if origin is None:
            continue
        if line.get("attempt") != attempt:
            steps += max(0, high - origin)
            everything = everything or (high > 0 and origin == 0)
            attempt, high = line.get("attempt"), origin
        high = max(high, line.get("step") or 0)
    return Lost(steps, everything)


def _origin(line: Line) -> int | None:
    """The step that an attempt went on from, if this is its first line that tells."""
    if type(restored := line.get("restored_step")) is int:
        return max(restored, 0)
    return max(step - 1, 0) if type(step := line.get("step")) is int else None
