"""The report of a sweep: the table, how the best came to be, and what went with what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.reports.html import HEIGHT, LINES, MARGIN, WIDTH, document, table_of
from launcher.sweep import folder as folders
from launcher.sweep import table
from launcher.sweep.scores import Goal
from launcher.words import counted

Row = Mapping[str, Any]
GOOD, BAD = (47, 133, 90), (197, 48, 48)  # the colours of the best and the worst
LEFT, RIGHT, TOP, LOW = MARGIN, WIDTH - 2 * MARGIN, 24, HEIGHT - 24  # room for values at the right


def text(path: Path, found: Mapping[str, Any]) -> str:
    """For a terminal."""
    goal, rows = folders.goal_of(found), found["trials"]
    lines = [f"{path.name}: {_status(path)}, {counted(len(rows), 'trial')}", table.text(rows, goal)]
    if found["best"] and goal:
        lines.append(f"best by {goal.metric} ({goal.mode}): {found['best']}")
    lines += [table.told_steps(rows), f"all of it: {path}"]
    return "\n".join(filter(None, lines))


def html(path: Path, found: Mapping[str, Any]) -> str:
    """As one page."""
    goal, rows = folders.goal_of(found), found["trials"]
    cells = ([escape(cell) for cell in line] for line in table.cells(rows, goal))
    parts = [table_of(table.head(rows, goal), cells), f"<p>{table.told_steps(rows)}</p>"]
    if goal and any(_finite(row, goal) is not None for row in rows):
        parts += ["<h2>Best so far</h2>", best_so_far(rows, goal)]
        if table.keys(rows):
            parts += [f"<h2>Parameters and {escape(goal.metric)}</h2>", parallel(rows, goal)]
    parts.append(f"<p>All of it: <code>{escape(str(path))}</code></p>")
    status = _status(path)
    return document(path.name, status, status == "succeeded", parts)


def _status(path: Path) -> str:
    result = registry.read_json(path / "result.json") or {}
    return str(result.get("status", "no result yet"))


# --- best so far ------------------------------------------------------------------------------


def best_so_far(rows: Sequence[Row], goal: Goal) -> str:
    """A dot for each trial in the order in which they were begun, and the best up to it."""
    sound = [(row["number"], value) for row in rows if (value := _finite(row, goal)) is not None]
    return _svg(_history(sorted(sound), goal), "best value by trial")


def _history(points: Sequence[tuple[int, float]], goal: Goal) -> Iterator[str]:
    last, values = max(points[-1][0], 1), [value for _, value in points]
    yield f'<path d="M{LEFT},{TOP} V{LOW} H{RIGHT}" fill="none" stroke="#a0aec0"/>'
    path, best = "", values[0]
    for number, value in points:
        best = min(best, value, key=goal.key)
        x, y = LEFT + (RIGHT - LEFT) * number / last, _height(best, values)
        path += f"H{x:.1f} V{y:.1f} " if path else f"M{x:.1f},{y:.1f} "
        dot = _height(value, values)
        yield f'<circle cx="{x:.1f}" cy="{dot:.1f}" r="3" fill="{LINES[0]}"/>'
    yield f'<path d="{path}H{RIGHT}" fill="none" stroke="{LINES[1]}" stroke-width="2"/>'
    yield f'<text x="{LEFT}" y="{TOP - 8}">{escape(goal.metric)}, at best {best:.6g}</text>'
    yield f'<text x="{RIGHT}" y="{HEIGHT - 6}" text-anchor="end">trial {last}</text>'


def _finite(row: Row, goal: Goal) -> float | None:
    value = table.score(row, goal)
    return value if value is not None and math.isfinite(value) else None


# --- parallel coordinates -----------------------------------------------------------------------


def parallel(rows: Sequence[Row], goal: Goal) -> str:
    """A line for each trial, through its value on each axis; green is good."""
    keys = table.keys(rows)
    sound = [row for row in rows if _finite(row, goal) is not None]
    columns = [[row["params"].get(key, table.UNKNOWN) for row in sound] for key in keys]
    heights = [_positions(column) for column in columns]
    values = [value for row in sound if (value := _finite(row, goal)) is not None]
    heights.append([_height(value, values) for value in values])
    parts = list(_axes([*table.short(keys), goal.metric], [*columns, list(map(_text, values))]))
    xs = _xs(len(heights))
    for index, row in reversed(list(enumerate(sound))):
        path = " ".join(f"{x:.1f},{each[index]:.1f}" for x, each in zip(xs, heights, strict=True))
        colour = _colour(values[index], values, goal)
        title = f"<title>{escape(row['trial'])}: {escape(str(dict(row['params'])))}</title>"
        shape = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
        parts.append(f"{shape}{title}</polyline>")
    return _svg(parts, "parallel coordinates")


def _text(value: float) -> str:
    return f"{value:.6g}"


def _xs(count: int) -> list[float]:
    return [LEFT + (RIGHT - LEFT) * index / max(count - 1, 1) for index in range(count)]


def _axes(names: Sequence[str], columns: Sequence[Sequence[str]]) -> Iterator[str]:
    for x, name, column in zip(_xs(len(names)), names, columns, strict=True):
        yield f'<path d="M{x:.1f},{TOP} V{LOW}" stroke="#a0aec0"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(name)}</text>'
        ends = _ends(column)
        for y, value in zip((LOW, TOP), ends, strict=False):
            yield f'<text x="{x + 4:.1f}" y="{y:.1f}">{escape(table.cut(value))}</text>'


def _ends(column: Sequence[str]) -> list[str]:
    """The lowest value and the highest, where there are two."""
    ranked = sorted(dict.fromkeys(column), key=lambda text: (_number(text) or 0.0, text))
    return [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked


def _positions(column: Sequence[str]) -> list[float]:
    """Numbers on their scale, a logarithmic one where they span two orders; texts side by side."""
    numbers = [_number(text) for text in column]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        ranked = sorted(set(column))
        return [_height(ranked.index(text), range(len(ranked))) for text in column]
    if min(known) > 0 and max(known) / min(known) >= 100:
        known = [math.log(number) for number in known]
    return [_height(number, known) for number in known]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _height(value: float, among: Sequence[float]) -> float:
    low, high = min(among), max(among)
    share = (value - low) / (high - low) if high > low else 0.5
    return LOW - (LOW - TOP) * share


def _colour(value: float, among: Sequence[float], goal: Goal) -> str:
    low, high = min(among), max(among)
    share = (value - low) / (high - low) if high > low else 1.0
    share = share if goal.mode == "max" else 1.0 - share if high > low else 1.0
    mixed = (round(b + (g - b) * share) for g, b in zip(GOOD, BAD, strict=True))
    return f"rgb({','.join(map(str, mixed))})"


def _svg(parts: Iterator[str] | Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img"'
        f' aria-label="{label}">{"".join(parts)}</svg>'
    )
