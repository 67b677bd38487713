"""Checkpoints of one writer: one file a step, complete or not there.

A file is written beside its place and renamed; on gs:// (with the package gcsfs) an object appears
when it is whole. By fsspec, which PyTorch itself needs.
"""

from __future__ import annotations

import re
from typing import Any

import fsspec
import torch

_NAME = re.compile(r"step-(\d+)\.pt$")


def newest(directory: str) -> tuple[int, Any] | None:
    """The newest that can be read, as step and state; None if there is none.

    Raises ValueError when there are checkpoints and none can be read: to begin anew over them could
    lose weeks.
    """
    files, root = fsspec.core.url_to_fs(directory)
    steps = steps_in(files, root)
    for step in reversed(steps):
        try:
            with files.open(path_of(root, step), "rb") as file:
                return step, torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged file leads to
            print(f"checkpoint {step} in {directory} is damaged: {error!r:.300}", flush=True)
    if steps:
        hint = "give another checkpoint_dir or name, or delete them to begin anew"
        raise ValueError(f"none of the checkpoints {steps} in {directory} can be read: {hint}")
    return None


def save(directory: str, step: int, state: Any, keep: int) -> None:
    """Write it, then delete all but the newest `keep`."""
    files, root = fsspec.core.url_to_fs(directory)
    files.makedirs(root, exist_ok=True)
    beside = f"{path_of(root, step)}.tmp"
    with files.open(beside, "wb") as file:
        torch.save(state, file)
    files.mv(beside, path_of(root, step))
    for old in steps_in(files, root)[:-keep]:
        files.rm(path_of(root, old))


def steps_in(files: Any, root: str) -> list[int]:
    """Of the complete checkpoints, in order."""
    names = files.ls(root, detail=False, refresh=True) if files.exists(root) else []
    return sorted(int(found[1]) for name in names if (found := _NAME.search(name)))


def path_of(root: str, step: int) -> str:
    return f"{root.rstrip('/')}/step-{step:08}.pt"
