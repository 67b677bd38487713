"""When a deed is due, from what is new in a run folder. Pure but for the folder's reading."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.record import parsed
from launcher.rehearsal.scenarios import When

State = frozenset[tuple[str, int, int]]


class Unreachable(Exception):
    """What a deed waits for cannot come in this run; the message says why."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the clean run was like: its last step, the seconds of its processes, whether it saved.

    `steps` is None for a program that tells none.
    """

    steps: int | None
    seconds: float
    saves: bool


@dataclass(frozen=True, slots=True)
class News:
    """What has come since the last look: kinds of events, and the highest step; `files` looks at
    the checkpoint folder.
    """

    events: frozenset[str] = frozenset()
    step: int | None = None
    files: Callable[[], State] = frozenset


Stage = Callable[[News, float], bool]


class Trigger:
    """Has `when` come? Asked with every piece of news, from the deed before on."""

    def __init__(self, when: When | None, course: Course) -> None:
        """Raises Unreachable for what such a run will never bring."""
        self._stages = deque(stages(when, course) if when else ())

    def has_come(self, news: News, now: float) -> bool:
        """`now` is the time in seconds of a monotonic clock."""
        while self._stages and self._stages[0](news, now):
            self._stages.popleft()
        return not self._stages


def stages(when: When, course: Course) -> list[Stage]:
    """What must come, one after the other.

    For a program that tells no steps, a share of them is the same share of its time.
    """
    if when.checkpoint and not course.saves:
        raise Unreachable("the clean run saved nothing in its checkpoint folder")
    if when.step is not None and course.steps is None:
        raise Unreachable("the clean run told no steps")
    by_time = when.share is not None and course.steps is None
    event = when.event or ("started" if by_time else None)
    found: list[Stage] = [seen(event)] if event else []
    if when.share is not None:
        found.append(
            passed(when.share * course.seconds)
            if course.steps is None
            else reached(max(1, round(when.share * course.steps)))
        )
    if when.step is not None:
        found.append(reached(when.step))
    if when.checkpoint:
        found.append(changed())
    if when.after:
        found.append(passed(when.after))
    return found


def seen(kind: str) -> Stage:
    return lambda news, _: kind in news.events


def reached(step: int) -> Stage:
    return lambda news, _: news.step is not None and news.step >= step


def changed() -> Stage:
    """The first look remembers, the later ones compare."""
    before: list[State] = []

    def has_changed(news: News, _: float) -> bool:
        before.append(news.files())
        return before[-1] != before[0]

    return has_changed


def passed(seconds: float) -> Stage:
    began: list[float] = []

    def has_passed(_: News, now: float) -> bool:
        began.append(now)
        return now - began[0] >= seconds

    return has_passed


class Tail:
    """The complete lines of a JSON-lines file that have come since the last look; not one that was
    torn when a launcher was killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> list[Mapping[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [found for line in whole.split(b"\n") if (found := parsed(line)) is not None]


class Lookout:
    """Looks at a run folder; remembers where the run stands, for those who ask later."""

    def __init__(self, folder: Path) -> None:
        self._events, self._metrics = Tail(folder / "events.jsonl"), Tail(folder / "metrics.jsonl")
        self._checkpoints = folder / "checkpoints"
        self.last_event = "nothing yet"
        self.last_step: int | None = None

    def look(self) -> News:
        events = self._events.new()
        steps = [line["step"] for line in self._metrics.new() if type(line.get("step")) is int]
        if events:
            self.last_event = str(events[-1]["kind"])
        if steps:
            self.last_step = steps[-1]
        kinds = frozenset(str(event["kind"]) for event in events)
        return News(kinds, max(steps, default=None), lambda: state_of(self._checkpoints))


def state_of(folder: Path) -> State:
    """Every file and folder below, with its size and time of change (ns)."""
    found = []
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):  # it has just been renamed or deleted
                status = os.lstat(path)
                found.append((path, status.st_size, status.st_mtime_ns))
    return frozenset(found)
