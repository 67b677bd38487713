"""A sweep that is begun a second time, and one that ends before its trials: what it knows and says."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.registry import write_json
from launcher.sweep import trial_run
from launcher.sweep.desk import Desk
from launcher.sweep.entries import STANDING, Status
from launcher.sweep.search import make_search
from launcher.sweep.search_space import Choice
from launcher.sweep.sweeps import history
from launcher.sweep.tunes import Tune
from launcher.sweep.trials import Composer

SPACE = {"workload.args.x": Choice(("1", "2", "3"))}


class Spot:
    title, slices, usable = "s0", (0,), True


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def searched(cwd: Path) -> tuple[Tune, Desk]:
    """A search as a command begins it, but for the cluster."""
    shared = ("workload.script=train.py", "sweep.name=s")
    tune = Tune(Composer((), cwd), SPACE, shared)
    desk = Desk(make_search(tune.settings(), SPACE, tune.identify), tune.make, tune.sweep.board)
    entries = tune.restored()
    desk.restore([entry for entry in entries if entry.begun], history(entries))
    return tune, desk


def test_a_trial_that_was_stopped_before_it_said_anything_is_the_same_one_again(cwd: Path) -> None:
    _, desk = searched(cwd)
    taken = desk.take(Spot())
    assert taken
    first, _stop = taken
    write_json(cwd / "runs" / "s" / first.trial.id / STANDING, trial_run._standing(first))
    tune, desk = searched(cwd)
    taken = desk.take(Spot())
    assert taken
    again, _stop = taken
    assert again.trial.id == first.trial.id
    desk.left(again, Status.SUCCEEDED)
    assert [(e.trial.id, e.status) for e in tune.sweep.board.entries] == [
        (first.trial.id, Status.SUCCEEDED)
    ]
