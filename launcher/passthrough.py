"""Hydra's own flags: what it prints (`--cfg`, `--info`), and the trials of a multirun (`-m`).

Hydra prints its errors itself, with a traceback and exit code 1. So what can be checked is checked
before it gets to see the command line, and what it still finds comes back as a ConfigError.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.compose import CONF, Chosen, chosen_plugins, compose, config_folders
from launcher.config.composition import search_path
from launcher.config.overrides import as_hydra, check_points
from launcher.errors import ConfigError, Interrupted, Problem
from launcher.sweep import hydra_options
from launcher.sweep.trials import Composer
from launcher.verbs import Arguments, exit_code

if TYPE_CHECKING:
    from launcher.sweep.grids import Batches
    from launcher.sweep.sweeps import Ended

_UNCHECKED = ("--hydra-help", "--shell-completion")


def through_hydra(arguments: Arguments, run: Callable[[Arguments], int]) -> int:
    """The exit code, which of a multirun is that of its first failed trial; `run` runs a trial.

    Raises ConfigError for whatever is wrong with the configuration.
    """
    if "--multirun" in arguments.hydra:
        return _multirun(arguments, run)
    if not set(_UNCHECKED) & set(arguments.hydra):
        compose(
            arguments.overrides,
            config_dirs=arguments.config_dirs,
            cwd=Path.cwd(),
            require_workload=False,
        )
    task = Task(run, arguments.config_dirs)
    _call_hydra(arguments, task, ())
    return task.summary()


def _multirun(arguments: Arguments, run: Callable[[Arguments], int]) -> int:
    chosen = chosen_plugins(arguments.overrides, arguments.config_dirs, Path.cwd())
    _check_trials(arguments, chosen)
    task = Task(run, arguments.config_dirs)
    if len(arguments.hydra) > 1:
        return _show_trials(arguments, task)
    with tempfile.TemporaryDirectory() as folder, task.stack:
        _call_hydra(arguments, task, _plain_sweeper(chosen, folder))
    return task.summary()


def _show_trials(arguments: Arguments, task: Task) -> int:
    """`--cfg job -m`: Hydra has a config for one job or runs them all, and nothing in between.

    Raises ConfigError for other flags beside `-m`.
    """
    if others := set(arguments.hydra) - {"--multirun", "--cfg=job"}:
        raise ConfigError(f"-m does not go with {', '.join(sorted(others))}; --cfg job does")
    task.shows = True
    with tempfile.TemporaryDirectory() as folder:  # sweepers write into it, wanted or not
        overrides = [*arguments.overrides, f"hydra.sweep.dir='{folder}'"]
        shown = replace(arguments, hydra=("--multirun",), overrides=overrides)
        chosen = chosen_plugins(overrides, arguments.config_dirs, Path.cwd())
        _call_hydra(shown, task, _plain_sweeper(chosen, folder))
    return 0


def _plain_sweeper(chosen: Chosen, folder: str) -> list[str]:
    """Ours in place of Hydra's own, which writes its config into a folder that nobody reads. Not by
    conf/config.yaml: an experiment could not choose then, for the outer of two defaults lists has
    the word on Hydra's groups.
    """
    if chosen.sweeper != "basic":
        return []
    return [f"hydra/sweeper={hydra_options.GRID}", f"hydra.sweep.dir='{folder}'"]


def _check_trials(arguments: Arguments, chosen: Chosen) -> None:
    """Every value of a grid, before the first trial begins; a sweeper's are checked as they come.

    Raises ConfigError.
    """
    cwd, folders = Path.cwd(), arguments.config_dirs
    if chosen.sets_sweeper:
        return
    problems: list[Problem] = []
    names: Counter[str] = Counter()
    made_up = (f"{number:04x}" for number in itertools.count())
    composer = Composer(folders, cwd, lambda: next(made_up))
    for overrides in check_points(arguments.overrides):
        try:
            made = composer.spec(overrides)
            names[made.name] += 1
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    _check_names(chosen, names)


def _check_names(chosen: Chosen, names: Counter[str]) -> None:
    """Trials that are whole runs need names of their own; those of a shared cluster have them."""
    shared = sorted(name for name, count in names.items() if count > 1)
    if shared and chosen.launcher != hydra_options.LAUNCHER:
        message = f"several trials have the name {shared[0]}: each would resume the one before"
        hint = "leave it out, or make it of what differs: name='a-${workload.args.seed}'"
        raise ConfigError([Problem(message, "name", hint=hint)])


def _call_hydra(arguments: Arguments, task: Task, plugins: Sequence[str]) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    hydra_options.register()
    own = config_folders(Path.cwd(), arguments.config_dirs)[1:]
    more = [search_path(own)] if own else []
    sys.argv = ["launcher", *arguments.hydra, *as_hydra(arguments.overrides), *plugins, *more]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # an error comes to us instead of being printed
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


@dataclass(slots=True)
class Task:
    """What Hydra and its plug-ins call. A failed trial stops no other."""

    run: Callable[[Arguments], int]
    config_dirs: Sequence[Path]
    codes: dict[str, tuple[str, int]] = field(default_factory=dict)  # of each trial; its overrides
    shows: bool = False  # the configs of the trials instead of running them
    batches: Batches | None = None  # for as long as `stack` is open
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __call__(self, _config: object) -> None:
        """One trial as a run of its own: for `hydra/launcher=basic`."""
        from hydra.core.hydra_config import HydraConfig

        overrides = list(HydraConfig.get().overrides.task)
        if self.shows:
            self._show([overrides])
            return
        arguments = Arguments(
            overrides=overrides, config_dirs=self.config_dirs, hydra=("--multirun",)
        )
        code = exit_code(lambda: self.run(arguments))
        self._note(" ".join(overrides), overrides, code)
        if code == Interrupted.exit_code:
            raise SystemExit(code)

    def batch(self, points: Sequence[Sequence[str]]) -> list[Any]:
        """Trials that share a cluster: a value for each, as Hydra's sweepers want it."""
        if self.shows:
            self._show(points)
            return [job_return(point, 0.0) for point in points]
        from launcher.sweep.grids import Batches

        if self.batches is None:
            self.batches = self.stack.enter_context(Batches(self.config_dirs))
        ended = self.batches.run(points)
        self._note_all(ended)
        return [job_return(point, value) for point, value in zip(points, ended.values, strict=True)]

    def tune(
        self, overrides: Sequence[str], params: Mapping[str, Any], loader: Any
    ) -> float | None:
        """Trials that a searcher suggests; the value of the best."""
        if self.shows:
            raise ConfigError("the trials of hydra/sweeper=tune are not known beforehand")
        from launcher.sweep import tunes

        ended = tunes.run(overrides, params, self.config_dirs, loader)
        self._note_all(ended)
        return ended.best

    def _show(self, points: Sequence[Sequence[str]]) -> None:
        """Each trial's config as one YAML document. Raises ConfigError."""
        import yaml

        for trial in Composer(self.config_dirs, Path.cwd()).grid(points):
            print(f"--- # trial {trial.id}: {' '.join(map(plain, trial.overrides))}")
            print(yaml.safe_dump(dict(trial.spec.config), sort_keys=False), end="")

    def _note_all(self, ended: Ended) -> None:
        for entry in ended.entries:
            self._note(entry.trial.id, entry.trial.overrides, entry.exit_code)

    def _note(self, trial: str, overrides: Sequence[str], code: int) -> None:
        """Two trials of a population may have the same overrides in the end."""
        self.codes[trial] = " ".join(map(plain, overrides)), code

    def summary(self) -> int:
        """The exit code of the first trial that failed; all of them are told."""
        failed = [(overrides, code) for overrides, code in self.codes.values() if code]
        if failed:
            print(f"launcher: {len(failed)} of {len(self.codes)} trials failed", file=sys.stderr)
        for overrides, code in failed:
            print(f"  exit code {code}: {overrides}", file=sys.stderr)
        return failed[0][1] if failed else 0


def plain(override: str) -> str:
    """As one would type it."""
    return override.lstrip("+")


def job_return(overrides: Sequence[str], value: float | None) -> Any:
    """What Hydra's sweepers want of a trial. One without a value is worth NaN, which Optuna takes
    for a failure: a status that says so would end the sweep with the first of them.
    """
    from hydra.core.utils import JobReturn, JobStatus

    result = math.nan if value is None else value
    return JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=result)
