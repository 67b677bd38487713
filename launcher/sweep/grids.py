"""A sweep over points that are all known beforehand: Hydra's own grid, or batches of a sweeper."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from launcher.errors import LauncherError
from launcher.invocation import asker
from launcher.record import runs_folder
from launcher.sweep import identity, trials
from launcher.sweep.protocol import Decision, Outcome, Past, Suggestion, Verb
from launcher.sweep.sweeps import Ended, Sweep, check, concluded, in_order, own
from launcher.sweep.trials import Composer, Trial


class Grid:
    """The plainest searcher: trials in their order. Stops nothing, and learns nothing."""

    def __init__(self, trial_ids: Iterable[str]) -> None:
        self._left = deque(trial_ids)

    @property
    def exhausted(self) -> bool:
        return not self._left

    def next(self) -> Suggestion | None:
        return Suggestion(self._left.popleft(), {}) if self._left else None

    def report(self, trial_id: str, step: int, metrics: Mapping[str, float]) -> Decision:
        return Verb.GO_ON

    def kept(self, trial_id: str) -> None: ...

    def ended(
        self, trial_id: str, metrics: Mapping[str, float] | None, outcome: Outcome
    ) -> None: ...

    def restore(self, history: Sequence[Past]) -> None: ...


class Over(LauncherError):
    """The budget is used up or `fail_fast` has ended the sweep, and a sweeper asks for more."""


class Batches:
    """All batches of one command are one sweep, with one folder, one budget and one code."""

    def __init__(self, config_dirs: Sequence[Path]) -> None:
        self._composer = Composer(config_dirs, Path.cwd())
        self._points: list[Sequence[str]] = []
        self._sweep: Sweep | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """A sweeper that asks for more than is to run is no fault."""
        is_over = isinstance(error, Over)
        self._stack.__exit__(*((None,) * 3 if is_over else (kind, error, trace)))
        return is_over

    def run(self, points: Sequence[Sequence[str]]) -> Ended:
        """A trial for each point, and how each of them stands afterwards.

        Raises ConfigError with the problems of all before anything is provisioned, what ends the
        sweep as a whole, and Over for a batch after that in which the sweep has ended.
        """
        if self._sweep and self._sweep.over:
            raise Over("no other trial is to run")
        found = self._composer.grid(points)
        self._points += points
        name = self._sweep.name if self._sweep else self._name(found)
        made = [own(trial, name) for trial in found]
        groups = in_order(name, trials.groups(name, made, asker))
        check(groups)
        sweep = self._begun(name, made)
        for group in groups:
            mine = [sweep.board.of(trial.id) for trial in group.trials]
            if all(entry.ended for entry in mine):
                sweep.pass_over(mine)
            elif not sweep.over:
                ids = [entry.trial.id for entry in mine]
                sweep.run(group, mine, Grid(ids), lambda each: sweep.board.of(each.trial_id))
        entries = [sweep.board.of(identity.trial_id(point)) for point in points]
        return Ended(entries, sweep.board.goal)

    def _name(self, found: Sequence[Trial]) -> str:
        return trials.name_of([trial.spec for trial in found], self._points[0], Path.cwd())

    def _begun(self, name: str, made: Sequence[Trial]) -> Sweep:
        """The sweep with these trials too, and what tells all of them apart."""
        if self._sweep is None:
            self._sweep = Sweep(name, made[0].spec, runs_folder() / name)
            self._sweep.require_own_folder()
            self._stack.enter_context(concluded(self._sweep))
        sweep = self._sweep
        known = {entry.trial.id for entry in sweep.board.entries}
        sweep.restored([trial for trial in made if trial.id not in known])
        keys = trials.varying(self._points)
        for entry in sweep.board.entries:
            params = trials.params_of(entry.trial.overrides, keys)
            entry.trial = replace(entry.trial, params=params)
        for trial in made:
            sweep.code(trial)  # before anything is provisioned, and edited meanwhile
        return sweep
