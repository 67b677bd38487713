"""Checkpoints with Orbax: written while training goes on, restored by all processes alike.

A checkpoint is complete or it is not there: Orbax writes it beside its place and renames it, or on
gs:// marks it, when the last process has written its part. What a killed run left half done is
deleted at the next start.

Which one to restore is agreed upon: the newest that every process sees. When one process cannot
read its part, all fall back together to the one before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

ITEM = "default"  # Orbax's folder for the one tree of a step
GATHERED = 16  # numbers that a process can tell the others at once


class Checkpoints:
    """The checkpoints in one folder or bucket, named by the number of finished steps.

    Every method but `finished` must be called by all processes, in the same order.
    """

    def __init__(self, directory: str, keep: int) -> None:
        if "://" not in directory:
            directory = os.path.abspath(directory)
            os.makedirs(directory, exist_ok=True)
        everyone = set(range(jax.process_count()))
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,
            cleanup_tmp_directories=True,
            # Named processes meet at JAX's coordinator; by default they would meet in a collective,
            # which must be compiled, and waits for the steps that were sent to the chips before it.
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes=everyone),
        )
        self.manager = ocp.CheckpointManager(directory, options=options)
        self.directory = self.manager.directory
        self.saving: int | None = None

    def restore(self, abstract: Any) -> tuple[int, Any]:
        """The newest step that all processes can read, with its state; (0, None) if there is none.

        Checkpoints that turn out to be damaged are deleted once an older one is restored. Raises
        ValueError when there are checkpoints and none can be read: to begin anew over them could
        lose weeks.
        """
        damaged: list[int] = []
        for step in common(gather(sorted(self.manager.all_steps(), reverse=True))):
            state, problem = self._read(step, abstract)
            readers = gather([int(not problem)])[:, 0]
            if readers.all():
                for bad in damaged:
                    self.manager.delete(bad)
                return step, state
            damaged.append(step)
            reason = problem or f"process {int(np.argmin(readers))} cannot read it"
            print(f"checkpoint {step} in {self.directory} is damaged: {reason}", flush=True)
        if damaged:
            raise ValueError(
                f"none of the checkpoints {damaged} in {self.directory} can be read (see above);"
                " they may be of a network of another size: give another checkpoint_dir or name,"
                " or delete them to begin anew"
            )
        return 0, None

    def _read(self, step: int, abstract: Any) -> tuple[Any, str]:
        """This process's part, or why it cannot be read.

        Not by the manager's `restore`: in that, a process that fails leaves the others waiting.
        """
        folder = self.directory / str(step) / ITEM
        try:
            args = ocp.args.StandardRestore(abstract)
            return ocp.StandardCheckpointHandler().restore(folder, args=args), ""
        except Exception as error:  # whatever a damaged file leads to
            return None, f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"

    def save(self, step: int, state: Any) -> None:
        """Begin to save; returns once the state is copied, and may then be donated."""
        self.manager.save(step, args=ocp.args.StandardSave(state), force=True)
        self.saving = step

    def finished(self, wait: bool = False) -> int | None:
        """The step whose checkpoint has been completed since the last call, if any.

        Raises what went wrong with it.
        """
        if self.saving is None or (not wait and self.manager.is_saving_in_progress()):
            return None
        self.manager.wait_until_finished()
        step, self.saving = self.saving, None
        return step

    def close(self) -> None:
        self.manager.close()


def gather(numbers: Sequence[int]) -> np.ndarray:
    """What each process has to tell: a row per process, filled up with -1."""
    own = np.full(GATHERED, -1, np.int32)
    own[: len(numbers)] = numbers[:GATHERED]
    if jax.process_count() == 1:
        return own[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(own))


def common(steps: np.ndarray) -> list[int]:
    """Steps that are in every row, the newest first."""
    shared = set.intersection(*(set(row.tolist()) for row in steps)) - {-1}
    return sorted(shared, reverse=True)
