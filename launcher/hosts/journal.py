"""What happened to the processes of an attempt on this host, told from any point on. On a host.

Output and metrics are files that grow, exits and the like a list. A supervisor says up to where it
knows the files; a `Teller` sends it the rest, then all that is new. So nothing is lost and nothing
comes twice when a supervisor comes back after a broken connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from launcher.hosts.link import Link
from launcher.hosts.watch import Watch

CHUNK = 2**18
LINE_BYTES = 100_000  # of one line of metrics; a frame holds it, escaped, with room to spare
HEARTBEAT_SECONDS = 1.0
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
FINAL = ("exit", "gone")  # events before which all output has been sent
Offsets = Mapping[int, Sequence[int]]  # process → bytes of output, lines of metrics


class Journal:
    """The files and events of an attempt. `tell` may be called from any thread."""

    def __init__(self, folder: Path, processes: Sequence[int]) -> None:
        self.folder = folder
        self.processes = processes
        self.events: list[dict[str, Any]] = []
        self.tails: dict[int, bytes] = {}  # the last output of those that have ended
        self.watches: list[Watch] = []
        folder.mkdir(parents=True)

    def output(self, process: int) -> Path:
        return self.folder / f"output-{process}"

    def metrics(self, process: int) -> Path:
        return self.folder / f"metrics-{process}.jsonl"

    def tell(self, **event: Any) -> None:
        self.events.append({"time": time.time()} | event)
        for watch in list(self.watches):
            watch.ring()

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["kind"] == kind]

    def free(self, process: int, size: int) -> None:
        """Give back the disk of the first bytes of an output, where the system can (fallocate(2)).

        Offsets stay what they are; what was freed reads as zeros.
        """
        if sys.platform == "linux":
            with contextlib.suppress(FileNotFoundError), self.output(process).open("r+b") as file:
                start, length = ctypes.c_int64(0), ctypes.c_int64(size)
                ctypes.CDLL(None).fallocate(file.fileno(), PUNCH_HOLE, start, length)

    def discard(self) -> None:
        """Free the disk; the events stay."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Teller:
    """Tells one supervisor all that it does not know yet, and then whatever happens."""

    def __init__(self, journal: Journal, link: Link, offsets: Offsets) -> None:
        self.journal = journal
        self.link = link
        known = {process: offsets.get(process, (0, 0)) for process in journal.processes}
        self.outputs = {p: Growing(journal.output(p), known[p][0]) for p in known}
        self.metrics = {p: Lines(journal.metrics(p), known[p][1]) for p in known}
        self.told = 0
        self.beat = time.monotonic()

    def run(self) -> None:
        """Until the connection ends. One thread, so that a host that stands still falls silent."""
        watch = Watch(self.journal.folder)
        self.journal.watches.append(watch)
        try:
            while self.link.is_open:
                if not (self._tell_event() or self._tell_growth()):
                    watch.wait(max(0.0, self.beat + HEARTBEAT_SECONDS - time.monotonic()))
                self._heartbeat()
        finally:
            self.journal.watches.remove(watch)
            watch.close()
            for process in self.journal.processes:
                self.outputs[process].close()
                self.metrics[process].close()

    def _heartbeat(self) -> None:
        if time.monotonic() >= self.beat + HEARTBEAT_SECONDS:
            self.beat = time.monotonic()
            self.link.send(kind="alive")

    def _tell_event(self) -> bool:
        if self.told == len(self.journal.events):
            return False
        event = self.journal.events[self.told]
        concerned = [event["process"]] if "process" in event else self.journal.processes
        if event["kind"] in FINAL:
            for process in concerned:
                self._drain(process)
        self.told += 1
        tail = self.journal.tails[event["process"]] if event["kind"] == "exit" else b""
        return self.link.send(tail, **event)

    def _drain(self, process: int) -> None:
        """Send all that the files of an ended process hold by now."""
        output = self.outputs[process]
        size = output.size()
        while output.offset < size and self._tell_output(process):
            self._heartbeat()
        self._tell_metrics(process, ended=True)

    def _tell_growth(self) -> bool:
        """Send a piece of each file that has grown; False when none has."""
        grown = [self._tell_output(p) | self._tell_metrics(p) for p in self.journal.processes]
        return any(grown)

    def _tell_output(self, process: int) -> bool:
        file = self.outputs[process]
        offset, chunk = file.offset, file.read()
        return bool(chunk) and self.link.send(chunk, kind="output", process=process, offset=offset)

    def _tell_metrics(self, process: int, ended: bool = False) -> bool:
        grown = False
        for line in self.metrics[process].read(ended):
            grown = self.link.send(line, kind="metrics", process=process)
        return grown


class Growing:
    """A file that is read while another process appends to it; it may not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.file: BinaryIO | None = None

    def open(self) -> BinaryIO | None:
        if self.file is None:
            with contextlib.suppress(FileNotFoundError):
                self.file = self.path.open("rb", buffering=0)
        return self.file

    def close(self) -> None:
        if self.file:
            self.file.close()

    def size(self) -> int:
        return os.fstat(file.fileno()).st_size if (file := self.open()) else 0

    def read(self) -> bytes:
        """The next piece; empty when there is nothing new."""
        file = self.open()
        chunk = os.pread(file.fileno(), CHUNK, self.offset) if file else b""
        self.offset += len(chunk)
        return chunk


class Lines:
    """The lines of such a file, but for the first `skip`. A line counts when it is complete."""

    def __init__(self, path: Path, skip: int) -> None:
        self.file = Growing(path)
        self.skip = skip
        self.begun = bytearray()

    def read(self, ended: bool) -> Iterator[bytes]:
        """The lines that are new; what follows the last newline only when the process has ended.

        Of a line without end only the beginning is kept.
        """
        while chunk := self.file.read():
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                self._go_on(part)
                yield from self._known_to_nobody([self._taken() + b"\n"])
            self._go_on(rest)
        if ended and self.begun:
            yield from self._known_to_nobody([self._taken()])

    def _go_on(self, part: bytes) -> None:
        self.begun += part[: max(0, LINE_BYTES - len(self.begun))]

    def _taken(self) -> bytes:
        line, self.begun = bytes(self.begun), bytearray()
        return line

    def _known_to_nobody(self, lines: list[bytes]) -> Iterator[bytes]:
        for line in lines:
            if self.skip:
                self.skip -= 1
            else:
                yield line

    def close(self) -> None:
        self.file.close()
