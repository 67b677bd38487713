"""`rehearse` with real launchers, emulators, faults: what survives passes, what does not fails."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

TRAIN = """
import json, os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
leads, forgets = os.environ["LAUNCHER_PROCESS_ID"] == "0", "FORGETS" in os.environ
saved = max((int(path.name) for path in folder.iterdir()), default=0)
noise = int(os.environ["LAUNCHER_ATTEMPT"]) if forgets else 0


def tell(**value):
    if leads:
        with open(os.environ["LAUNCHER_METRICS"], "a") as file:
            file.write(json.dumps(value) + "\\n")


tell(restored_step=saved)
for step in range(saved + 1, 31):
    time.sleep(0.1)
    tell(step=step, loss=noise + 1 / step, steps_per_second=time.time())
    if leads and step % 10 == 0 and not forgets:
        (folder / str(step)).touch()
"""
RUN = ("cluster=v4-16", "workload.script=train.py", "retry.backoff=100ms", "retry.grace=5s")
FAULTS = """
- name: forgotten
  deeds:
    - {when: {step: 50%}, do: kill-host, worker: last}
- name: never
  deeds:
    - {when: {step: 50%, checkpoint: changes}, do: preempt}
"""


@pytest.fixture
def train(place: Place) -> Place:
    (place.folder / "train.py").write_text(TRAIN)
    return place


def findings(place: Place, name: str) -> Mapping[str, Mapping[str, Any]]:
    found = json.loads((place.folder / "runs" / name / "rehearsal.json").read_text())
    return {row["scenario"]: row for row in found["scenarios"]}


def test_a_run_that_resumes_passes(train: Place) -> None:
    """A provider of the user's own is not touched, nor is their own emulator."""
    words = (*RUN, "name=good", "provider=google", "provider.project=p")
    shown = train.run("rehearse", *words, "--only", "preempted,launcher-killed")
    assert "not heeded: provider=google provider.project=p" in shown
    found = findings(train, "good")
    assert list(found) == ["clean", "preempted", "launcher-killed"]
    assert [row["passed"] for row in found.values()] == [True] * 3
    preempted, killed = found["preempted"], found["launcher-killed"]
    assert preempted["resumed_from"] in ([10], [20])
    assert preempted["charged"] == {"preemptions": 1, "failures": 0}
    assert preempted["metrics_equal"] is killed["metrics_equal"] is True
    assert killed["resumed_from"] == []
    assert killed["charged"]["preemptions"] == 0
    assert "kill-launcher after step" in killed["done"][0]
    assert not (train.home / "emulator").exists()
    shown = train.run("report", "good")
    assert shown.count("passed") == 3
    train.assert_clean()


def test_a_run_that_forgets_fails(train: Place) -> None:
    """All steps are lost, and what is learnt depends on the attempt."""
    (train.folder / "faults.yaml").write_text(FAULTS)
    words = ("cluster=v4-8", "name=bad", "workload.env.FORGETS=1", "--faults", "faults.yaml")
    shown = train.run("rehearse", *RUN[1:], *words, expect=5)
    found = findings(train, "bad")
    assert [row["passed"] for row in found.values()] == [True, False, None]
    (failure,) = found["forgotten"]["failures"]
    assert failure.startswith("other metrics than the clean run: loss 1.03")
    assert found["forgotten"]["lost_everything"]
    assert "forgotten/screen.log" in shown
    assert "never: skipped: the clean run saved nothing" in shown
    train.assert_clean()


def test_a_rehearsal_that_is_stopped_leaves_nothing(train: Place) -> None:
    process = train.start("rehearse", *RUN, "name=stopped", "--only=preempted")
    train.wait_for("stopped/clean", "started")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert train.processes() == []
    train.assert_clean()


@pytest.mark.stress
@pytest.mark.timeout(3600 * 2)
def test_the_standard_set_on_a_real_training(place: Place) -> None:
    words = ("experiment=lm_tiny", "name=lm", "--faults=standard", "--random=5")
    shown = place.run("rehearse", *words, timeout=3600 * 2 - 60)
    assert "FAILED" not in shown
    place.assert_clean()


@pytest.mark.stress
@pytest.mark.timeout(3600 * 2)
def test_fifty_schedules_drawn_by_chance(train: Place) -> None:
    """On a training that takes no time itself; the screen tells their seed."""
    words = (*RUN, "name=drawn", "retry.max_preemptions=5", "retry.max_failures=2", "--random=50")
    shown = train.run("rehearse", *words, timeout=3600 * 2 - 60)
    assert "FAILED" not in shown
    train.assert_clean()
