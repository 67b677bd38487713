"""The findings as a table: drawn on a terminal, plain columns through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A finding as in `rehearsal.json`."""

HEAD = (
    "scenario",
    "result",
    "resumed from",
    "steps lost",
    "metrics",
    "longer by",
    "charged",
    "left",
)
WHOLE = ("scenario", "result", "metrics", "left")  # columns that do not wrap
LONGEST = 2  # phases that are named


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, in the order of HEAD."""
    if row["passed"] is None or not row["seconds"]:
        return (row["scenario"], result(row), *("-",) * (len(HEAD) - 3), left(row))
    resumed = ", ".join("?" if step is None else str(step) for step in row["resumed_from"])
    return (
        row["scenario"],
        result(row),
        resumed or "-",
        steps_lost(row),
        {True: "equal", False: "differ", None: "none"}[row["metrics_equal"]],
        longer(row["seconds_more"]),
        charged(row["charged"]),
        left(row),
    )


def result(row: Row) -> str:
    return {True: "passed", False: "FAILED", None: "skipped"}[row["passed"]]


def steps_lost(row: Row) -> str:
    if row["steps_lost"] is None:
        return "-"
    return f"{row['steps_lost']}{' (all)' if row['lost_everything'] else ''}"


def left(row: Row) -> str:
    return str(len(row["left"])) if row["left"] else "nothing"


def charged(counts: Mapping[str, int]) -> str:
    words = [f"{number} {name}" for name, number in counts.items() if number]
    return ", ".join(word.removesuffix("s") if word[:2] == "1 " else word for word in words) or "-"


def longer(more: Mapping[str, float]) -> str:
    """In all, and the phases that took most of it."""
    phases = [(value, name) for name, value in more.items() if name != "total" and value >= 0.5]
    most = ", ".join(
        f"{name} {value:.0f}" for value, name in sorted(phases, reverse=True)[:LONGEST]
    )
    return f"{more.get('total', 0.0):+.1f} s{f' ({most})' if most else ''}"


def plain(rows: Iterable[Row]) -> str:
    table = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    return "\n".join(_padded(line, widths) for line in table)


def _padded(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()


def show(rows: Sequence[Row]) -> None:
    if not sys.stdout.isatty():
        print(plain(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in HEAD:
        table.add_column(name, no_wrap=name in WHOLE)
    for row in rows:
        style = {True: "", False: "bold red", None: "dim"}[row["passed"]]
        table.add_row(*cells(row), style=style)
    Console().print(table)


def remarks(rows: Iterable[Row]) -> Iterator[str]:
    """What failed, with the place of its log, and what to know besides."""
    for row in rows:
        for text in row["failures"]:
            yield f"{row['scenario']} failed: {text}"
        if row["failures"]:
            yield f"    log: {row['folder']}/screen.log, and all of it: {row['folder']}"
        yield from (f"{row['scenario']}: {text}" for text in row["warnings"])
