"""Journeys of a user, through the real command line, client, startup script, Ray and JAX."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

TRAIN = """
import sys, jax
jax.distributed.initialize()
print("devices", jax.device_count(), flush=True)
code = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--code=")]
sys.exit(code[0] if code and jax.process_index() == 1 else 0)
"""
SLEEP = "import time; print('on', flush=True); time.sleep(600)"


def command(program: str) -> str:
    """An override that runs a Python text on every host."""
    return f"workload.command=[python3,-c,{json.dumps(program)}]"


def test_main_job(place: Place) -> None:
    shown = place.run("cluster=v6e-16", "mode=jax", "workload=basic", "name=t1")
    assert "[16, 16, 16, 16]" in shown
    assert "emulated on this machine; provider=google for real TPUs" in shown
    result = place.result("t1")
    assert (result["status"], result["exit_code"], result["attempts"]) == ("succeeded", 0, 1)
    assert result["final_step"] == 1
    ledger = place.emulator("ledger")
    assert len(ledger["nodes"]) == 1
    assert ledger["left"] == []
    logs = sorted(p.name for p in (place.folder / "runs/t1/logs/attempt-0").iterdir())
    assert logs == ["s0-h0.log", "s0-h1.log", "s0-h2.log", "s0-h3.log"]
    place.assert_clean()


SIZES = [("v6e-1", "[1]"), ("v6e-8", "[8]"), ("v4-16", "[8, 8]")]
MORE_SIZES = [
    ("v6e-4", "[4]"),
    ("v5litepod-8", "[8]"),
    ("v5p-16", "[8, 8]"),
    ("v2-8", "[8]"),
    ("v6e-32", "[32, 32, 32, 32, 32, 32, 32, 32]"),
]


@pytest.mark.parametrize(
    ("cluster", "counts"),
    [*SIZES, *(pytest.param(*more, marks=pytest.mark.stress) for more in MORE_SIZES)],
)
def test_sizes(place: Place, cluster: str, counts: str) -> None:
    assert counts in place.run(f"cluster={cluster}", "name=size")
    place.assert_clean()


def test_own_script_from_an_unrelated_folder(place: Place) -> None:
    (place.folder / "train.py").write_text(TRAIN)
    words = [
        "workload.script=train.py",
        "workload.args.code=7",
        "name=t2",
        "mode.probe_interval=1m",
    ]
    shown = place.run("cluster=v4-16", "mode=jax", *words, expect=5)
    result = place.result("t2")
    assert (result["status"], result["workload_exit_code"]) == ("failed", 7)
    assert result["first_failure"]["member"] == "s0 h1"
    assert "mode.probe_interval: of no use unless" in shown
    assert "s0 h1 failed first: exit code 7" in shown
    assert "Traceback" not in shown
    place.assert_clean()


def test_arguments_arrive_byte_for_byte(place: Place) -> None:
    (place.folder / "conf" / "workload").mkdir(parents=True)
    (place.folder / "conf" / "workload" / "show.yaml").write_text(
        "command: [python3, -c, 'import sys, os; print(sys.argv[1:], os.environ[\"V\"])',"
        " 'a b', \"it's\", '\"', $HOME, '*', 'c\\d', é]\n"
        "args: {lr: 1e-5, version: 3.10}\n"
        "env: {V: 010}\n"
    )
    shown = place.run("cluster=v6e-1", "workload=show", "name=bytes")
    expected = ["a b", "it's", '"', "$HOME", "*", "c\\d", "é", "--lr=1e-5", "--version=3.10"]
    assert f"{expected} 010" in shown
    place.assert_clean()


def test_a_death_in_a_collective_ends_the_gang_and_is_named(place: Place) -> None:
    program = (
        "import jax, os, signal; jax.distributed.initialize(); i = jax.process_index();"
        "from jax.experimental import multihost_utils as m; m.sync_global_devices('a');"
        "i == 1 and os.kill(os.getpid(), signal.SIGKILL); m.sync_global_devices('b')"
    )
    place.run("cluster=v4-16", command(program), "name=dead", "retry.grace=2s", expect=5)
    result = place.result("dead")
    assert result["workload_exit_code"] == 137
    assert result["first_failure"]["member"] == "s0 h1"
    assert result["seconds"]["recovery"] < 30
    place.assert_clean()


EARLY = """
import os, pathlib, socket, time
host, port = os.environ["MASTER_ADDR"], int(os.environ["JAX_COORDINATOR_PORT"])
folder = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
came, deadline = folder / "came", time.monotonic() + 30
if os.environ["LAUNCHER_PROCESS_ID"] == "1":
    while time.monotonic() < deadline:
        try:
            guest = socket.create_connection((host, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    came.touch()
    assert guest.recv(7) == b"welcome"
else:
    while not came.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert came.exists(), "nobody could come before the server"
    with socket.create_server(("", port), reuse_port=True) as server:
        server.accept()[0].sendall(b"welcome")
"""


def test_who_comes_before_the_coordinator_is_led_to_it(place: Place) -> None:
    (place.folder / "early.py").write_text(EARLY)
    place.run("cluster=v4-16", "workload.script=early.py", "name=early")
    place.assert_clean()


def test_up_twice_is_one_cluster_and_runs_use_it(place: Place) -> None:
    place.run("up", "cluster=v4-8", "name=one")
    shown = place.run("up", "cluster=v4-8", "name=two")
    for line in ("3 nodes", "TPU: 8", "TPU-v4-8-head: 2", "two-s0: 1"):
        assert line in shown
    assert "two: up" in place.run("status")
    place.run("cluster=v4-8", "name=one")
    assert [e["kind"] for e in place.events("one")].count("provisioning") == 1
    refused = place.run("run", "cluster=v4-16", "name=one", expect=2)
    assert "one is up as 1 x v4-8 on-demand in us-central2-b, not as what is asked" in refused
    place.run("down", "one")
    assert len(place.emulator("ledger")["left"]) == 1
    place.run("down", "--all")
    place.assert_clean()


def test_two_runs_side_by_side_do_not_meet(place: Place) -> None:
    first = place.start("cluster=v4-8", "name=a")
    second = place.start("cluster=v4-8", "name=b")
    again = place.start("cluster=v4-8", "name=a")
    codes = [process.wait(120) for process in (first, second, again)]
    assert codes[1] == 0
    assert sorted([codes[0], codes[2]]) == [0, 2]
    place.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["head", "started"])
def test_a_stopped_run_leaves_nothing(place: Place, number: int, moment: str) -> None:
    process = place.start("cluster=v4-16", command(SLEEP), "name=stop", "retry.grace=1s")
    place.wait_for("stop", moment)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert place.result("stop")["status"] == "cancelled"
    place.assert_clean()


@pytest.mark.parametrize("moment", ["head", "ready", "started"])
def test_a_killed_run_is_cleaned_by_gc(place: Place, moment: str) -> None:
    process = place.start("cluster=v4-16", command(SLEEP), "name=dead")
    place.wait_for("dead", moment)
    process.kill()
    process.wait()
    assert "gc --yes" in place.run("gc")
    place.run("gc", "--yes")
    place.assert_clean()


def test_a_killed_run_goes_on_with_the_same_command(place: Place) -> None:
    words = [
        "cluster=v4-16",
        command("import os; print('attempt', os.environ['LAUNCHER_ATTEMPT'])"),
    ]
    process = place.start(*words, "name=again", "workload.env.X=1")
    place.wait_for("again", "ready")
    process.kill()
    process.wait()
    place.run(*words, "name=again", "workload.env.X=1")
    nodes = place.emulator("ledger")["nodes"]
    assert max(overlap(nodes), default=0) <= 1
    place.assert_clean()


def overlap(nodes: list[dict[str, str]]) -> list[int]:
    """How many of the nodes existed when each was created."""
    return [sum(o["created"] <= n["created"] < (o["ended"] or "9") for o in nodes) for n in nodes]


def test_cancel_logs_and_status_from_another_shell(place: Place) -> None:
    process = place.start("cluster=v6e-1", command(SLEEP), "name=long", "retry.grace=1s")
    place.wait_for_output("long", "on")
    assert "[s0 h0] on" in place.run("logs", "long")
    state = json.loads(place.run("status", "long", "--json"))
    assert state["nodes"][0].endswith("/nodes/long-s0")
    assert state["endpoint"]
    place.run("cancel", "long")
    assert process.wait(60) == 130
    place.assert_clean()


def test_preempted_run_starts_again_on_a_new_slice(place: Place) -> None:
    program = (
        "import os, time; a = os.environ['LAUNCHER_ATTEMPT']; print('attempt', a, flush=True);"
        "time.sleep(600 if a == '0' else 0)"
    )
    process = place.start("cluster=v4-16", command(program), "name=spot", "retry.backoff=100ms")
    place.wait_for_output("spot", "attempt 0")
    place.emulator("fault", "preempt", "spot-s0")
    assert process.wait(120) == 0
    result = place.result("spot")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    kinds = [event["kind"] for event in place.events("spot")]
    assert kinds.index("died") < kinds.index("verdict") < kinds.index("again")
    assert len(place.emulator("ledger")["nodes"]) == 2
    place.assert_clean()


def test_a_host_that_never_boots_is_named(place: Place) -> None:
    rules = "provider.rules=[{fault: never-boots, worker: 1}]"
    words = ["cluster=v4-16", rules, "cluster.join_timeout=15s"]
    shown = place.run(*words, "name=mute", expect=4)
    assert "1 host did not join" in shown
    assert "s0 h1 (mute-s0 worker 1)" in shown
    assert len(place.emulator("ledger")["nodes"]) == 2
    place.assert_clean()


def test_a_slice_with_a_bad_host_is_replaced(place: Place) -> None:
    rules = "provider.rules=[{fault: never-boots, worker: 1, count: 1}]"
    shown = place.run("cluster=v4-16", rules, "cluster.join_timeout=15s", "name=sick")
    assert "other hosts join: new ones in their place" in shown
    assert len(place.emulator("ledger")["nodes"]) == 2
    place.assert_clean()


def test_a_stockout_is_told_in_the_servers_words(place: Place) -> None:
    words = ("provider.rules=[{fault: stockout}]", "cluster.queue_timeout=1s")
    shown = place.run(*words, "name=none", expect=3)
    assert "There is no more capacity in the zone" in shown
    place.assert_clean()


def test_stubborn_grandchildren_are_ended(place: Place) -> None:
    (place.folder / "stubborn.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    os.setsid(); os.fork()\n"
        "print('on', flush=True)\ntime.sleep(600)\n"
    )
    process = place.start(
        "cluster=v6e-1", "workload.script=stubborn.py", "name=s", "retry.grace=1s"
    )
    place.wait_for_output("s", "on")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    place.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("twentieth", range(20))
def test_any_moment(place: Place, number: int, twentieth: int) -> None:
    process = place.start("cluster=v4-16", "workload=basic", "name=any", "retry.grace=1s")
    time.sleep(0.6 * twentieth)
    process.send_signal(number)
    process.wait(60)
    if number == signal.SIGKILL:
        place.run("gc", "--yes")
    place.assert_clean()


def test_nothing_but_the_run_folder_appears_where_the_user_stands(place: Place) -> None:
    place.run("plan")
    assert os.listdir(place.folder) == []
