"""The user's files on their way to the hosts: as they are now, or as they were when it began."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from launcher.errors import ConfigError
from launcher.hosts import archive
from launcher.source import Manifest


class Code(Protocol):
    """An archive that is named by its digest."""

    def digest(self) -> str: ...

    def pack(self) -> Iterator[bytes]:
        """The archive, in chunks."""
        ...


@dataclass(frozen=True, slots=True)
class AsItIs:
    """What a user mends between two attempts of a run is in the next one, at its length of then.

    Raises ConfigError for a file that is gone, or gets shorter while it is read.
    """

    manifest: Manifest

    def digest(self) -> str:
        with _changing():
            return archive.digest(_now(self.manifest))

    def pack(self) -> Iterator[bytes]:
        with _changing():
            yield from archive.pack(_now(self.manifest))


def _now(manifest: Manifest) -> Manifest:
    """The same files, with the sizes that they have by now."""
    sizes = {
        entry.path: (manifest.root / entry.path).stat().st_size
        for entry in manifest.files
        if entry.link is None
    }
    files = tuple(replace(entry, size=sizes.get(entry.path, 0)) for entry in manifest.files)
    return replace(manifest, files=files)


@contextlib.contextmanager
def _changing() -> Iterator[None]:
    try:
        yield
    except (archive.ArchiveError, FileNotFoundError) as error:
        hint = "the same command, once they stay as they are, goes on"
        raise ConfigError(f"the program's files changed meanwhile: {error}; {hint}") from error


class Snapshot:
    """Every trial of a sweep is the same program, whatever is edited meanwhile.

    Raises ConfigError for a file that is gone, or gets shorter while it is read.
    """

    def __init__(self, manifest: Manifest) -> None:
        total = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(tempfile.TemporaryFile())
            for chunk in AsItIs(manifest).pack():
                total.update(chunk)
                self._file.write(chunk)
            self._file.flush()
            stack.pop_all()  # it lives as long as the snapshot
        self._digest = total.hexdigest()

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
