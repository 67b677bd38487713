"""Chips of processes: equal to PyTorch/XLA's own topology, and parts of hosts that never meet."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import accelerators
from launcher.ranks import chips

NO_TORCH = importlib.util.find_spec("torch_xla") is None
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(NO_TORCH, reason="the extra torch is not installed")
def test_every_type_is_as_torch_xla_computes_it_from_the_metadata() -> None:
    command = [sys.executable, "-m", "tests.unit.torch_topology"]
    # JAX sets some of these in this very process, once another test has imported it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {row[0] for row in rows} == set(accelerators.all_types())
    for name, worker, chip, expected in rows:
        made = ours(accelerators.lookup(name), worker, chip)
        assert {key: made[key] for key in expected} == expected, (name, worker, chip)
        assert set(made) - set(expected) == {"CPU_NUM_DEVICES", "JAX_NUM_CPU_DEVICES"}


def ours(accelerator: accelerators.Accelerator, worker: int, chip: int) -> dict[str, str]:
    """With the ports of PyTorch/XLA, which are the same on all hosts, and the test's addresses."""
    ports = [8476 + index for index in range(chips.per_host(accelerator))]
    names = [f"10.0.{i // 250}.{i % 250 + 1}" for i in range(accelerator.hosts)]
    return {
        **chips.one_of_slice(accelerator, worker, chip),
        "TPU_PROCESS_ADDRESSES": chips.meeting(names, [ports] * accelerator.hosts),
        "TPU_PROCESS_PORT": str(ports[chip]),
    }


@pytest.mark.parametrize("name", accelerators.all_types())
def test_task_ids_count_the_processes_and_bounds_hold_them_all(name: str) -> None:
    kind = accelerators.lookup(name)
    each = range(chips.per_host(kind))
    made = [chips.one_of_slice(kind, w, c) for w, c in itertools.product(range(kind.hosts), each)]
    assert [env["CLOUD_TPU_TASK_ID"] for env in made] == [str(i) for i in range(len(made))]
    (bounds,) = {env["TPU_PROCESS_BOUNDS"] for env in made}
    assert math.prod(map(int, bounds.split(","))) == len(made)
    devices = sum(int(env["CPU_NUM_DEVICES"]) for env in made)
    assert devices == kind.hosts * kind.jax_devices_per_host


@pytest.mark.parametrize(
    ("name", "processes", "devices"),
    [("v2-8", 4, 2), ("v3-32", 4, 2), ("v4-8", 4, 1), ("v6e-1", 1, 1), ("v6e-8", 8, 1)],
)
def test_processes_of_a_host(name: str, processes: int, devices: int) -> None:
    kind = accelerators.lookup(name)
    assert (chips.per_host(kind), chips.devices_per_process(kind)) == (processes, devices)


@pytest.mark.parametrize("name", ["v6e-8", "v6e-16", "v5p-8", "v2-8", "v6e-1"])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_parts_of_a_host_share_it_out_and_know_of_nobody(name: str, count: int) -> None:
    kind = accelerators.lookup(name)
    made = [
        chips.part_of_host(kind, count, part, 9000 + part)
        for part in range(chips.parts(kind, count))
    ]
    assert len(made) == kind.chips_per_host // count
    seen = [int(chip) for env in made for chip in env["TPU_VISIBLE_CHIPS"].split(",")]
    assert seen == list(range(len(made) * count))
    for env in made:
        assert volume(env["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == count
        assert env["TPU_PROCESS_BOUNDS"] == "1,1,1"
        assert env["TPU_PROCESS_ADDRESSES"] == f"localhost:{env['TPU_PROCESS_PORT']}"
        assert env["CPU_NUM_DEVICES"] == str(count * kind.devices_per_chip)
    assert len({env["TPU_PROCESS_PORT"] for env in made}) == len(made)


def volume(bounds: str) -> int:
    return math.prod(map(int, bounds.split(",")))


@pytest.mark.parametrize(
    ("name", "count", "part"), [("v6e-1", 2, 0), ("v4-8", 3, 0), ("v4-8", 2, 2)]
)
def test_a_part_that_a_host_does_not_have(name: str, count: int, part: int) -> None:
    arguments: Any = (accelerators.lookup(name), count, part, 9000)
    with pytest.raises(ValueError, match=rf"no part {part} of {count} chips"):
        chips.part_of_host(*arguments)


@pytest.mark.parametrize("name", accelerators.all_types())
def test_parts_of_a_slice_share_out_its_hosts_as_boxes_of_published_shapes(name: str) -> None:
    kind = accelerators.lookup(name)
    shapes = {
        (other.chips, other.chip_bounds)
        for other in map(accelerators.lookup, accelerators.all_types())
        if other.generation == kind.generation
    }
    assert chips.boxes(kind, 1) == [(worker,) for worker in range(kind.hosts)]
    for count in range(1, min(kind.hosts, 64) + 1):
        boxes = chips.boxes(kind, count)
        if not boxes:
            continue
        assert sorted(itertools.chain(*boxes)) == list(range(kind.hosts))
        envs = [chips.part_of_slice(kind, count, worker) for worker in range(count)]
        assert [env["CLOUD_TPU_TASK_ID"] for env in envs] == [str(n) for n in range(count)]
        (bounds,) = {env["TPU_PROCESS_BOUNDS"] for env in envs}
        own = kind.chips_per_host_bounds.split(",")
        box = [int(a) * int(b) for a, b in zip(bounds.split(","), own, strict=True)]
        assert (count * kind.chips_per_host, ",".join(map(str, box))) in shapes
