"""PyTorch/XLA with one process a chip: what a user sees, and a training that nothing stops."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import WORKLOADS
from launcher.hosts.agent import free_ports
from tests.e2e.conftest import Place

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch_xla") is None, reason="the extra torch is not installed"
    ),
]
ALONE = ("LAUNCHER_", "PJRT_", "RANK", "WORLD_SIZE", "TORCHELASTIC_")
STEPS = 120
ASSERTS = """
import torch, torch_xla, xla_group

def main(index):
    group = xla_group.join()
    ones = torch.ones(1, device="xla")
    group.sum_([ones])
    assert group.rank != 2, "rank 2 has found something wrong"
    group.sum_([ones])

torch_xla.launch(main)
"""


def chip_lines(shown: str) -> list[str]:
    """What process 0 says of all, in its order."""
    return re.findall(r"^\[s0 h0 p0\] ordinal (.*device='xla:0'\))$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("cluster", "hosts"),
    [("v5p-16", 2), *(pytest.param(*x, marks=pytest.mark.stress) for x in [("v6e-16", 4)])],
)
def test_every_chip_has_a_process_and_a_tensor(place: Place, cluster: str, hosts: int) -> None:
    shown = place.run(f"cluster={cluster}", "mode=torch_xla", "name=chips", timeout=400)
    chips, lines = 4 * hosts, chip_lines(shown)
    assert [line.partition(": ")[0] for line in lines] == [
        f"{i} of {chips}, s0 h{i // 4} p{i % 4}" for i in range(chips)
    ]
    assert shown.count("xla:0") == chips
    assert f"tensor([{chips}., {chips}.]" in lines[-1]
    assert f"sum over all devices {chips * (chips + 1) // 2}" in shown
    assert "emulated: CPU devices stand in for TPU chips, and add up through gloo" in shown
    logs = {path.name for path in (place.folder / "runs/chips/logs/attempt-0").iterdir()}
    assert logs == {f"s0-h{i // 4}-p{i % 4}.log" for i in range(chips)}
    assert place.result("chips")["final_step"] == 1
    place.assert_clean()


@pytest.mark.stress
def test_the_chips_of_two_slices_are_one_program(place: Place) -> None:
    words = ("cluster=v5p-8", "mode=torch_xla", "mode.slices=2", "workload=basic", "name=two")
    lines = chip_lines(place.run(*words, timeout=400))
    assert [line.partition(": ")[0] for line in lines] == [
        f"{i} of 8, s{i // 4} h0 p{i % 4}" for i in range(8)
    ]
    assert "tensor([8., 8.]" in lines[-1]
    place.assert_clean()


def test_one_process_a_host_starts_its_own(place: Place) -> None:
    words = ("cluster=v5p-8", "mode=torch_xla", "mode.processes=host", "name=host")
    shown = place.run(*words, timeout=300)
    said = re.findall(r"^\[s0 h0\] ordinal (\d) of 4.*(xla:\d)", shown, re.MULTILINE)
    ordinals, devices = zip(*said, strict=True)  # which thread gets which chip is XLA's to say
    assert sorted(ordinals) == [str(i) for i in range(4)]
    assert sorted(devices) == [f"xla:{i}" for i in range(4)]
    assert shown.count("emulated: CPU devices stand in for TPU chips, each for itself") == 1
    place.assert_clean()


def started(program: str, *words: str, **env: str) -> subprocess.Popen[str]:
    """A program that ships, without a launcher; `env` says what one would."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(ALONE)}
    argv = [sys.executable, str(WORKLOADS / program), *words]
    return subprocess.Popen(
        argv,
        env=own | {"PJRT_DEVICE": "CPU"} | env,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.STDOUT,
    )


