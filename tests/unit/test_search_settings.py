"""What the config says of a search, checked before anything is provisioned."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.sweep.search_settings import Settings, settings


def of(folder: Path, *overrides: str) -> tuple[Settings, list[str]]:
    found, problems = settings(compose([*overrides], cwd=folder).sweep)
    return found, [str(problem) for problem in problems]


def test_the_defaults_are_a_random_search_that_stops_nothing(tmp_path: Path) -> None:
    assert of(tmp_path) == (Settings(), [])


def test_a_schedulers_options_have_defaults(tmp_path: Path) -> None:
    found, problems = of(
        tmp_path, "sweep.metric=val_loss", "sweep.scheduler={kind: asha, reduction: 4}"
    )
    assert problems == []
    assert (found.mode, found.scheduler) == ("min", "asha")
    assert found.options == {"grace_steps": 1, "reduction": 4}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sweep.search=tpe"], "sweep.metric: tpe compares trials: by what?"),
        (["sweep.scheduler={kind: pbt}"], "sweep.metric: pbt compares trials: by what?"),
        (
            ["sweep.scheduler={kind: asha}", "sweep.metric=width"],
            "sweep.mode: is a smaller width better, or a larger?",
        ),
        (
            ["sweep.scheduler={kind: asha, quantile: 0.5}", "sweep.metric=loss"],
            "sweep.scheduler.quantile: asha has no such option",
        ),
        (
            ["sweep.scheduler={kind: pbt}", "sweep.metric=loss", "sweep.search=tpe"],
            "sweep.search: pbt changes its trials as they run",
        ),
    ],
)
def test_what_no_search_can_be_made_of(tmp_path: Path, overrides: list[str], said: str) -> None:
    (problem,) = of(tmp_path, *overrides)[1]
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sweep.search=grib", r"sweep\.search: must be grid, random or tpe"),
        ("sweep.samples=0", r"sweep\.samples: must be a whole number from 1, not '0'"),
        ("sweep.scheduler=asha", r"sweep\.scheduler: must be a map with kind: asha"),
        ("sweep.scheduler={grace_steps: 1}", r"sweep\.scheduler\.kind: not set"),
        ("sweep.scheduler={kind: ashes}", r"scheduler\.kind: must be asha, median or pbt"),
        ("sweep.scheduler={kind: asha, reduction: 1}", r"reduction: must be a whole number, 2"),
        ("sweep.scheduler={kind: median, grace_steps: 1.5}", r"grace_steps: must be a whole"),
        ("sweep.scheduler={kind: pbt, quantile: 0.9}", r"quantile: must be a number above 0"),
        ("sweep.scheduler={kind: asha, grace: 1}", r"grace: no such key.*\n.*mean grace_steps"),
        ("++sweep.seed=x", r"not 'x' \(sweep.seed=x\)"),
    ],
)
def test_what_the_schema_refuses(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose([override], cwd=tmp_path)
