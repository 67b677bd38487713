"""The table of trials, as text; the best come first. Pure."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.reports.page import duration
from launcher.sweep import scores
from launcher.sweep.scores import Goal
from launcher.words import counted

GAP = "  "
LONGEST = 40  # of a cell; the files have all of it
UNKNOWN = "-"
LONG_NUMBER = 12  # characters


def ordered(rows: Iterable[Mapping[str, Any]], goal: Goal | None) -> list[Mapping[str, Any]]:
    """The best first, failed ones behind what has a value and did not fail; without a goal, and
    among equals, in the order of the command.
    """
    if goal is None:
        return list(rows)
    return sorted(rows, key=lambda row: _rank(row, goal))


def _rank(row: Mapping[str, Any], goal: Goal) -> tuple[int, bool, float]:
    kind, value = goal.key(score(row, goal))
    return kind, row["status"] == "failed", value


def score(row: Mapping[str, Any], goal: Goal) -> float | None:
    """The last value of the metric; None if there is none."""
    value = row["metrics"].get(goal.metric)
    return float(value) if isinstance(value, str) else scores.number(value)


def best(rows: Sequence[Mapping[str, Any]], goal: Goal | None) -> Mapping[str, Any] | None:
    """The first of the ordered ones, if it has a value that can win; a failed one cannot."""
    if goal is None or not rows:
        return None
    first = ordered(rows, goal)[0]
    return first if _rank(first, goal)[:2] == (0, False) else None


def steps(rows: Iterable[Mapping[str, Any]]) -> tuple[int, int | None]:
    """Made by all trials, and saved by stopping some early: each would have made as many as those
    that came to their end, in the median. None where none has.
    """
    rows = list(rows)
    made = sum(row["step"] or 0 for row in rows)
    stopped = [row["step"] or 0 for row in rows if row["status"] == "stopped"]
    whole = [row["step"] or 0 for row in rows if row["status"] == "succeeded"]
    if not stopped:
        return made, 0
    if not whole:
        return made, None
    end = round(statistics.median(whole))
    return made, sum(max(0, end - step) for step in stopped)


def told_steps(rows: Sequence[Mapping[str, Any]]) -> str:
    """`57 steps; 12 trials stopped early: 43 of 100 steps saved (43%)`; or nothing."""
    made, saved = steps(rows)
    stopped = sum(row["status"] == "stopped" for row in rows)
    words = [counted(made, "step")] if made else []
    if stopped:
        words.append(f"{counted(stopped, 'trial')} stopped early")
    share = (
        f": {saved} of {made + saved} steps saved ({saved / (made + saved):.0%})" if saved else ""
    )
    return "; ".join(words) + share


def head(rows: Sequence[Mapping[str, Any]], goal: Goal | None) -> list[str]:
    """As in `cells`: trial, status, place, parameters, metrics, iterations, time."""
    return [
        *("trial", "status", "place"),
        *short(keys(rows)),
        *metrics(rows, goal),
        *("iterations", "time"),
    ]


def cells(rows: Sequence[Mapping[str, Any]], goal: Goal | None) -> list[list[str]]:
    params, names = keys(rows), metrics(rows, goal)
    return [
        [
            *(row["trial"], row["status"], row["place"] or UNKNOWN),
            *(cut(row["params"].get(key, UNKNOWN)) for key in params),
            *(number(row["metrics"].get(name)) for name in names),
            *(str(row["iterations"]), duration(row["seconds"])),
        ]
        for row in rows
    ]


def keys(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row["params"]))


def metrics(rows: Iterable[Mapping[str, Any]], goal: Goal | None) -> list[str]:
    """The one that trials are compared by, else all that there are."""
    if goal:
        return [goal.metric]
    return list(dict.fromkeys(key for row in rows for key in row["metrics"]))


def short(names: Sequence[str]) -> list[str]:
    """Keys by as many of their last words as tell them apart: `lr` for `workload.args.lr`."""

    def last(name: str, words: int) -> str:
        return ".".join(name.split(".")[-words:])

    def alone(name: str, words: int) -> bool:
        return all(last(other, words) != last(name, words) for other in names if other != name)

    lengths = [next((n for n in range(1, 9) if alone(name, n)), 9) for name in names]
    return [last(name, length) for name, length in zip(names, lengths, strict=True)]


def cut(text: str) -> str:
    """One line of a value; an empty text is shown as one, a long number with six digits."""
    line = text.replace("\n", "\\n") or "''"
    if len(line) > LONG_NUMBER:
        with contextlib.suppress(ValueError):
            return f"{float(line):.6g}"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def number(value: Any) -> str:
    """With six digits; what is not finite came as a text."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else f"{value:.6g}"


def text(rows: Sequence[Mapping[str, Any]], goal: Goal | None) -> str:
    """Columns under their names."""
    lines = [head(rows, goal), *cells(rows, goal)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = itertools.chain(lines[:1], [["-" * width for width in widths]], lines[1:])
    return "\n".join(
        GAP.join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in ruled
    )
