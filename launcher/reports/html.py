"""The report as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from launcher.rehearsal import table
from launcher.reports.page import Attempt, Page, Point, duration

WIDTH, HEIGHT, MARGIN = 720, 220, 44  # pixels of the chart

# Of what a phase is: work, waste, waiting.
COLOURS: Mapping[str, str] = {"productive": "#2f855a", "lost": "#c53030", "recovery": "#c05621"}
OTHER = "#718096"
LINES = ("#2b6cb0", "#2f855a", "#b7791f", "#6b46c1", "#c53030", "#2c7a7b")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a202c; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .7rem
       .25rem 0; vertical-align: top; border-bottom: 1px solid #e2e8f0; }
th { font-weight: 600; }
code { font-size: .85em; color: #4a5568; overflow-wrap: anywhere; }
.bars td:last-child { width: 60%; }
.good { color: #2f855a; } .bad { color: #c53030; } .bar { height: .8rem; border-radius: 2px; }
svg text { font: 11px system-ui, sans-serif; fill: #4a5568; }
"""


def of_run(page: Page) -> str:
    """The page of a run."""
    parts = [f"<p>{escape(page.message)}</p>" if page.message else ""]
    parts.append(table_of(("", ""), ((escape(k), escape(v)) for k, v in page.facts.items())))
    if page.seconds:
        parts += ["<h2>Where the time went</h2>", _phases(page.seconds)]
    if any(attempt.points for attempt in page.attempts):
        parts += ["<h2>Steps over time</h2>", chart([a.points for a in page.attempts])]
    if page.attempts:
        head = ("attempt", "outcome", "what happened", "steps", "charged to", "logs")
        parts += ["<h2>Attempts</h2>", table_of(head, map(_attempt, page.attempts))]
    return document(page.name, page.status, page.status == "succeeded", [*parts, _where(page)])


def of_rehearsal(name: str, found: Mapping[str, Any]) -> str:
    """The page of a rehearsal, out of its `rehearsal.json`."""
    rows: Sequence[Mapping[str, Any]] = found["scenarios"]
    cells = ([escape(cell) for cell in table.cells(row)] for row in rows)
    remarks = [escape(line) for line in (*table.remarks(rows), *found.get("notes", ()))]
    listed = "".join(f"<li>{line}</li>" for line in remarks)
    passed = bool(found["passed"])
    status = "passed" if passed else "failed" if found["finished"] else "not finished"
    return document(name, status, passed, [table_of(table.HEAD, cells), f"<ul>{listed}</ul>"])


def document(name: str, status: str, good: bool, parts: Iterable[str]) -> str:
    """A page out of parts that are HTML."""
    title = escape(f"{name}: {status}")
    colour = "good" if good else "bad"
    head = f"<title>{title}</title><style>{STYLE}</style>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}</head><body>\n'
        f'<h1>{escape(name)}: <span class="{colour}">{escape(status)}</span></h1>\n'
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def table_of(head: Sequence[str], rows: Iterable[Iterable[str]], kind: str = "plain") -> str:
    """A table out of cells that are HTML."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head) if any(head) else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="{kind}">{f"<tr>{top}</tr>" if top else ""}{body}</table>'


def _phases(seconds: Mapping[str, float]) -> str:
    longest, total = max(seconds.values()), sum(seconds.values())
    rows = (
        (
            escape(phase),
            f"{duration(value)}, {value / total:.0%}",
            f'<div class="bar" style="width:{100 * value / longest:.1f}%;'
            f'min-width:2px;background:{COLOURS.get(phase, OTHER)}"></div>',
        )
        for phase, value in seconds.items()
    )
    return table_of(("phase", "time", ""), rows, "bars")


def _attempt(attempt: Attempt) -> tuple[str, ...]:
    steps = "-" if attempt.first_step is None else f"{attempt.first_step} to {attempt.last_step}"
    cells = (attempt.number, attempt.outcome or "open", attempt.summary, steps, attempt.budget)
    return (*(escape(str(cell)) for cell in cells), f"<code>{escape(str(attempt.logs))}</code>")


def _where(page: Page) -> str:
    return f"<p>All of it: <code>{escape(str(page.folder))}</code></p>"


def chart(series: Sequence[Sequence[Point]]) -> str:
    """Steps over seconds, a line for each attempt."""
    points = [point for each in series for point in each]
    right = max(seconds for seconds, _ in points) or 1.0
    top = max(step for _, step in points) or 1
    parts = [*_axes(right, top)]
    for number, each in enumerate(series):
        if each:
            colour = LINES[number % len(LINES)]
            path = " ".join(f"{_x(t, right):.1f},{_y(step, top):.1f}" for t, step in each)
            x, y = _x(each[0][0], right), _y(each[0][1], top)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                f'<text x="{x + 5:.1f}" y="{y - 5:.1f}">attempt {number}</text>'
            )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img"'
        f' aria-label="steps over time">{"".join(parts)}</svg>'
    )


def _axes(right: float, top: int) -> Iterator[str]:
    low, left = HEIGHT - MARGIN / 2, MARGIN
    yield (
        f'<path d="M{left},8 V{low} H{WIDTH - 8}" fill="none" stroke="#a0aec0"/>'
        f'<text x="4" y="{_y(top, top) + 4:.0f}">{top}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{duration(right)}</text>'
        f'<text x="4" y="{low:.0f}">step 0</text>'
    )


def _x(seconds: float, right: float) -> float:
    return MARGIN + (WIDTH - MARGIN - 24) * seconds / right


def _y(step: float, top: float) -> float:
    low = HEIGHT - MARGIN / 2
    return low - (low - 16) * step / top
