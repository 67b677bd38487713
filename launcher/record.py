"""The run folder `runs/<name>/`: everything a run leaves to read. No secrets, no pickles.

Files are appended line by line or written whole. A name that runs again continues its folder: the
attempts go on counting, and the events are appended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from launcher.gang import Rank
from launcher.registry import write_json, write_whole


class RunFolder:
    """Writes a run's folder. `clock` gives seconds; `elapsed` in the events starts at zero."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        self.sequence = count_lines(path / "events.jsonl")
        self.attempt = next_attempt(path)
        self._events = (path / "events.jsonl").open("a", encoding="utf-8")
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self._logs: dict[Rank, IO[bytes]] = {}

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

    def write(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)

    def event(self, kind: str, **fields: Any) -> None:
        line = {"seq": self.sequence, "elapsed": self.elapsed, "kind": kind, **fields}
        self.sequence += 1
        self._events.write(json.dumps(line, default=str) + "\n")
        self._events.flush()

    def metrics(self, line: str) -> dict[str, Any] | None:
        """Keep a metrics line of the workload with its attempt; None when it is no JSON object."""
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self.event("bad-metrics", line=line[:200])
            return None
        self._metrics.write(json.dumps({**value, "attempt": self.attempt}) + "\n")
        self._metrics.flush()
        return value

    def output(self, rank: Rank, chunk: bytes) -> None:
        """Append to the rank's complete log, byte for byte."""
        if rank not in self._logs:
            self.log_path(rank).parent.mkdir(parents=True, exist_ok=True)
            self._logs[rank] = self.log_path(rank).open("ab", buffering=0)
        self._logs[rank].write(chunk)

    def log_path(self, rank: Rank) -> Path:
        name = str(rank).replace(" ", "-")
        return self.path / "logs" / f"attempt-{self.attempt}" / f"{name}.log"

    def next(self) -> None:
        """Go on to the next attempt."""
        for file in self._logs.values():
            file.close()
        self._logs.clear()
        self.attempt += 1


def next_attempt(path: Path) -> int:
    numbers = [int(p.name.rpartition("-")[2]) for p in (path / "logs").glob("attempt-*")]
    return max(numbers, default=-1) + 1


def count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0


def read_result(path: Path) -> Mapping[str, Any] | None:
    try:
        return dict(json.loads((path / "result.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None
