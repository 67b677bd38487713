"""`plan` as a user meets it: text and JSON; nothing is called, and nothing is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import registry
from launcher.errors import ConfigError
from launcher.invocation import owner
from launcher.verbs import take_apart
from launcher.verbs.plan import plan

CHAIN = (
    "cluster.accelerator_type=[v6e-16,v5litepod-16]",
    "cluster.capacity=[spot,queued-spot]",
    "cluster.zone=any",
)
Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Show:
    """What `plan` prints for a run of the name t."""
    home = tmp_path / "home"
    monkeypatch.setenv("LAUNCHER_HOME", str(home))
    monkeypatch.chdir(tmp_path)

    def show(*words: str) -> str:
        assert plan(take_apart("plan", ["name=t", *words])) == 0
        told: str = capsys.readouterr().out
        return told

    return show


def test_fewer_slices_are_a_choice(show: Show) -> None:
    told = show("cluster=v4-8", "mode.slices=[4,2,1]").splitlines()
    assert told[0].startswith("t: 4 x v4-8, 4 hosts, 16 chips (")
    assert told[0].endswith("), and 2 more choices")
    assert [line.split(":")[0] for line in told[2:5]] == [
        f"  {number}. {slices}v4-8 on-demand in us-central2-b"
        for number, slices in enumerate(("4 x ", "2 x ", ""), start=1)
    ]
    assert "  2 the same, but for 2 in place of 4 slices" in told
    assert "  3 the same, but for 1 in place of 4 slices" in told
    assert "), and 1 more choice\n" in show("cluster=v4-8", "mode.slices=[2,1]")


def test_each_choice_in_order_with_its_price(show: Show) -> None:
    told = show(*CHAIN, "--for", "12h").splitlines()
    assert "tried in this order" in told[1]
    assert told[2] == (
        "  1. v6e-16 spot in us-central1-b: 4 hosts, 16 chips, 8.71 USD/h"
        " (list price of 2026, skypilot-catalog v8 at 006059e), 104.49 USD for 12h"
    )
    assert told[4] == (
        "  3. v6e-16 spot in us-east5-a: 4 hosts, 16 chips, 19.44 USD/h, 233.28 USD for 12h"
    )
    assert "  7. v6e-16 spot in southamerica-west1-a: 4 hosts, 16 chips, price unknown" in told
    assert "  2, 3, 4, 5, 6, 7 the same, but for zone" in told
    assert "  15, 16, 17, 18, 19 the same, but for accelerator_type, runtime_version, zone" in told
    method = "CreateQueuedResource (v2) in place of CreateNode (v2)"
    assert f"  8 the same, but for {method}" in told
    assert (
        f"  20, 21, 22, 23, 24 the same, but for {method}, accelerator_type, runtime_version, zone"
        in told
    )


def test_the_first_choice_is_literal_in_short_form(show: Show) -> None:
    told = show("cluster.capacity=flex-start", "cluster.max_run_time=12h", "cluster.coordinator=vm")
    assert "  CreateQueuedResource (v2alpha1) projects/emulated/locations/us-central1-b" in told
    assert "    runDuration: {maxRunDuration: 43200s}\n" in told
    assert "startup-script: <" in told
    assert "raynode" not in told
    where = f"VM launcher-{owner()}, e2-standard-4 in us-central1-b"
    assert f"  coordinator: {where}, 0.13 USD/h" in told


def test_the_coordinator_in_json(show: Show) -> None:
    def made(*words: str) -> Any:
        return json.loads(show("--json", *words))["coordinator"]

    vm = ("cluster.coordinator=vm", "cluster.vm.name=mine")
    named = {"kind": "vm", "name": "mine", "machine_type": "e2-standard-4"}
    assert made(*vm) == {**named, "usd_per_hour": pytest.approx(0.134, abs=1e-3)}
    assert made(*vm, "cluster.vm.zone=us-east4-a")["usd_per_hour"] > 0.15
    assert made(*vm, "cluster.vm.machine_type=c9-huge")["usd_per_hour"] is None
    here = {"kind": "here", "name": None, "machine_type": None, "usd_per_hour": 0.0}
    assert made() == here


def test_many_processes_do_not_fill_the_screen(show: Show) -> None:
    told = show("cluster=v6e-256")
    assert told.count("python3 basic_jax.py") == 8
    assert "  … and 56 more of the same\n" in told


def test_notes_are_told(show: Show) -> None:
    told = show("cluster.capacity=preemptible")
    assert "  note: cluster.capacity: preemptible is the old name of spot" in told


def test_what_is_up_under_the_name_is_told_from_the_record(show: Show) -> None:
    assert "on record" not in show()
    there = ["projects/p/locations/us-central1-b/nodes/t-s0"]
    registry.write_record("t", {"name": "t", "nodes": there, "resources": there})
    assert f"on record: {there[0]}\n" in show()
    assert json.loads(show("--json"))["exists"] == there


def test_json_holds_all_of_it(show: Show) -> None:
    made = json.loads(show(*CHAIN, "--json", "--for=90m"))
    assert made["name"] == "t"
    assert len(made["fallback"]) == 23
    assert made["cost_per_hour_usd"] == pytest.approx(16 * 0.544208, abs=1e-3)
    assert made["cost_usd"] == round(1.5 * made["cost_per_hour_usd"], 2)
    assert made["files"]["count"] >= 1
    assert made["files"]["bytes"] > 100
    assert made["exists"] == made["notes"] == []
    (request,) = made["requests"]
    assert "raynode" in request["body"]["metadata"]["startup-script"]


def test_json_without_a_price_or_a_duration(show: Show) -> None:
    unknown = json.loads(show("cluster.capacity=reserved", "--json", "--for=1h"))
    assert unknown["cost_usd"] is None
    assert "cost_usd" not in json.loads(show("--json"))


@pytest.mark.parametrize("duration", ["12", "", "1d", "-1h"])
def test_no_duration(show: Show, duration: str) -> None:
    with pytest.raises(ConfigError, match="must be a duration with a unit"):
        show(f"--for={duration}")


def test_nothing_is_written_and_no_socket_is_opened(tmp_path: Path) -> None:
    """In a process of its own, in which every use of a socket is an error."""
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise RuntimeError('a socket')\n"
        "socket.socket.connect = socket.socket.bind = socket.getaddrinfo = refuse\n"
        "from launcher.__main__ import main\n"
        "main(['plan', 'name=t', 'provider=google', 'provider.project=my-project', '--json'])\n"
    )
    env = {**os.environ, "LAUNCHER_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Cloud NAT" in json.loads(done.stdout)["notes"][0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found"), OSError("No username")])
def test_a_user_without_a_name_owns_by_number(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As in a container that is run as any user."""

    def nameless() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", nameless)
    assert owner() == f"uid-{os.getuid()}"
