"""The run folder `runs/<name>/`: everything a run leaves to read. No secrets, no pickles.

Files are appended line by line or written whole. A name that runs again continues its folder: the
attempts go on counting, and the events are appended. A disk that is full does not end a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from launcher.appended import Appended
from launcher.hosts.member import Member
from launcher.registry import json_text, write_whole

RUNS = "LAUNCHER_RUNS"
BLOCK = 65_536  # bytes that are read at a time from the end of a file


def runs_folder() -> Path:
    """Where run folders are: `$LAUNCHER_RUNS`, else `runs/` where the user stands."""
    return Path.cwd() / os.environ.get(RUNS, "runs")


class Watcher(Protocol):
    """Is told of every change of a run folder; paths are relative to it."""

    def append(self, path: str, content: bytes) -> None: ...
    def write(self, path: str, content: bytes) -> None: ...
    def remove(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far earlier invocations have come: the next event's number, and the next attempt's."""

    sequence: int = 0
    attempt: int = 0


def progress(path: Path) -> Progress:
    """What the events in a run folder say."""
    earlier = read_lines(path / "events.jsonl")
    attempts = (event["attempt"] for event in earlier if "attempt" in event)
    return Progress(len(earlier), 1 + max(attempts, default=-1))


class RunFolder:
    """Writes a run's folder; `elapsed` in the events counts seconds from its opening.

    `shown` is how the user finds it, where that is another folder, `since` what it is to continue.
    """

    def __init__(
        self,
        path: Path,
        *,
        shown: Path | None = None,
        since: Progress | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.path = path
        self.shown = shown or path
        path.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        since = since or progress(path)
        self.sequence = since.sequence
        self.attempt = self.first_attempt = since.attempt
        self._watcher = watcher
        self._lock = threading.Lock()  # slices are created by threads
        self._events = Appended(path / "events.jsonl", lines=True)
        self._metrics = Appended(path / "metrics.jsonl", lines=True)
        self._logs: dict[Member, Appended] = {}
        self.trouble = ""  # why the record of this run is incomplete
        self.complain: Callable[[str], None] = lambda _: None  # told so, once

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._events.close()
        self._metrics.close()
        for file in self._logs.values():
            file.close()

    @property
    def elapsed(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def begin(self) -> None:
        """A result of an earlier run of this name is no longer the result."""
        (self.path / "result.json").unlink(missing_ok=True)
        if self._watcher:
            self._watcher.remove("result.json")

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """A run is worth more than its record: it goes on without what cannot be written."""
        try:
            yield
        except OSError as error:
            if not self.trouble:
                self.trouble = f"{self.shown} cannot be written: {error.strerror or error}"
                self.complain(f"{self.trouble}; the run goes on without its record")

    def write(self, name: str, value: Any) -> None:
        self.write_text(name, json_text(value))

    def write_text(self, name: str, text: str) -> None:
        with self._going_on():
            write_whole(self.path / name, text)
        if self._watcher:
            self._watcher.write(name, text.encode("utf-8"))

    def event(self, kind: str, **fields: Any) -> None:
        with self._lock:
            line = {"seq": self.sequence, "elapsed": self.elapsed, "kind": kind, **fields}
            self.sequence += 1
            self._append(self._events, "events.jsonl", line)

    def metrics(self, member: Member, line: str) -> dict[str, Any] | None:
        """Keep a metrics line with its attempt and process; None when it is no JSON object."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.event("bad-metrics", line=line[:200], attempt=self.attempt, process=str(member))
            return None
        own = {"attempt": self.attempt, "process": str(member)}
        self._append(self._metrics, "metrics.jsonl", {**value, **own})
        return value

    def _append(self, file: Appended, name: str, value: Any) -> None:
        line = (json.dumps(value, default=str) + "\n").encode()
        with self._going_on():
            file.append(line)
        if self._watcher:
            self._watcher.append(name, line)

    def output(self, member: Member, chunk: bytes) -> None:
        """Append to the member's complete log, byte for byte."""
        name = self._log_name(member)
        with self._going_on():
            if member not in self._logs:
                path = self.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._logs[member] = Appended(path)
            self._logs[member].append(chunk)
        if self._watcher:
            self._watcher.append(name, chunk)

    def log_path(self, member: Member) -> Path:
        """Where the user finds the member's log."""
        return self.shown / self._log_name(member)

    def _log_name(self, member: Member) -> str:
        return f"logs/attempt-{self.attempt}/{str(member).replace(' ', '-')}.log"

    def next(self) -> None:
        """Go on to the next attempt."""
        self.turn_to(self.attempt + 1)

    def turn_to(self, attempt: int) -> None:
        for file in self._logs.values():
            file.close()
        self._logs.clear()
        self.attempt = attempt

    def known(self, members: Iterable[Member]) -> dict[Member, tuple[int, int]]:
        """Of each process in this attempt: bytes of output, and lines of metrics, that are here."""
        lines = read_lines(self.path / "metrics.jsonl")
        lines += [e for e in read_lines(self.path / "events.jsonl") if e["kind"] == "bad-metrics"]
        counts = Counter(
            line.get("process") for line in lines if line.get("attempt") == self.attempt
        )
        sizes = {member: self.path / self._log_name(member) for member in members}
        return {
            member: (path.stat().st_size if path.exists() else 0, counts[str(member)])
            for member, path in sizes.items()
        }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a line being written is left for later."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := parsed(line)) is not None]


def parsed(line: bytes) -> dict[str, Any] | None:
    """A line's object; None for one that was torn when its writer died."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def last_step(folder: Path) -> int | None:
    """Of the last line of metrics that tells a step; there may be millions of lines before it."""
    for line in lines_from_end(folder / "metrics.jsonl"):
        if type(step := (parsed(line) or {}).get("step")) is int:
            return step
    return None


def lines_from_end(path: Path) -> Iterator[bytes]:
    """The complete lines of a file, the last one first."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        start, rest, ended = file.seek(0, os.SEEK_END), b"", False
        while start:
            size = min(start, BLOCK)
            start = file.seek(start - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            if lines and not ended:
                ended = True
                del lines[-1]  # behind the last line feed: a line being written, or nothing
            yield from reversed(lines)
        if ended:
            yield rest


# What a run is doing once an event of that kind has happened.
PHASES: Mapping[str, str] = {
    "plan": "starting",
    "head": "starting",
    "provisioning": "provisioning",
    "ready": "joining",
    "joined": "joining",
    "cluster": "staging",
    "adopted": "staging",
    "started": "running",
    "died": "stopping",
    "notice": "stopping",
    "hang": "stopping",
    "verdict": "releasing",
    "again": "waiting to start again",
}


def phase(events: Sequence[Mapping[str, Any]]) -> str:
    return next((PHASES[e["kind"]] for e in reversed(events) if e["kind"] in PHASES), "starting")
