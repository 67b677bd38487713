"""What Hydra calls. The work is that of the task, a `launcher.passthrough.Task`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper

from launcher.config.overrides import as_hydra


class _Plugin:
    """Both kinds are set up in the same way."""

    task: Any
    config: Any
    loader: Any

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.task, self.config = task_function, config
        self.loader = hydra_context.config_loader


class SweepLauncher(_Plugin, Launcher):
    """All trials of a batch on one cluster."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)  # sweepers write there
        returns: Sequence[JobReturn] = self.task.batch(job_overrides)
        return returns


class GridSweeper(BasicSweeper):
    """Hydra's own, but for two things. It composes every trial just to see whether it can: the
    launcher checks more, in less time. And keys of a file are read as those of the command line.
    """

    def _parse_config(self) -> list[str]:
        return as_hydra(super()._parse_config())

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None: ...


class TuneSweeper(_Plugin, Sweeper):
    """Trials that a searcher suggests, on one cluster."""

    def __init__(self, params: Any = None) -> None:
        self.params = dict(params or {})

    def sweep(self, arguments: list[str]) -> Any:
        return self.task.tune(arguments, self.params, self.loader)
