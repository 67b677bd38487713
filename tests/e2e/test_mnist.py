"""The workload `mnist`: whatever stops it, its numbers are those of a run that was left alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import WORKLOADS
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e


class Trainings:
    """Starts the program in a folder, on two devices of this machine."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder, self.compiled, self.number = folder, compiled, 0

    def start(self, *words: str) -> subprocess.Popen[str]:
        self.number += 1
        foreign = ("LAUNCHER_", "JAX_", "XLA_", "TPU_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        own = {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "LAUNCHER_METRICS": str(self.folder / f"metrics-{self.number}"),
        }
        return subprocess.Popen(
            [sys.executable, str(WORKLOADS / "mnist.py"), "--model=mlp", *words],
            env=kept | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, expect: int = 0) -> str:
        with self.start(*words) as process:
            shown = process.communicate(timeout=100)[0]
        assert process.returncode == expect, shown
        return shown

    def metrics(self, number: int | None = None) -> list[dict[str, Any]]:
        path = self.folder / f"metrics-{number or self.number}"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def epochs(self, number: int | None = None) -> dict[int, Mapping[str, float]]:
        return {line["step"]: line for line in self.metrics(number) if "accuracy" in line}


@pytest.fixture
def trainings(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(tmp_path, tmp_path_factory.getbasetemp() / "mnist-compiled")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_stopped_goes_on_with_the_very_same_numbers(
    trainings: Trainings, tmp_path: Path, stop: signal.Signals
) -> None:
    words = ["--epochs=12", "--lr=0.2"]
    trainings.run(*words)
    whole = trainings.epochs()
    assert whole[12]["accuracy"] > 0.9
    saved = f"--checkpoint_dir={tmp_path / 'saved'}"
    with trainings.start(*words, saved) as process:
        while not any("saved_step" in line for line in trainings.metrics()):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.005)
        process.send_signal(stop)
        process.communicate(timeout=100)
    assert process.returncode == (143 if stop == signal.SIGTERM else -9)
    begun = trainings.epochs()
    trainings.run(*words, saved)
    again = trainings.epochs()
    assert {**begun, **again} == whole
    assert begun.keys() != whole.keys() != again.keys()
    assert trainings.metrics()[0] == {"restored_step": min(again) - 1}


def test_a_loss_that_is_none_is_told_as_such(trainings: Trainings) -> None:
    trainings.run("--epochs=1", "--lr=1e30")
    assert math.isnan(trainings.epochs()[1]["loss"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch_size=9"], "--batch_size=9 does not divide by 2 chips"),
        (["--batch_size=5000"], "--batch_size=5000 is more than all 1437 images"),
    ],
)
def test_what_does_not_fit_the_chips_or_the_images(
    trainings: Trainings, words: Sequence[str], said: str
) -> None:
    assert said in trainings.run(*words, expect=1)


def test_all_chips_of_all_hosts_learn_together(place: Place) -> None:
    place.run(
        *("cluster=v4-16", "mode=jax", "workload=mnist", "name=m"),
        *("workload.args.model=mlp", "workload.args.epochs=3", "workload.args.lr=0.2"),
    )
    text = (place.folder / "runs" / "m" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines if "accuracy" in line] == [1, 2, 3]
    assert max(line.get("accuracy", 0.0) for line in lines) > 0.8
    assert "learn from, 360 to test with; 8 chips" in place.screen(0).read_text()
    place.assert_clean()


@pytest.mark.stress
def test_a_sweep_by_one_word_stops_its_bad_trials_early(place: Place) -> None:
    place.run("experiment=mnist_sweep", "sweep.samples=12", "sweep.name=s", timeout=280)
    trials = json.loads((place.folder / "runs" / "s" / "trials.json").read_text())["trials"]
    assert len(trials) == 12
    assert {trial["status"] for trial in trials} == {"succeeded", "stopped"}
    steps = sum(trial["step"] for trial in trials)
    assert steps < 12 * 9 / 2
    assert trials[0]["status"] == "succeeded"
    place.assert_clean()
