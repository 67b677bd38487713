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
from launcher.errors import ConfigError, Problem

DRAW = "give choice(…) or range(…), or have values drawn with hydra/sweeper=tune"


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
    """Hydra's own, but for three things. It composes every trial just to see whether it can: the
    launcher checks more, in less time. Keys of a file are read as those of the command line. And of
    an interval it says what to do about it.
    """

    def _parse_config(self) -> list[str]:
        return as_hydra(super()._parse_config())

    @staticmethod
    def split_arguments(overrides: Any, max_batch_size: int | None) -> Any:
        swept = [one for one in overrides if one.is_sweep_override()]
        problems = [
            Problem("an interval has no grid", one.get_key_element().lstrip("+"), hint=DRAW)
            for one in swept
            if not one.is_discrete_sweep()
        ]
        if problems:
            raise ConfigError(problems)
        return BasicSweeper.split_arguments(overrides, max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None: ...


class TuneSweeper(_Plugin, Sweeper):
    """Trials that a searcher suggests, on one cluster."""

    def __init__(self, params: Any = None) -> None:
        self.params = dict(params or {})

    def sweep(self, arguments: list[str]) -> Any:
        return self.task.tune(arguments, self.params, self.loader)
