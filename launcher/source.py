"""Which files of the user's folder travel to the hosts.

The rule, the stronger first:

1. What matches `SECRETS` never travels.
2. What matches `exclude` stays behind.
3. What matches `include` travels.
4. Inside a git work tree, tracked files travel, and untracked ones unless git ignores them or they
   lie in `CLUTTER`. Elsewhere all files travel unless they lie in `CLUTTER`.

A symlink travels as a link when what it names lies in the folder; no link is ever followed, so
loops cannot happen. Sockets, FIFOs, devices and other links stay behind, each with its reason.
Folders travel only by the files in them. Of a file's mode only the executable bit is kept.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath

from launcher import git
from launcher.errors import ConfigError, Problem

MAX_FILES = 20_000
MAX_BYTES = 512 * 2**20

# Names that are never sent, at any depth.
SECRETS = (
    ".env*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    ".ssh", ".gnupg", ".aws", ".netrc", ".git-credentials", ".pypirc",
    "application_default_credentials.json",
)  # fmt: skip

# Folders that tools make: at any depth, and (with a leading slash) at the top only.
CLUTTER = (
    ".git/", ".hg/", ".svn/", ".venv/", "venv/", ".tox/", ".nox/", "__pycache__/", "node_modules/",
    ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".ipynb_checkpoints/",
    "/runs/", "/outputs/", "/multirun/",
)  # fmt: skip

_OnError = Callable[[OSError], None]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file or link; `size` in bytes, `mode` 0o644 or 0o755, `link` the text of a symlink."""

    path: PurePosixPath
    size: int
    mode: int
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What travels, sorted by path, and what was left out that a user may miss, with the reason."""

    root: Path
    files: tuple[FileEntry, ...]
    skipped: tuple[tuple[PurePosixPath, str], ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


def scan(
    root: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    required: Sequence[str] = (),
) -> Manifest:
    """Choose the files below `root` by the rule above; only names and sizes are read.

    `include` holds globs relative to `root`, where a folder stands for all in it. An `exclude`
    pattern without a slash matches a name at any depth, one with a slash a path from `root`.
    `required` names files without which the run makes no sense.

    Raises ConfigError when a required file would stay behind (with the rule that drops it), a
    pattern is wrong, a file cannot be read, or there are more than `MAX_FILES` or `MAX_BYTES`.
    """
    root = root.resolve()
    choice = _Choice(root, tuple(exclude))
    choice.add_all(_candidates(root, exclude, choice.note_unreadable))
    for pattern in include:
        choice.add_all(_included(root, pattern, exclude, choice.note_unreadable))
    choice.check_limits()
    manifest = choice.manifest()
    problems = [*choice.problems[:10], *_missing(manifest, required, exclude)]
    if problems:
        raise ConfigError(problems)
    return manifest


def describe(manifest: Manifest) -> str:
    """One line for the screen: how many files, how big, from where, and what was left out."""
    count = len(manifest.files)
    line = f"code: {count:,} file{'' if count == 1 else 's'}, {human_bytes(manifest.total)}"
    line += f" from {shown(manifest.root)}"
    if not manifest.skipped:
        return line
    some = [f"{shown(path)} {reason}" for path, reason in manifest.skipped[:3]]
    more = ["…"] if len(manifest.skipped) > 3 else []
    return f"{line} ({len(manifest.skipped):,} skipped: {'; '.join(some + more)})"


def human_bytes(count: float) -> str:
    """`34 KiB`, `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def shown(path: PurePath | str) -> str:
    """A name fit for a terminal: control characters and invalid UTF-8 are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(path)
    )


@dataclass(slots=True)
class _Choice:
    """The files taken so far; by path, so that one that is offered twice counts once."""

    root: Path
    exclude: tuple[str, ...]
    files: dict[str, FileEntry] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add_all(self, paths: Iterable[str]) -> None:
        """Take paths until there are too many: a giant tree is not walked to its end."""
        for path in paths:
            if len(self.files) > MAX_FILES:
                return
            if pattern := matching(path, SECRETS):
                self.skipped[path] = f"may be a secret ({pattern})"
            elif not matching(path, self.exclude):
                self._add(path)

    def _add(self, path: str) -> None:
        absolute = self.root / path
        try:
            status = absolute.lstat()
            link = os.readlink(absolute) if stat.S_ISLNK(status.st_mode) else None
        except FileNotFoundError:  # git tracks it, the user deleted it
            return
        except OSError as error:
            self.note_unreadable(error)
            return
        if link is not None:
            self._add_link(path, link)
        elif not stat.S_ISREG(status.st_mode):
            self.skipped[path] = "is a FIFO, a socket or a device"
        elif not os.access(absolute, os.R_OK):
            self.note_unreadable(PermissionError(errno.EACCES, "permission denied", absolute))
        else:
            mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            self.files[path] = FileEntry(PurePosixPath(path), status.st_size, mode)

    def _add_link(self, path: str, text: str) -> None:
        absolute = self.root / path
        near = os.path.normpath(os.path.join(os.path.dirname(path), text))
        real = Path(os.path.realpath(absolute))
        if not os.path.exists(absolute):
            self.skipped[path] = "is a link to nothing"
        elif near.startswith(("/", "../")) or near == ".." or not real.is_relative_to(self.root):
            self.skipped[path] = "is a link that leaves the folder"
        else:
            self.files[path] = FileEntry(PurePosixPath(path), 0, 0o777, text)

    def note_unreadable(self, error: OSError) -> None:
        what = f"{shown(str(error.filename))} cannot be read ({error.strerror})"
        hint = "make it readable, or leave it out with workload.exclude"
        self.problems.append(Problem(what, hint=hint))

    def manifest(self) -> Manifest:
        skipped = ((PurePosixPath(path), why) for path, why in sorted(self.skipped.items()))
        files = (entry for _, entry in sorted(self.files.items()))
        return Manifest(self.root, tuple(files), tuple(skipped))

    def check_limits(self) -> None:
        """Raise ConfigError, naming what is largest, when the choice is over a limit."""
        total = sum(entry.size for entry in self.files.values())
        if len(self.files) <= MAX_FILES and total <= MAX_BYTES:
            return
        message = (
            f"{shown(self.root)} is too much to send to every host (at most {MAX_FILES:,} files "
            f"and {human_bytes(MAX_BYTES)}). The largest of the {len(self.files):,} "
            f"files, {human_bytes(total)} seen:\n{self._largest()}"
        )
        hint = "start from the project's own folder, or: 'workload.exclude=[data,\"*.ckpt\"]'"
        raise ConfigError([Problem(message, key="workload.exclude", hint=hint)])

    def _largest(self) -> str:
        """The ten files and folders with the most in them, by the limit that is exceeded."""
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for path, entry in self.files.items():
            for place in _ancestry(path):
                sizes[place] += entry.size
                counts[place] += 1
        ranking = counts if len(self.files) > MAX_FILES else sizes
        return "\n".join(
            f"      {human_bytes(sizes[place]):>10} {counts[place]:>7,} files  {shown(place)}"
            for place, _ in ranking.most_common(10)
        )


def _ancestry(path: str) -> list[str]:
    """`a`, `a/b` and `a/b/c` for `a/b/c`."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def matching(path: str, patterns: Iterable[str]) -> str | None:
    """The first pattern that matches `path` or a folder that it lies in."""
    ancestry = _ancestry(path)
    for pattern in patterns:
        if any(_matches(place, pattern) for place in ancestry):
            return pattern
    return None


def _matches(path: str, pattern: str) -> bool:
    anchored = "/" in pattern.rstrip("/")
    return fnmatchcase(path if anchored else path.rpartition("/")[2], pattern.strip("/"))


def _candidates(root: Path, exclude: Sequence[str], on_error: _OnError) -> Iterator[str]:
    if git.governs(root):
        return git.files(root, ignore=(*CLUTTER, *exclude))
    return _walk(root, root, exclude, on_error)


def _walk(root: Path, top: Path, exclude: Sequence[str], on_error: _OnError) -> Iterator[str]:
    """Paths of all files below `top`, and of the folders that are links or `SECRETS`."""
    visited = 0
    for here, folders, names in os.walk(top, onerror=on_error):
        visited += len(folders) + len(names)
        if visited > 20 * MAX_FILES:  # nearly all of it empty folders
            raise ConfigError(f"{shown(root)} holds too many folders to look through")
        relative = os.path.relpath(here, root)
        prefix = "" if relative == "." else f"{relative}/"
        enter = []
        for name in sorted(folders):
            if os.path.islink(os.path.join(here, name)) or matching(name, SECRETS):
                names.append(name)
            elif not any(_matches(prefix + name, pattern) for pattern in (*CLUTTER, *exclude)):
                enter.append(name)
        folders[:] = enter
        yield from (prefix + name for name in sorted(names))


def _included(
    root: Path, pattern: str, exclude: Sequence[str], on_error: _OnError
) -> Iterator[str]:
    if pattern.startswith("/") or ".." in pattern.split("/") or not pattern.strip("./"):
        raise _wrong_include(pattern, "must name something below the folder")
    found = list(islice(root.glob(pattern), MAX_FILES + 1))
    if not found:
        raise _wrong_include(pattern, f"matches nothing in {shown(root)}")
    for path in found:
        if path.is_dir() and not path.is_symlink():
            yield from _walk(root, path, exclude, on_error)
        else:
            yield path.relative_to(root).as_posix()


def _wrong_include(pattern: str, why: str) -> ConfigError:
    return ConfigError([Problem(f"{pattern!r} {why}", key="workload.include")])


def _missing(
    manifest: Manifest, required: Sequence[str], exclude: Sequence[str]
) -> Iterator[Problem]:
    travels = {str(entry.path) for entry in manifest.files}
    for name in (str(PurePosixPath(path)) for path in required):
        if name not in travels:
            why, hint = _why_missing(manifest, name, exclude)
            yield Problem(f"{shown(name)} would not reach the hosts: {why}", hint=hint)


def _why_missing(manifest: Manifest, name: str, exclude: Sequence[str]) -> tuple[str, str]:
    """Which rule drops a file, and the mend."""
    include = f"add it: 'workload.include=[\"{name}\"]'"
    if reason := dict(manifest.skipped).get(PurePosixPath(name)):
        return f"it {reason}", "rename it or choose another"
    if pattern := matching(name, exclude):
        return f"workload.exclude holds {pattern!r}", "take that pattern out"
    if not (manifest.root / name).is_file():
        return f"there is no such file in {shown(manifest.root)}", ""
    if rule := git.ignoring_rule(manifest.root, name):
        return f"git ignores it ({rule})", include
    return f"folders like {matching(name, CLUTTER)} stay behind", include
