"""Hydra's own flags: what it prints (`--cfg`, `--info`), and the trials of a multirun (`-m`).

Hydra prints its errors itself, with a traceback and exit code 1. So what can be checked is checked
before it gets to see the command line, and what it still finds comes back as a ConfigError.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.compose import CONF, compose, config_folders, sets_sweeper
from launcher.config.composition import search_path
from launcher.config.overrides import as_hydra, check_points
from launcher.errors import ConfigError, Interrupted, Problem
from launcher.verbs import Arguments, exit_code

_UNCHECKED = ("--hydra-help", "--shell-completion")


def through_hydra(arguments: Arguments, run: Callable[[Arguments], int]) -> int:
    """The exit code, which of a multirun is that of its first failed trial; `run` runs a trial.

    Raises ConfigError for whatever is wrong with the configuration.
    """
    if "--multirun" in arguments.hydra:
        _check_trials(arguments)
    elif not set(_UNCHECKED) & set(arguments.hydra):
        compose(
            arguments.overrides,
            config_dirs=arguments.config_dirs,
            cwd=Path.cwd(),
            require_workload=False,
        )
    trials = _Trials(run, arguments.config_dirs)
    _call_hydra(arguments, trials)
    return trials.summary()


def _check_trials(arguments: Arguments) -> None:
    """Every value of a grid, before the first trial begins; a sweeper's are checked as they come.

    Raises ConfigError.
    """
    cwd, folders = Path.cwd(), arguments.config_dirs
    if sets_sweeper(arguments.overrides, folders, cwd):
        return
    problems: list[Problem] = []
    names: Counter[str] = Counter()
    made_up = (f"{number:04x}" for number in itertools.count())
    for overrides in check_points(arguments.overrides):
        try:
            made = compose(overrides, config_dirs=folders, cwd=cwd, suffix=lambda: next(made_up))
            names[made.name] += 1
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    if shared := sorted(name for name, count in names.items() if count > 1):
        message = f"several trials have the name {shared[0]}: each would resume the one before"
        hint = "leave it out, or make it of what differs: name='a-${workload.args.seed}'"
        raise ConfigError([Problem(message, "name", hint=hint)])


def _call_hydra(arguments: Arguments, task: Callable[[object], None]) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    own = config_folders(Path.cwd(), arguments.config_dirs)[1:]
    more = [search_path(own)] if own else []
    sys.argv = ["launcher", *arguments.hydra, *as_hydra(arguments.overrides), *more]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # an error comes to us instead of being printed
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


@dataclass(slots=True)
class _Trials:
    """Runs the trials that Hydra asks for, one after the other; a failed one stops no other."""

    run: Callable[[Arguments], int]
    config_dirs: Sequence[Path]
    codes: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, _config: object) -> None:
        from hydra.core.hydra_config import HydraConfig

        overrides = list(HydraConfig.get().overrides.task)
        arguments = Arguments(overrides=overrides, config_dirs=self.config_dirs)
        code = exit_code(lambda: self.run(arguments))
        self.codes.append((" ".join(override.lstrip("+") for override in overrides), code))
        if code == Interrupted.exit_code:
            raise SystemExit(code)

    def summary(self) -> int:
        failed = [(trial, code) for trial, code in self.codes if code]
        if failed:
            print(f"launcher: {len(failed)} of {len(self.codes)} trials failed", file=sys.stderr)
        for trial, code in failed:
            print(f"  exit code {code}: {trial}", file=sys.stderr)
        return failed[0][1] if failed else 0
