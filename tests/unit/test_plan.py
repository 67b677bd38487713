"""Plans: the literal requests and processes, for every published accelerator type."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from launcher import accelerators
from launcher.compose import compose
from launcher.plan import AT_RUN_TIME, Plan, make_plan
from launcher.startup import RAYNODE, exact_version, host_config, package_name, startup_script


def planned(*overrides: str) -> Plan:
    spec = compose(["name=t", *overrides], cwd=Path.cwd())
    return make_plan(spec, "me", "some-project")


def test_request_of_the_main_job() -> None:
    (request,) = planned("cluster=v6e-16", "cluster.capacity=spot").requests
    assert request.name.startswith("projects/some-project/locations/")
    assert request.node_id == "t-s0"
    body = request.body
    assert body["accelerator_type"] == "v6e-16"
    assert body["runtime_version"] == "v2-alpha-tpuv6e"
    assert body["scheduling_config"] == {"spot": True}
    owned = {"launcher-run": "t", "launcher-owner": "me", "launcher-slice": "0"}
    assert owned.items() <= body["labels"].items()
    assert body["metadata"]["launcher-token"] == AT_RUN_TIME


def test_ranks_follow_slice_then_worker_id() -> None:
    plan = planned("cluster=v4-16", "mode.slices=2")
    assert [(p.slice, p.host, p.rank) for p in plan.processes] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]
    assert [p.env["LAUNCHER_PROCESS_ID"] for p in plan.processes] == ["0", "1", "2", "3"]
    assert {p.env["LAUNCHER_NUM_PROCESSES"] for p in plan.processes} == {"4"}


def test_every_type_is_planned() -> None:
    spec = compose(["name=t"], cwd=Path.cwd())
    for kind in map(accelerators.lookup, accelerators.all_types()):
        cluster = dataclasses.replace(spec.cluster, accelerator=kind)
        plan = make_plan(dataclasses.replace(spec, cluster=cluster), "me", "some-project")
        assert (plan.hosts, plan.chips) == (kind.hosts, kind.chips)
        assert len(plan.processes) == kind.hosts
        json.dumps(plan.to_json())


def test_price_is_per_chip_and_slice() -> None:
    assert planned("cluster=v4-8").cost_per_hour_usd == pytest.approx(4 * 3.22)
    assert planned("cluster=v5litepod-16").cost_per_hour_usd == pytest.approx(16 * 1.20)
    assert planned("cluster=v4-8", "mode.slices=2").cost_per_hour_usd == pytest.approx(8 * 3.22)


def test_startup_script_is_the_golden_one() -> None:
    """What runs as root on a user's TPU VMs changes only on purpose."""
    config = {"python": "3.11.7", "packages": {"ray": "2.60.0"}, "chips_per_host": 4}
    script = startup_script(config, ["jax[tpu]==0.10.2"])
    golden = Path(__file__).with_name("data") / "startup.sh"
    assert script.replace(RAYNODE.read_text().rstrip(), "(the text of raynode.py)") == (
        golden.read_text()
    )


def test_startup_script_is_valid_bash_and_quotes_what_it_is_given(tmp_path: Path) -> None:
    requirements = ["numpy; touch /tmp/pwned", "it's==1.0"]
    script = startup_script(host_config(4, 60, requirements, "3.11"), requirements)
    path = tmp_path / "startup.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert "'numpy; touch /tmp/pwned'" in script
    assert len(script.encode()) < 256_000  # the metadata server's limit for one value


@pytest.mark.parametrize(
    ("requirement", "name", "version"),
    [
        ("jax[tpu]==0.10.2", "jax", "0.10.2"),
        ("flax", "flax", None),
        ("a.b-c>=1,<2", "a.b-c", None),
        ("torch==2.9.*", "torch", None),
    ],
)
def test_requirements(requirement: str, name: str, version: str | None) -> None:
    assert (package_name(requirement), exact_version(requirement)) == (name, version)
