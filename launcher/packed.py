"""The user's files on their way to the hosts: as they are now, or as they were when it began."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from launcher import archive
from launcher.source import Manifest


class Code(Protocol):
    """An archive that is named by its digest."""

    def digest(self) -> str: ...

    def pack(self) -> Iterator[bytes]:
        """The archive, in chunks."""
        ...


@dataclass(frozen=True, slots=True)
class AsItIs:
    """What a user mends between two attempts of a run is in the next one."""

    manifest: Manifest

    def digest(self) -> str:
        return archive.digest(self.manifest)

    def pack(self) -> Iterator[bytes]:
        return archive.pack(self.manifest)


class Snapshot:
    """Every trial of a sweep is the same program, whatever is edited meanwhile."""

    def __init__(self, manifest: Manifest) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the snapshot
        total = hashlib.sha256()
        for chunk in archive.pack(manifest):
            total.update(chunk)
            self._file.write(chunk)
        self._digest = total.hexdigest()
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def digest(self) -> str:
        return self._digest

    def pack(self) -> Iterator[bytes]:
        """From any thread: each reads by a position of its own."""
        position = 0
        while chunk := os.pread(self._file.fileno(), archive.CHUNK, position):
            position += len(chunk)
            yield chunk
