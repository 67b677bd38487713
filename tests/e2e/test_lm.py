"""The workload `lm`: whatever stops it, its losses are those of a run that was left alone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from launcher.compose import WORKLOADS
from launcher.emulator.client import open_channel
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

STEPS = 40
STOPS = range(1, 25)  # not so near the end that the run could be over before the signal
FOREIGN = ("LAUNCHER_", "JAX_", "XLA_", "TPU_", "OMPI_", "MEGASCALE_")


class Trainings:
    """Starts `workloads/lm.py` in a folder, alone or as a gang; ends what it started."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder = folder
        self.compiled = compiled
        self.processes: list[subprocess.Popen[bytes]] = []
        self.attempts = 0

    def start(self, *words: str, size: int = 1, **directories: Path) -> list[Any]:
        """`size` processes on four devices in all; process i saves in `directories["pI"]`."""
        self.attempts += 1
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        gang = []
        for rank in range(size):
            saved = directories.get(f"p{rank}", self.folder / "checkpoints")
            command = [sys.executable, str(WORKLOADS / "lm.py"), f"--checkpoint_dir={saved}"]
            with self.log(rank).open("wb") as log:
                process = subprocess.Popen(
                    [*command, f"--steps={STEPS}", *words],
                    env=self.env(rank, size, address),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            gang.append(process)
        self.processes += gang
        return gang

    def env(self, rank: int, size: int, address: str) -> dict[str, str]:
        """Open MPI's variables are the shortest way to tell a bare `initialize` of its peers."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        return kept | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(4 // size),
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "JAX_COORDINATOR_ADDRESS": address,
            "LAUNCHER_METRICS": str(self.metrics_file(self.attempts, rank)),
            "LAUNCHER_NUM_PROCESSES": str(size),
            "OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        }

    def log(self, rank: int) -> Path:
        return self.folder / f"log-{self.attempts}-{rank}"

    def metrics_file(self, attempt: int, rank: int = 0) -> Path:
        return self.folder / f"metrics-{attempt}-{rank}.jsonl"

    def run(self, *words: str, size: int = 1, expect: int = 0, **directories: Path) -> str:
        """Until all have ended; what process 0 printed."""
        codes = [p.wait(200) for p in self.start(*words, size=size, **directories)]
        shown = self.log(0).read_text()
        assert codes == [expect] * size, shown
        return shown

    def stop_at(self, step: int, number: int, *words: str, size: int = 1) -> None:
        """Send the signal once that step's loss is known."""
        gang = self.start(*words, size=size)
        while step not in losses([self.metrics(self.attempts)]):
            assert gang[0].poll() is None, self.log(0).read_text()
            time.sleep(0.01)
        for process in gang:
            process.send_signal(number)
        expected = 143 if number == signal.SIGTERM else -number
        assert [p.wait(200) for p in gang] == [expected] * size, self.log(0).read_text()

    def metrics(self, attempt: int) -> list[dict[str, Any]]:
        path = self.metrics_file(attempt)
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def all_metrics(self) -> list[list[dict[str, Any]]]:
        return [self.metrics(attempt + 1) for attempt in range(self.attempts)]

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def losses(attempts: Sequence[Sequence[Mapping[str, Any]]]) -> dict[int, float]:
    """The loss of each step; a step that was made twice must have had the same one twice."""
    found: dict[int, float] = {}
    for line in (line for attempt in attempts for line in attempt if "loss" in line):
        assert found.setdefault(line["step"], line["loss"]) == line["loss"], line
    return found


def value(lines: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return [line[key] for line in lines if key in line]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: compiling is the longest part of so short a training."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def trainings(tmp_path: Path, compiled: Path) -> Iterator[Trainings]:
    made = Trainings(tmp_path, compiled)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> dict[int, float]:
    """Losses of a run of `STEPS` steps in one process that nothing interrupts."""
    alone = Trainings(tmp_path_factory.mktemp("alone"), compiled)
    try:
        assert "begins anew" in alone.run()
    finally:
        alone.close()
    curve = losses(alone.all_metrics())
    assert list(curve) == list(range(1, STEPS + 1))
    assert curve[STEPS] < 3.5 < 5 < curve[1]  # it does learn
    return curve


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_any_step_is_as_good_to_stop_at(
    trainings: Trainings, undisturbed: dict[int, float], number: int
) -> None:
    stopped_at = random.choice(STOPS)
    trainings.stop_at(stopped_at, number)
    trainings.run()
    before, after = trainings.all_metrics()
    assert losses([before, after]) == undisturbed, f"stopped at step {stopped_at}"
    restored, last = value(after, "restored_step"), max(losses([before]))
    assert value(before, "restored_step") == [0]
    if number == signal.SIGTERM:
        assert restored == [last] == value(before, "saved_step")[-1:]
    else:
        assert max([0, *value(before, "saved_step")]) <= restored[0] <= last
        assert restored[0] % 10 == 0
    assert not [p.name for p in (trainings.folder / "checkpoints").iterdir() if "tmp" in p.name]


def test_two_processes_stop_after_the_same_step_and_go_on(trainings: Trainings) -> None:
    trainings.run(size=2, p0=trainings.folder / "a", p1=trainings.folder / "a")
    trainings.stop_at(random.choice(STOPS), signal.SIGTERM, size=2)
    trainings.run(size=2)
    alone, before, after = trainings.all_metrics()
    assert losses([before, after]) == losses([alone])
    assert value(after, "restored_step") == [max(losses([before]))]


def test_a_damaged_checkpoint_is_passed_over_aloud(
    trainings: Trainings, undisturbed: dict[int, float]
) -> None:
    trainings.run("--steps=25", "--save_interval=10", "--keep=2")
    folder = trainings.folder / "checkpoints"
    assert steps_in(folder) == ["20", "25"]
    damage(folder / "25")
    shown = trainings.run("--steps=25", "--save_interval=10", "--keep=2")
    assert "checkpoint 25" in shown
    assert "is damaged" in shown
    assert "begins after step 20" in shown
    assert steps_in(folder) == ["20", "25"]
    for step in steps_in(folder):
        damage(folder / step)
    shown = trainings.run("--steps=25", expect=1)
    assert "none of the checkpoints [25, 20]" in shown
    assert steps_in(folder) == ["20", "25"]


def test_processes_that_see_different_checkpoints_agree_on_one(trainings: Trainings) -> None:
    """Were each to take its own newest, they would train different things, or wait for ever."""
    words = ("--steps=30", "--save_interval=10")
    trainings.run(*words, size=2)
    mine, other = trainings.folder / "checkpoints", trainings.folder / "other"
    shutil.copytree(mine, other)
    shutil.rmtree(other / "30")
    damage(other / "20")
    shown = trainings.run("--steps=10", size=2, p0=mine, p1=other)
    assert "checkpoint 20" in shown
    assert "process 1 cannot read it" in shown
    assert "begins after step 10" in shown


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit())


def damage(step: Path) -> None:
    """Half of every file with data is lost."""
    for path in step.rglob("*"):
        if path.is_file() and path.parent.name == "d":
            os.truncate(path, path.stat().st_size // 2)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("steps", [40, pytest.param(1000, marks=pytest.mark.stress)])
def test_a_deleted_slice_costs_no_digit_of_the_loss(place: Place, steps: int) -> None:
    every = steps // 4
    words = ["experiment=lm_tiny", f"workload.args.steps={steps}", "workload.args.eval_interval=0"]
    words.append(f"workload.args.save_interval={every}")
    place.run(*words, "name=calm", timeout=500)
    process = place.start(*words, "name=r1", "retry.backoff=100ms")
    place.wait_for("r1", "started")
    state = json.loads(place.run("status", "r1", "--json"))
    with open_channel(state["endpoint"]) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        place.wait_for_output("r1", f"saved step {every}", timeout=300)
        client.delete_node(name=state["nodes"][0])
    assert process.wait(500) == 0, place.screen(1).read_text()
    result = place.result("r1")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    calm, disturbed = metrics(place, "calm"), metrics(place, "r1")
    assert losses([disturbed]) == losses([calm])
    assert value(calm, "restored_step") == [0]
    first, second = value(disturbed, "restored_step")
    assert first == 0 < every <= second
    place.assert_clean()


def metrics(place: Place, name: str) -> list[dict[str, Any]]:
    text = (place.folder / "runs" / name / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
