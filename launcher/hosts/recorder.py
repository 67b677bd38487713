"""Copies what a process writes to a file. Runs on a host.

The process writes into a pipe, not into the file itself: a program that opens /dev/stderr would
truncate the file, and with it what has not been read yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import threading
import time
from pathlib import Path

from launcher.hosts.member import TAIL_BYTES

CHUNK = 2**18
PIPE_BYTES = 2**20  # fcntl(2) grants that much to everybody
DISK_FULL_SECONDS = 0.2  # from one try to the next


class Recorder:
    """The pipe and file of one process. Call `close_writer` once the process has the pipe.

    `tail` is the last that the process wrote, even if the disk had no room for it.
    """

    def __init__(self, path: Path) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError, AttributeError):  # macOS knows no such call
            fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.file = path.open("ab", buffering=0)
        self.tail = b""
        self.newline = True  # the file's last byte is one
        self.lock = threading.Lock()
        self.is_open = True
        self.deadline = math.inf  # for the disk to have room again
        threading.Thread(target=self._run, daemon=True).start()

    def close_writer(self) -> None:
        os.close(self.writer)

    def _run(self) -> None:
        """Until nobody holds the other end of the pipe."""
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        while self.is_open:
            poll.poll()
            self._copy()
        os.close(self.reader)

    def _copy(self) -> None:
        """Write what is in the pipe by now. From any thread."""
        with self.lock, contextlib.suppress(BlockingIOError):
            for _ in range(2 * PIPE_BYTES // CHUNK):
                if not self.is_open:
                    return
                if chunk := os.read(self.reader, CHUNK):
                    self._write(chunk)
                else:
                    self.is_open = False

    def say(self, text: str) -> None:
        """Lines of ours among the output."""
        lines = "".join(f"launcher: {line}\n" for line in text.splitlines())
        with self.lock:
            self._write(f"{'' if self.newline else chr(10)}{lines}".encode())

    def finish(self, patience: float = 0.0) -> None:
        """Write what is in the pipe by now; of what still comes, only what the disk has room for.

        When it has had none for `patience` seconds, the rest is dropped.
        """
        # Without the lock: who waits for room holds it.
        self.deadline = min(self.deadline, time.monotonic() + patience)
        self._copy()

    def close(self) -> None:
        """Finish, and keep nothing of what may still come."""
        self.finish()
        with self.lock:
            self.file.close()

    def _write(self, chunk: bytes) -> None:
        """All of it. While the disk is full the process waits, up to the deadline."""
        self.newline = chunk.endswith(b"\n")
        self.tail = (self.tail + chunk)[-TAIL_BYTES:]
        rest = memoryview(chunk)
        while rest and not self.file.closed:
            try:
                rest = rest[self.file.write(rest) :]
            except OSError:
                if time.monotonic() >= self.deadline:
                    self.file.close()
                else:
                    time.sleep(DISK_FULL_SECONDS)
