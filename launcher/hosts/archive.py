"""The archive that carries the user's files: packed here, unpacked on a host.

A plain tar: compressing takes longer than any network between a launcher and its hosts saves. The
same files give the same bytes, so their digest names the archive and proves its arrival. Imports
nothing but the standard library, so that a host needs nothing else to unpack.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.source import FileEntry, Manifest

CHUNK = 8 * 2**20

_LONG_AGO = 315532800  # 1980-01-01, the first day that zip files know


class ArchiveError(Exception):
    """An archive that cannot be packed or must not be unpacked; the message names the member."""


def pack(manifest: Manifest) -> Iterator[bytes]:
    """The archive in chunks of at most `CHUNK` bytes; memory holds two of them.

    Raises ArchiveError when a file vanished or shrank since the scan.
    """
    waiting = bytearray()
    for block in _blocks(manifest):
        waiting += block
        while len(waiting) >= CHUNK:
            yield bytes(waiting[:CHUNK])
            del waiting[:CHUNK]
    yield bytes(waiting)


def digest(manifest: Manifest) -> str:
    """The sha256 of the archive in hex: of every name, mode, link and content."""
    total = sha256()
    for chunk in pack(manifest):
        total.update(chunk)
    return total.hexdigest()


def unpack(archive: IO[bytes], target: Path) -> None:
    """Unpack an archive made by `pack` into `target`, which appears complete or not at all.

    When `target` is there already, or another process is first to finish it, nothing changes.
    Raises ArchiveError for a member that is neither file nor link, or would lie or point outside.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)).resolve()
    try:
        _extract(archive, staging)
        os.rename(staging, target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _blocks(manifest: Manifest) -> Iterator[bytes]:
    for entry in manifest.files:
        yield _header(entry)
        if entry.link is None:
            yield from _content(manifest.root / entry.path, entry.size)
            yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(entry: FileEntry) -> bytes:
    info = tarfile.TarInfo(str(entry.path))
    info.mtime = _LONG_AGO
    info.mode = entry.mode
    if entry.link is None:
        info.size = entry.size
    else:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes, what the header promised: a log may grow while it is read."""
    with path.open("rb") as file:
        while size:
            block = file.read(min(size, CHUNK))
            if not block:
                raise ArchiveError(f"{path} shrank while it was packed")
            size -= len(block)
            yield block


def _extract(archive: IO[bytes], staging: Path) -> None:
    """Files first, links last: while files are written, no link can lead one of them astray."""
    links = []
    with tarfile.open(
        fileobj=archive, mode="r|", encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for member in tar:
            path = _safe_path(member, staging)
            if member.issym():
                links.append((path, member.linkname))
            else:
                _write(tar, member, path)
    for path, text in links:
        _check_inside(path.parent, staging)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(text)
    for path, _ in links:  # again, as a later link may turn an earlier one elsewhere
        _check_inside(path, staging)


def _safe_path(member: tarfile.TarInfo, staging: Path) -> Path:
    if not (member.isreg() or member.issym()):
        raise ArchiveError(f"refused {member.name!r}: neither a file nor a symlink")
    path = staging / member.name
    if os.path.isabs(member.name) or ".." in path.relative_to(staging).parts or path == staging:
        raise ArchiveError(f"refused {member.name!r}: outside the folder")
    return path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        raise ArchiveError(f"refused {member.name!r}: no content")
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _check_inside(path: Path, staging: Path) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(staging):
        raise ArchiveError(f"refused {str(path.relative_to(staging))!r}: leads outside the folder")
