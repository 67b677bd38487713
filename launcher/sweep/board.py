"""Shows where the trials stand, on screen and in the folder of the sweep."""

from __future__ import annotations

import csv
import io
import math
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.registry import json_text, write_whole
from launcher.reports.page import duration
from launcher.screen import Screen
from launcher.spec import Sweep
from launcher.sweep import scores, table
from launcher.sweep.entries import Entry, Status
from launcher.sweep.folder import TRIALS
from launcher.sweep.scores import Goal
from launcher.words import counted

CSV = "trials.csv"
SAVE_SECONDS = 1.0  # between two writings for the sake of metrics alone
SHOWN = 30  # rows of the table that moves
REFRESH = 4  # a second


class SweepScreen(Screen):
    """On a terminal a table that moves stands below the lines; what is waited for is its last."""

    def __init__(self) -> None:
        super().__init__()
        self._waits = ""
        self._board: Board | None = None
        self._live: Any = None

    def attach(self, board: Board) -> None:
        self._board = board
        self.wait("")
        if self.console is not None:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=REFRESH,
                transient=True,
            )
            self._live.start()

    def detach(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = self._board = None

    def wait(self, text: str) -> None:
        if self._live is None:
            super().wait(text)
        self._waits = text

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        assert self._board is not None
        rows, goal = self._board.shown(), self._board.goal
        grid = Table(box=None, pad_edge=False, header_style="bold")
        for name in table.head(rows, goal):
            grid.add_column(Text(name), no_wrap=True)
        for line in table.cells(rows, goal):
            grid.add_row(*map(Text, line))
        return Group(grid, Text(self._board.counts(), "dim"), Text(self._waits, "dim"))


class Board:
    """The listener of the desk. The table that moves is drawn by a thread of its own, while trials
    come and report: it reads copies.
    """

    def __init__(self, settings: Sweep, folder: Path, screen: Screen) -> None:
        self._settings = settings
        self._folder = folder
        self._screen = screen
        self._entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        self._saved = -math.inf
        self._trouble = ""  # the last that was told

    def add(self, entries: Iterable[Entry]) -> None:
        self._entries |= {entry.trial.id: entry for entry in entries}

    def of(self, trial_id: str) -> Entry:
        return self._entries[trial_id]

    @property
    def entries(self) -> list[Entry]:
        return sorted(self._entries.values(), key=lambda entry: entry.number)

    @property
    def goal(self) -> Goal | None:
        seen = dict.fromkeys(name for entry in self.entries for name in list(entry.values))
        return scores.goal(self._settings.metric, self._settings.mode, seen)

    def rows(self) -> list[Mapping[str, Any]]:
        return table.ordered([entry.to_json() for entry in self.entries], self.goal)

    def shown(self) -> list[Mapping[str, Any]]:
        """What runs, then the best of the others, as many as there is room for."""
        rows = self.rows()
        rows.sort(key=lambda row: (row["status"] != Status.RUNNING, row["status"] == "waiting"))
        return rows[:SHOWN]

    def counts(self) -> str:
        states = [entry.status for entry in self.entries]
        told = [f"{states.count(status)} {status}" for status in Status if status in states]
        return f"{counted(len(states), 'trial')}{': ' if told else ''}{', '.join(told)}"

    def changed(self, entry: Entry) -> None:
        """Says what has happened, and keeps it."""
        with self._lock:
            self._entries.setdefault(entry.trial.id, entry)
            if entry.told != entry.status:
                entry.told = entry.status
                self._screen.phase(*self._news(entry))
                self.save()
            elif time.monotonic() - self._saved > SAVE_SECONDS:
                self.save()

    def _news(self, entry: Entry) -> tuple[str, str]:
        trial = entry.trial
        names = table.short(list(trial.params))
        params = " ".join(
            f"{name}={table.cut(value)}"
            for name, value in zip(names, trial.params.values(), strict=True)
        )
        params = f": {params}" if params else ""
        if entry.status is Status.RUNNING:
            return "trial", f"{trial.id} on {entry.place}{params}"
        if entry.status is Status.WAITING:
            return "again", f"{trial.id} on {entry.place} waits to go on: {entry.message}"
        told = f"{trial.id} {entry.status} after {duration(entry.seconds)}{params}"
        return str(entry.status), f"{told}{self._result(entry)}"

    def _result(self, entry: Entry) -> str:
        """What came of it; where to read on if it failed."""
        if entry.status is Status.FAILED:
            indent = "\n" + 22 * " "
            return f"{indent}{entry.message}{indent}log: {self._folder / entry.trial.id / 'logs'}"
        goal = self.goal
        value = entry.values.get(goal.metric) if goal else None
        if goal and value is not None:
            return f"; {goal.metric} {table.number(value)}"
        if self._settings.metric and entry.ended:
            told = ", ".join(entry.values) or "none"
            return f"; it told no {self._settings.metric} (sweep.metric), of metrics: {told}"
        return ""

    def save(self) -> None:
        """Both files, whole. The sweep goes on where they cannot be written."""
        with self._lock:
            self._saved = time.monotonic()
            rows, goal = self.rows(), self.goal
            try:
                write_whole(self._folder / TRIALS, json_text(document(rows, goal)))
                write_whole(self._folder / CSV, as_csv(rows))
            except OSError as error:
                self._complain(f"{self._folder} cannot be written: {error.strerror or error}")

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._screen.phase("record", f"{trouble}; the sweep goes on without its files")


def document(rows: list[Mapping[str, Any]], goal: Goal | None) -> dict[str, Any]:
    """What `trials.json` holds: the trials, the best first, and what makes one the best."""
    found = table.best(rows, goal)
    return {
        "metric": goal.metric if goal else None,
        "mode": goal.mode if goal else None,
        "best": found["trial"] if found else None,
        "trials": rows,
    }


def as_csv(rows: list[Mapping[str, Any]]) -> str:
    """A row for each trial; parameters by their whole keys."""
    params, names = table.keys(rows), table.metrics(rows, None)
    own = ("trial", "status", "place", "step", "iterations", "seconds", "attempts", "exit_code")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*own, *params, *names])
    for row in rows:
        writer.writerow(
            [
                *(row[key] for key in own),
                *(row["params"].get(key, "") for key in params),
                *(row["metrics"].get(name, "") for name in names),
            ]
        )
    return file.getvalue()
