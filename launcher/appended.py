"""A file that grows. What a full disk leaves of it is a whole beginning, never one with a gap."""

from __future__ import annotations

import os
from pathlib import Path


class Appended:
    """A file to append to. Once a write has failed it stays as it is: later commands count on it.

    With `lines` it goes on from a line of its own: the last one may have been torn.
    """

    def __init__(self, path: Path, *, lines: bool = False) -> None:
        self._failed = False
        self._file = path.open("ab", buffering=0)
        if lines and self._file.tell() and not _ends_line(path):
            self.append(b"\n")

    def append(self, content: bytes) -> None:
        """Raises OSError, once, when it cannot be written."""
        left = memoryview(content)
        while left and not self._failed:
            try:
                left = left[self._file.write(left) :]
            except OSError:
                self._failed = True
                raise

    def close(self) -> None:
        self._file.close()


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
