"""Checkpoints of one trial as the beginning of another."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from launcher.errors import ClusterError

TRIES = 3
UNFINISHED = shutil.ignore_patterns("*tmp*", "*.part")  # as Orbax names what is being written


def take_over(source: Path, target: Path) -> bool:
    """Have `target` hold what `source` does; False if that is nothing yet.

    The source may be written meanwhile, and lose old checkpoints: then it is read again.
    Raises ClusterError when it changes faster than it can be read, or cannot be read at all.
    """
    try:
        return _taken_over(source, target)
    except OSError as error:  # shutil.Error is one
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise ClusterError(f"the checkpoints in {source} cannot be copied: {why}") from error


def _taken_over(source: Path, target: Path) -> bool:
    failed: OSError | None = None
    for _ in range(TRIES):
        if not source.is_dir() or not any(source.iterdir()):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".taken-", dir=target.parent))
        try:
            shutil.copytree(source, staging, ignore=UNFINISHED, dirs_exist_ok=True, symlinks=True)
        except (shutil.Error, FileNotFoundError) as error:
            failed = error
            shutil.rmtree(staging)
            continue
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
        return True
    assert failed is not None  # so often was it tried
    raise failed
