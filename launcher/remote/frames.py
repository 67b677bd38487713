"""What a job says on its stdout, and the mirror that is made of it.

A frame is one JSON text in the form of RFC 7464: a record separator, the object in ASCII, a line
feed. So whatever else gets into the job's log, a frame is found, and any byte survives: file
contents are text in which bytes that are no UTF-8 are lone surrogates.

    {"seq": 0, "do": "append", "path": "events.jsonl", "at": 120, "text": "…"}
    {"seq": 1, "do": "write", "path": "plan.json", "text": "…"}     a file written whole
    {"seq": 2, "do": "part", "path": "plan.json", "text": "…"}      … of which this is a beginning
    {"seq": 3, "do": "remove", "path": "result.json"}
    {"seq": 4, "do": "phase", "topic": "head", "text": "…"}         lines for the screen
    {"seq": 5, "do": "wait", "text": "…"}
    {"seq": 6, "do": "exit", "code": 0, "up": false}    the last: whether slices of the run stay up

An append says where it belongs, so that a frame may be applied twice, and two followers at once
write the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.errors import ClusterError
from launcher.registry import read_json, write_json, write_whole

Frame = Mapping[str, Any]

SEPARATOR = "\x1e"
LONGEST_TEXT = 65_536
"""Characters of one frame's text. The messages that carry a job's log end at 4 MiB."""
MIRROR_STATE = ".mirror.json"


def encode(frame: Frame) -> bytes:
    return f"{SEPARATOR}{json.dumps(frame)}\n".encode("ascii")


class Decoder:
    """Frames out of a job's log that arrives in pieces; what is no frame is kept in `strays`."""

    def __init__(self) -> None:
        self._rest = ""
        self.strays: list[str] = []

    def feed(self, text: str) -> Iterator[Frame]:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            before, found, after = line.rpartition(SEPARATOR)
            frame = parse(after) if found else None
            if stray := before if frame else line:
                self.strays = [*self.strays[-199:], stray]
            if frame:
                yield frame


def parse(text: str) -> Frame | None:
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("seq"), int):
            return found
    return None


class Emitter:
    """Numbers frames and writes each in one piece. A reader that is gone does not end the run."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._sequence = 0
        self._lock = threading.Lock()

    def __call__(self, do: str, **fields: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._write(encode({"seq": self._sequence, "do": do, **fields}))
            self._sequence += 1


class FolderFrames:
    """Every change of a run folder as frames; `sizes` are those of the files that the mirror has.

    The coordinator's folder begins empty, the mirror may hold earlier attempts: what is appended
    here belongs behind them.
    """

    def __init__(self, emit: Emitter, sizes: Mapping[str, int]) -> None:
        self._emit = emit
        self._ends = dict(sizes)

    def append(self, path: str, content: bytes) -> None:
        for text in pieces(content):
            at = self._ends.get(path, 0)
            self._ends[path] = at + len(as_bytes(text))
            self._emit("append", path=path, at=at, text=text)

    def write(self, path: str, content: bytes) -> None:
        *parts, last = pieces(content)
        for part in parts:
            self._emit("part", path=path, text=part)
        self._emit("write", path=path, text=last)

    def remove(self, path: str) -> None:
        self._ends.pop(path, None)
        self._emit("remove", path=path)


def pieces(content: bytes) -> list[str]:
    """One or more texts of at most LONGEST_TEXT characters, which together are the content.

    Decoded in one go and then cut: a cut through bytes would make surrogates of a good character.
    """
    text = as_text(content)
    starts = range(0, max(len(text), 1), LONGEST_TEXT)
    return [text[start : start + LONGEST_TEXT] for start in starts]


def as_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


Change = Callable[["Mirror", Path, Frame], None]


class Mirror:
    """Repeats the changes of a job's run folder in a folder of this machine.

    Frames that were applied before, by whichever follower, are passed over.
    """

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        self._job = job
        self._parts: dict[str, str] = {}
        self.trouble = ""  # why the mirror is no longer written
        state = read_json(folder / MIRROR_STATE) or {}
        self.next: int = state.get("next", 0) if state.get("job") == job else 0

    def apply(self, frame: Frame) -> bool:
        """Whether the frame was new. Raises ClusterError for a path that leaves the folder."""
        if frame["seq"] < self.next:
            return False
        if (change := CHANGES.get(frame["do"])) and not self.trouble:
            self._carry_out(change, frame)
        if not self._parts:  # a file that has begun to arrive is taken from its beginning next time
            self.next = frame["seq"] + 1
        return True

    def _carry_out(self, change: Change, frame: Frame) -> None:
        """What cannot be written is left to a later mirror, which goes on from the last `save`."""
        path = self._path(frame["path"])
        try:
            change(self, path, frame)
        except OSError as error:
            self._parts.clear()
            self.trouble = f"{self._folder} cannot be written: {error.strerror or error}"

    def save(self) -> None:
        """Remember how far the mirror has come."""
        if not self.trouble:
            write_json(self._folder / MIRROR_STATE, {"job": self._job, "next": self.next})

    def _path(self, name: str) -> Path:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ClusterError(f"a frame's path leaves the run folder: {name!r}")
        return self._folder / path

    def _append(self, path: Path, frame: Frame) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        with open(file, "wb", buffering=0) as stream:  # of a descriptor: nothing is cut off
            stream.seek(frame["at"])
            stream.write(as_bytes(frame["text"]))

    def _part(self, path: Path, frame: Frame) -> None:
        self._parts[frame["path"]] = self._parts.get(frame["path"], "") + frame["text"]

    def _write(self, path: Path, frame: Frame) -> None:
        write_whole(path, as_bytes(self._parts.pop(frame["path"], "") + frame["text"]))

    def _remove(self, path: Path, _frame: Frame) -> None:
        path.unlink(missing_ok=True)


CHANGES: Mapping[str, Change] = {
    "append": Mirror._append,
    "part": Mirror._part,
    "write": Mirror._write,
    "remove": Mirror._remove,
}
