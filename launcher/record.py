"""The run folder `runs/<name>/`: everything a run leaves to read. No secrets, no pickles.

Files are appended line by line or written whole. A name that runs again continues its folder: the
attempts go on counting, and the events are appended.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from launcher.member import Member
from launcher.registry import write_json, write_whole


class RunFolder:
    """Writes a run's folder; `elapsed` in the events counts seconds from its opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        earlier = read_lines(path / "events.jsonl")
        self.sequence = len(earlier)
        self.attempt = 1 + max((e["attempt"] for e in earlier if "attempt" in e), default=-1)
        self._lock = threading.Lock()  # slices are created by threads
        self._events = (path / "events.jsonl").open("a", encoding="utf-8")
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self._logs: dict[Member, IO[bytes]] = {}

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

    def write(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)

    def event(self, kind: str, **fields: Any) -> None:
        with self._lock:
            line = {"seq": self.sequence, "elapsed": self.elapsed, "kind": kind, **fields}
            self.sequence += 1
            self._events.write(json.dumps(line, default=str) + "\n")
            self._events.flush()

    def metrics(self, line: str) -> dict[str, Any] | None:
        """Keep a metrics line of the workload with its attempt; None when it is no JSON object."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.event("bad-metrics", line=line[:200])
            return None
        self._metrics.write(json.dumps({**value, "attempt": self.attempt}) + "\n")
        self._metrics.flush()
        return value

    def output(self, member: Member, chunk: bytes) -> None:
        """Append to the member's complete log, byte for byte."""
        if member not in self._logs:
            self.log_path(member).parent.mkdir(parents=True, exist_ok=True)
            self._logs[member] = self.log_path(member).open("ab", buffering=0)
        self._logs[member].write(chunk)

    def log_path(self, member: Member) -> Path:
        name = str(member).replace(" ", "-")
        return self.path / "logs" / f"attempt-{self.attempt}" / f"{name}.log"

    def next(self) -> None:
        """Go on to the next attempt."""
        for file in self._logs.values():
            file.close()
        self._logs.clear()
        self.attempt += 1


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a line being written is left for later."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


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
    "verdict": "releasing",
    "again": "waiting to start again",
}


def phase(events: Sequence[Mapping[str, Any]]) -> str:
    return next((PHASES[e["kind"]] for e in reversed(events) if e["kind"] in PHASES), "starting")