def test_one_process_speaks_for_all_where_they_share_a_place(tmp_path: Path) -> None:
    """As those that `torch_xla.launch` starts on a TPU host, which is one process to the launcher.

    Their number decides, not the place that the launcher gave to the host.
    """
    told = tmp_path / "metrics"
    shared = {"LAUNCHER_PROCESS_ID": "0", "LAUNCHER_HOST": "0", "LAUNCHER_METRICS": str(told)}
    shared |= {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "GLOO_SOCKET_IFNAME": "lo"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    both = [
        started("basic_torch_xla.py", **shared, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")
    ]
    shown = "".join(process.communicate(timeout=200)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], shown
    assert re.findall(r"^ordinal (\d) of 2, h0 p", shown, re.MULTILINE) == ["0", "1"]
    assert lines_of(told) == [{"step": 1, "device_count": 2, "sum": 3}]


def test_a_training_that_would_leave_chips_idle_is_refused() -> None:
    """With processes=host: one device of four would train, and nobody would know."""
    host = {"LAUNCHER_NUM_PROCESSES": "1", "CPU_NUM_DEVICES": "4"}
    process = started("digits_torch.py", "--steps=1", **host)
    assert "1 of 4 devices would train: mode.processes=chip" in process.communicate(timeout=200)[0]
    assert process.returncode == 1


def test_an_assertion_while_others_wait_ends_the_gang_and_is_named(place: Place) -> None:
    (place.folder / "asserts.py").write_text(ASSERTS)
    helper = (WORKLOADS / "xla_group.py").read_text(encoding="utf-8")
    (place.folder / "xla_group.py").write_text(helper)
    words = ("cluster=v5p-8", "mode=torch_xla", "workload.script=asserts.py", "name=wrong")
    shown = place.run(*words, expect=5, timeout=300)
    result = place.result("wrong")
    assert result["first_failure"]["member"] == "s0 h0 p2"
    assert "raised an exception: AssertionError: rank 2 has found something wrong" in shown
    assert result["seconds"]["recovery"] < 20
    place.assert_clean()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy that the program comes to by itself, in one process."""
    told = tmp_path_factory.mktemp("alone") / "metrics"
    process = started("digits_torch.py", f"--steps={STEPS}", LAUNCHER_METRICS=str(told))
    shown = process.communicate(timeout=200)[0]
    assert process.returncode == 0, shown
    accuracy = last(lines_of(told), "accuracy")
    assert accuracy > 0.9  # it does learn
    return accuracy


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def last(lines: list[dict[str, Any]], key: str) -> float:
    return float([line[key] for line in lines if key in line][-1])


def disturb(place: Place, how: str) -> None:
    if how == "host":
        place.emulator("fault", "kill-host", "r1-s0", "1")
    else:
        place.emulator("fault", "preempt", "r1-s0")


@pytest.mark.parametrize("how", ["host", pytest.param("node", marks=pytest.mark.stress)])
def test_a_lost_host_or_slice_costs_no_accuracy(place: Place, undisturbed: float, how: str) -> None:
    words = ["experiment=digits_torch", f"workload.args.steps={STEPS}", "retry.backoff=100ms"]
    process = place.start(*words, "name=r1", "retry.grace=2s")
    place.wait_for_output("r1", "saved step 40", timeout=300)
    disturb(place, how)
    assert process.wait(400) == 0, place.screen(0).read_text()
    result = place.result("r1")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    told = lines_of(place.folder / "runs/r1/metrics.jsonl")
    losses: dict[int, float] = {}
    for line in (line for line in told if "loss" in line):  # made twice, the same twice
        assert losses.setdefault(line["step"], line["loss"]) == line["loss"], line
    assert list(losses) == list(range(1, STEPS + 1))
    assert [line["restored_step"] for line in told if "restored_step" in line][1] >= 40
    # Eight processes add up the same gradients in another order than one.
    assert abs(last(told, "accuracy") - undisturbed) < 0.01
    place.assert_clean()


@pytest.mark.stress
@pytest.mark.timeout(1500)
def test_the_whole_experiment_is_rehearsed(place: Place) -> None:
    """Its metrics are those of the run that nothing happened to, to the digit."""
    only = "host-killed,node-deleted,preempted-with-notice"
    place.run("rehearse", "experiment=digits_torch", "name=d", "--only", only, timeout=1400)
    place.assert_clean()
