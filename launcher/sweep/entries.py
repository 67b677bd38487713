"""Where each trial of a sweep stands, in memory and in its folder."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.record import read_lines
from launcher.sweep import scores
from launcher.sweep.protocol import Outcome, Report
from launcher.sweep.trials import Trial

ATTEMPT = "under_way.json"
STANDING = "trial.json"  # of a trial that has not ended: what result.json has once it has
METRICS = "metrics.jsonl"


class Status(enum.StrEnum):
    """`WAITING` are those that have not begun, and those that go on later."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    SUCCEEDED = enum.auto()
    STOPPED = enum.auto()
    FAILED = enum.auto()


ENDED = (Status.SUCCEEDED, Status.STOPPED, Status.FAILED)


@dataclass(slots=True)
class Entry:
    """One trial: `origin` is what a searcher chose for it, `suggested` what it has of it now.

    `values` are the last numbers it reported, `step` and `iterations` how far it is, `heard` is the
    last step of each metric. `wanted` is the place where processes of it may still run, `known_at`
    when an earlier launcher heard of them last, in seconds since 1970, or 0. `since` is when it
    began to run, by the monotonic clock; `ran` are the seconds of before. `not_before` likewise
    keeps it waiting.
    """

    trial: Trial
    number: int
    origin: Mapping[str, str] = field(default_factory=dict)
    suggested: Mapping[str, str] = field(default_factory=dict)
    status: Status = Status.WAITING
    place: str = ""
    wanted: str = ""
    known_at: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    step: int | None = None
    iterations: int = 0
    since: float | None = None
    ran: float = 0.0
    not_before: float = 0.0
    attempts: int = 0
    exit_code: int = 0
    message: str = ""
    code: str = ""  # the digest of what it ran last
    taken: bool = False  # checkpoints of another that lie beside its own are to take their place
    begun: bool = False  # an earlier invocation has left something of it
    told: Status = Status.WAITING  # the last that the screen has said of it

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def seconds(self) -> float:
        """That it ran, up to now."""
        return self.ran + (time.monotonic() - self.since if self.since is not None else 0.0)

    def begin(self, place: str) -> None:
        self.status, self.place, self.wanted = Status.RUNNING, place, ""
        self.since = time.monotonic()

    def leave(self, status: Status) -> None:
        self.ran, self.since = self.seconds, None
        self.status = status

    def take(self, values: Mapping[str, Any]) -> Report | None:
        """What a metrics line says that is new; None if nothing is.

        A metric of a step that was told is told again by the second process of a trial, and by an
        attempt that makes steps again. Several lines may tell of one step.
        """
        numbers, step = scores.numbers(values), values.get(scores.STEP)
        if type(step) is not int:
            step = self._unsaid(numbers)
        new = {key: value for key, value in numbers.items() if step > self.heard.get(key, -1)}
        if not new:
            return None
        self.iterations += self.step is None or step > self.step
        self.step = max(step, self.step or 0)
        self.values |= new
        self.heard |= dict.fromkeys(new, step)
        self.reports.append(Report(step, new))
        return self.reports[-1]

    def _unsaid(self, numbers: Mapping[str, float]) -> int:
        """Of a line without a step: the step there is, or the next if that has these metrics."""
        last = self.step or 0
        return last + 1 if any(self.heard.get(key, -1) >= last for key in numbers) else last

    def go_back(self, source: Entry) -> None:
        """To where another trial is, whose checkpoints it goes on from."""
        self.step, self.heard = source.step, dict(source.heard)

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial.id,
            "number": self.number,
            "status": self.status,
            "place": self.place,
            "params": dict(self.trial.params),
            "overrides": list(self.trial.overrides),
            "metrics": {key: plain(value) for key, value in list(self.values.items())},
            "step": self.step,
            "iterations": self.iterations,
            "seconds": round(self.seconds, 3),
            "attempts": self.attempts,
            "exit_code": self.exit_code,
            "message": self.message,
        }


def plain(value: float) -> float | str:
    """As strict JSON has it: NaN and the infinite are texts."""
    return value if math.isfinite(value) else str(value)


def restored(trial: Trial, number: int, folder: Path, *, retry_failed: bool) -> Entry:
    """What its folder says of a trial."""
    entry, own = Entry(trial, number), folder / trial.id
    for line in read_lines(own / METRICS):
        entry.take({key: value for key, value in line.items() if key not in _OF_THE_FOLDER})
    result = registry.read_json(own / "result.json")
    running = registry.read_json(own / ATTEMPT) or {}
    entry.wanted = running.get("place", "")
    found = result or registry.read_json(own / STANDING) or {}
    entry.begun = bool(found or running)
    entry.ran = found.get("ran", 0.0)
    if running:
        began = changed_at(own / STANDING)
        entry.known_at = max(began, changed_at(own / METRICS))
        entry.ran += entry.known_at - began
    entry.attempts, entry.code = found.get("attempts", 0), found.get("code", "")
    entry.taken = found.get("taken", False)
    if result and (result["status"] in _STATUS or not retry_failed):
        entry.status = _STATUS.get(result["status"], Status.FAILED)
        entry.place = result.get("place", "")
        entry.exit_code, entry.message = result["exit_code"], result["message"]
        # One that went on from another has made some steps twice, and the second time counts.
        told = result.get("metrics", {})
        entry.values |= {key: float(value) for key, value in told.items()}
    return entry


def changed_at(file: Path) -> float:
    """In seconds since 1970; 0 where there is none."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


_OF_THE_FOLDER = ("attempt", "process")  # what `RunFolder.metrics` adds
_STATUS: Mapping[str, Status] = {"succeeded": Status.SUCCEEDED, "stopped": Status.STOPPED}
OUTCOMES: Mapping[Status, Outcome] = {
    Status.SUCCEEDED: Outcome.SUCCEEDED,
    Status.STOPPED: Outcome.STOPPED,
    Status.FAILED: Outcome.FAILED,
}
