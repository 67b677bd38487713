"""Checkpoints of one trial as the beginning of another.

A launcher that is killed in between loses neither: `fetch` leaves the trial's own alone, and once
it is on record that what was fetched counts, `settle` puts it in their place, however often it is
called.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from launcher.errors import ClusterError

TRIES = 3
UNFINISHED = shutil.ignore_patterns("*tmp*", "*.part")  # as Orbax names what is being written


def fetch(source: Path, target: Path) -> bool:
    """Have a copy of `source` beside `target`; False if there is nothing in it yet.

    The source may be written meanwhile, and lose old checkpoints: then it is read again.
    Raises ClusterError when it changes faster than it can be read, or cannot be read at all.
    """
    try:
        return _fetched(source, _beside(target))
    except OSError as error:  # shutil.Error is one
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise ClusterError(f"the checkpoints in {source} cannot be copied: {why}") from error


def settle(target: Path, *, taken: bool) -> None:
    """What was fetched is in the place of what `target` held if it is `taken`, or else gone.

    Raises ClusterError.
    """
    fetched = _beside(target)
    if not fetched.is_dir():
        return
    shutil.rmtree(target if taken else fetched, ignore_errors=True)
    if taken:
        try:
            fetched.rename(target)
        except OSError as error:
            raise ClusterError(f"{target} cannot be replaced by {fetched}: {error}") from error


def _beside(target: Path) -> Path:
    return target.with_name(f".taken-{target.name}")


def _fetched(source: Path, copy: Path) -> bool:
    failed: OSError | None = None
    for _ in range(TRIES):
        shutil.rmtree(copy, ignore_errors=True)
        if not source.is_dir() or not any(source.iterdir()):
            return False
        try:
            shutil.copytree(source, copy, ignore=UNFINISHED, symlinks=True)
        except (shutil.Error, FileNotFoundError) as error:
            failed = error
            continue
        return True
    shutil.rmtree(copy, ignore_errors=True)
    assert failed is not None  # so often was it tried
    raise failed
