"""Plans: the literal requests and processes, for every published accelerator type."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launcher import accelerators
from launcher.compose import compose
from launcher.plan import Plan, make_plan
from launcher.provisioning.requests import AT_RUN_TIME, Identity
from launcher.startup import RAYNODE, exact_version, host_config, package_name, startup_script


def planned(*overrides: str) -> Plan:
    spec = compose(["name=t", *overrides], cwd=Path.cwd())
    return make_plan(spec, Identity("me", "0123456789ab", "some-project"))


def test_request_of_the_main_job() -> None:
    (request,) = planned("cluster=v6e-16", "cluster.capacity=spot").first.requests
    assert request.name.startswith("projects/some-project/locations/")
    assert request.nodes == ("t-s0",)
    body = request.body
    assert body["accelerator_type"] == "v6e-16"
    assert body["runtime_version"] == "v2-alpha-tpuv6e"
    assert body["scheduling_config"] == {"spot": True}
    owned = {"launcher-run": "t", "launcher-owner": "me", "launcher-machine": "0123456789ab"}
    assert owned.items() <= body["labels"].items()
    assert body["metadata"]["launcher-token"] == AT_RUN_TIME


def test_ranks_follow_slice_then_worker_id() -> None:
    plan = planned("cluster=v4-16", "mode.slices=2").first
    assert [(p.slice, p.host, p.rank) for p in plan.processes] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]
    assert [p.env["LAUNCHER_PROCESS_ID"] for p in plan.processes] == ["0", "1", "2", "3"]
    assert {p.env["LAUNCHER_NUM_PROCESSES"] for p in plan.processes} == {"4"}


def test_every_type_is_planned() -> None:
    names = accelerators.all_types()
    plan = planned(f"cluster.accelerator_type=[{','.join(names)}]")
    assert [choice.offer.accelerator.accelerator_type for choice in plan.choices] == list(names)
    for choice in plan.choices:
        kind = choice.offer.accelerator
        assert (choice.hosts, choice.chips) == (kind.hosts, kind.chips)
        assert len(choice.processes) == kind.hosts
    json.dumps(plan.to_json())


def test_choices_are_tried_by_type_then_capacity_then_zone() -> None:
    plan = planned(
        "cluster.accelerator_type=[v6e-16,v5litepod-16]",
        "cluster.capacity=[spot,on-demand]",
        "cluster.zone=[europe-west4-a,us-central1-a]",
    )
    assert [choice.title for choice in plan.choices] == [
        f"{name} {capacity} in {zone}"
        for name in ("v6e-16", "v5litepod-16")
        for capacity in ("spot", "on-demand")
        for zone in ("europe-west4-a", "us-central1-a")
    ]
    assert plan.choices[0].offer.runtime_version == "v2-alpha-tpuv6e"
    assert plan.choices[-1].offer.runtime_version == "v2-alpha-tpuv5-lite"


def test_the_plan_as_json_holds_the_first_choice_and_the_others() -> None:
    made = planned("cluster=v4-8", "cluster.capacity=[spot,on-demand]", "mode.slices=2").to_json()
    keys = {"accelerator_type", "capacity", "zone", "hosts", "chips", "requests", "processes"}
    assert set(made) == {*keys, "cost_per_hour_usd", "name", "fallback"}
    assert [len(made["requests"]), made["requests"][1]["node_id"]] == [2, "t-s1"]
    (other,) = made["fallback"]
    assert (other["capacity"], other["cost_per_hour_usd"]) == ("on-demand", 8 * 3.22)
    assert made["cost_per_hour_usd"] == pytest.approx(8 * 0.9215)


@pytest.mark.parametrize(
    ("name", "slices", "seconds"),
    [("v6e-16", 1, 900), ("v6e-256", 1, 1200), ("v6e-256", 4, 1800), ("v4-8", 1, 900)],
)
def test_many_hosts_get_more_time_to_become_ready(name: str, slices: int, seconds: float) -> None:
    words = (f"cluster.accelerator_type={name}", f"mode.slices={slices}")
    assert planned(*words).first.provision_timeout == seconds
    assert planned(*words, "cluster.provision_timeout=2m").first.provision_timeout == 120


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


def test_variables_and_lines_of_the_user_come_first(tmp_path: Path) -> None:
    words = ('cluster.env.A="it\'s {$HOME}"', "cluster.startup=['echo [\"$A$UNSET\"]','exit 7']")
    (request,) = planned(*words).first.requests
    path = tmp_path / "startup.sh"
    path.write_text(request.node["metadata"]["startup-script"])
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "[it's {$HOME}]\n")


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
