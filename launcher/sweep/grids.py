"""A sweep over points that are all known beforehand: Hydra's own grid, or a batch of a sweeper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.record import runs_folder
from launcher.sweep import identity, trials
from launcher.sweep.entries import Entry
from launcher.sweep.grid import Grid
from launcher.sweep.protocol import Suggestion
from launcher.sweep.sweeps import Ended, Sweep, asker, check, concluded, in_order, own
from launcher.sweep.trials import Composer


def run(points: Sequence[Sequence[str]], config_dirs: Sequence[Path]) -> Ended:
    """A trial for each point, and how each of them stands afterwards.

    Raises ConfigError with the problems of all before anything is provisioned, and what ends the
    sweep as a whole.
    """
    cwd = Path.cwd()
    found = Composer(config_dirs, cwd).grid(points)
    name = trials.name_of([trial.spec for trial in found], points[0], cwd)
    made = [own(trial, name) for trial in found]
    groups = in_order(name, trials.groups(name, made, asker))
    check(groups)
    sweep = Sweep(name, made[0].spec, runs_folder() / name)
    sweep.require_own_folder()
    by_id = {entry.trial.id: entry for entry in sweep.restored(made)}

    def make(suggestion: Suggestion) -> Entry:
        return by_id[suggestion.trial_id]

    with concluded(sweep):
        for trial in made:
            sweep.code(trial)  # before anything is provisioned, and edited meanwhile
        for group in groups:
            mine = [by_id[trial.id] for trial in group.trials]
            if not sweep.over and not all(entry.ended for entry in mine):
                sweep.run(group, mine, Grid(entry.trial.id for entry in mine), make)
    ids = [identity.trial_id(point) for point in points]
    return Ended([by_id[trial_id] for trial_id in ids], sweep.board.goal)
