"""What git knows about a folder. Each question has a deadline, and no answer is an answer too."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from launcher.errors import ConfigError

_SECONDS = 20.0


def state(root: Path) -> dict[str, str | bool]:
    """`commit`, `dirty` and, when dirty, `diff_sha256` of the work tree; {} where git cannot say.

    The hash covers tracked files; untracked ones only make the tree dirty.
    """
    commit = _ask(root, "rev-parse", "--verify", "HEAD")
    status = _ask(root, "status", "--porcelain")
    if commit is None or status is None:
        return {}
    found: dict[str, str | bool] = {"commit": commit.decode().strip(), "dirty": bool(status)}
    diff = _ask(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    if status and diff is not None:
        found["diff_sha256"] = sha256(diff).hexdigest()
    return found


def governs(root: Path) -> bool:
    """Whether `root` lies in a work tree that does not ignore it as a whole."""
    inside = _ask(root, "rev-parse", "--is-inside-work-tree") == b"true\n"
    return inside and _ask(root, "check-ignore", "-q", ".") is None


def ignoring_rule(root: Path, path: str) -> str:
    """The `file:line:pattern` by which git ignores `path`, or ""."""
    answer = _ask(root, "check-ignore", "-v", "--", path) or b""
    return os.fsdecode(answer).partition("\t")[0].strip()


def files(root: Path, *, ignore: Sequence[str] = (), below: str = "") -> Iterator[str]:
    """Tracked files, and untracked ones that neither git nor an `ignore` pattern leaves out.

    Paths are relative to `root` and arrive while git still searches, so that the reader may stop
    early. Submodules and nested repositories are asked in their turn. Raises ConfigError when git
    fails or is too slow.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command += [f"--exclude={pattern}" for pattern in ignore]
    with subprocess.Popen(
        command,
        cwd=root / below,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as git:
        deadline = threading.Timer(_SECONDS, git.kill)
        deadline.start()
        try:
            for name in _names(git):
                path = below + name.rstrip("/")
                if (root / path).is_dir() and not (root / path).is_symlink():
                    yield from files(root, ignore=ignore, below=f"{path}/")
                else:
                    yield path
        finally:
            deadline.cancel()
            git.kill()
    if git.returncode:
        raise ConfigError(f"git could not list the files of {root / below} in {_SECONDS:.0f} s")


def _names(git: subprocess.Popen[bytes]) -> Iterator[str]:
    """The NUL-terminated names that `git` writes, until it ends."""
    assert git.stdout is not None
    rest = b""
    while block := os.read(git.stdout.fileno(), 1 << 16):
        *names, rest = (rest + block).split(b"\0")
        yield from map(os.fsdecode, names)
    git.wait()


def _ask(root: Path, *arguments: str) -> bytes | None:
    """What git prints; None without git, outside a work tree, on any error, or when too slow."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None
    return None


def _environment() -> dict[str, str]:
    """Ours without GIT_DIR and its kin, which would point git at another tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_OPTIONAL_LOCKS": "0"}
