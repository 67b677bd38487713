"""A run that goes on: after preemptions, deaths of hosts, hangs, and of the launcher itself."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from launcher.emulator import client as emulator
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

TRAIN = """
import json, os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
attempt, rank = int(os.environ["LAUNCHER_ATTEMPT"]), int(os.environ["LAUNCHER_PROCESS_ID"])
saved = max((int(path.name) for path in folder.iterdir()), default=0)
told, stop = {"restored_step": saved}, []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))


def tell(value):
    if rank == 0:
        with open(os.environ["LAUNCHER_METRICS"], "a") as file:
            file.write(json.dumps(value) + "\\n")


def save(step):
    if rank == 0:
        (folder / str(step)).touch()


exec(os.environ.get("FIRST", ""))
tell(told)
for step in range(saved + 1, int(sys.argv[1].partition("=")[2]) + 1):
    time.sleep(0.1)
    exec(os.environ.get("TROUBLE", ""))
    print("step", step, flush=True)
    tell({"step": step})
    if step % 10 == 0:
        save(step)
    if stop:
        save(step)
        sys.exit(143)
"""
RUN = ("cluster=v4-16", "workload.script=train.py", "retry.backoff=100ms", "retry.grace=5s")


@pytest.fixture
def train(place: Place) -> Place:
    (place.folder / "train.py").write_text(TRAIN)
    return place


def trouble(code: str) -> str:
    return f"workload.env.TROUBLE='{code}'"


def program_of(place: Place, rank: int) -> psutil.Process:
    """The process of that rank that runs now."""
    for process in place.processes():
        variables = process.environ()
        if variables.get("LAUNCHER_PROCESS_ID") == str(rank) and "LAUNCHER_METRICS" in variables:
            return process
    raise AssertionError(f"no process of rank {rank}")


def preempt(place: Place, name: str) -> None:
    """At once: the command line would take a second to start."""
    endpoint = place.wait_for(name, "provisioning")["endpoint"]
    fault = {"command": "fault", "fault": "preempt", "node": f"{name}-s0"}
    emulator.control(endpoint, fault)


def created(place: Place) -> int:
    return len(place.emulator("ledger")["nodes"])


def wait_for_step(place: Place, name: str, step: int) -> None:
    place.wait_for_output(name, f"step {step}\n")


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def kill_supervisor(place: Place, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_deleted_node_is_replaced_and_training_resumes(train: Place) -> None:
    process = train.start(*RUN, "workload.args.steps=40", "name=r")
    wait_for_step(train, "r", 25)
    train.emulator("fault", "preempt", "r-s0")
    assert process.wait(120) == 0
    result = train.result("r")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    assert 20 <= result["resumed_from"][0] < 40  # a host may save before it is gone
    assert result["final_step"] == 40
    seconds = result["seconds"]
    phases = sum(value for key, value in seconds.items() if key != "total")
    assert phases == pytest.approx(seconds["total"], abs=0.1)
    assert created(train) == 2
    train.assert_clean()


def test_what_is_saved_after_a_notice_is_what_is_resumed_from(train: Place) -> None:
    process = train.start(*RUN, "workload.args.steps=40", "name=n")
    wait_for_step(train, "n", 13)
    train.emulator("fault", "preempt", "n-s0", "--notice", "30s")
    assert process.wait(120) == 0
    result = train.result("n")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    (resumed,) = result["resumed_from"]
    assert resumed >= 13
    assert resumed % 10  # no scheduled save
    train.assert_clean()


def test_a_lost_host_gets_its_slice_replaced(train: Place) -> None:
    process = train.start(*RUN, "workload.args.steps=40", "name=h", "retry.max_failures=0")
    wait_for_step(train, "h", 15)
    train.emulator("fault", "kill-host", "h-s0", "1")
    assert process.wait(120) == 0
    result = train.result("h")
    assert (result["preemptions"], result["failures"]) == (1, 0)
    assert "s0 h1" in str(train.events("h"))
    assert created(train) == 2
    train.assert_clean()


@pytest.mark.parametrize("failures", [1, 0])
def test_a_process_killed_shortly_before_its_slice_is_no_failure(
    train: Place, failures: int
) -> None:
    """With a failure left the run goes on at once; else it waits for news of the slice."""
    options = (f"retry.max_failures={failures}", "name=d")
    process = train.start(*RUN, "workload.args.steps=40", *options)
    wait_for_step(train, "d", 15)
    program_of(train, 1).kill()
    train.wait_for("d", "again" if failures else "died")
    time.sleep(0 if failures else 1)
    preempt(train, "d")
    assert process.wait(120) == 0
    result = train.result("d")
    assert (result["preemptions"], result["failures"]) == (1, 0)
    assert ("corrected" in train.verdict("d", 0)) == bool(failures)
    assert result["final_step"] == 40
    assert created(train) == 2
    train.assert_clean()


def test_a_killed_process_starts_again_without_a_wait_for_news(train: Place) -> None:
    process = train.start(*RUN, "workload.args.steps=30", "retry.max_failures=1", "name=q")
    wait_for_step(train, "q", 15)
    program_of(train, 1).kill()
    assert process.wait(120) == 0
    result = train.result("q")
    assert (result["preemptions"], result["failures"], result["attempts"]) == (0, 1, 2)
    assert train.verdict("q", 0)["evidence"].get("window", 0.0) < 1.0
    assert created(train) == 1
    train.assert_clean()


def test_a_bug_is_not_paid_for_with_new_nodes(train: Place) -> None:
    bug = trouble('step == 5 and rank == 0 and sys.exit("my own bug")')
    options = ("retry.max_failures=9", "retry.same_step_limit=3", "name=b")
    shown = train.run(*RUN, "workload.args.steps=40", bug, *options, expect=5)
    result = train.result("b")
    assert (result["attempts"], result["failures"], result["preemptions"]) == (3, 3, 0)
    assert result["first_failure"]["member"] == "s0 h0"
    assert "failed 3 times at step" in shown
    assert created(train) == 1
    train.assert_clean()


def test_an_exit_code_that_asks_for_it_starts_again_at_no_cost(train: Place) -> None:
    leave = trouble("step == 12 and attempt == 0 and sys.exit(42)")
    train.run(*RUN, "workload.args.steps=20", leave, "retry.restart_exit_codes=[42]", "name=e")
    result = train.result("e")
    assert (result["attempts"], result["failures"], result["resumed_from"]) == (2, 0, [10])
    assert created(train) == 1
    train.assert_clean()


@pytest.mark.parametrize("fault", ["preempt w-s0", "preempt w-s0 --notice 5m", "kill-host w-s0 1"])
def test_a_slice_that_goes_between_two_attempts_is_replaced_at_once(
    train: Place, fault: str
) -> None:
    """Not when the back-off is over; and no attempt is made, nor charged, to find it out."""
    leave = trouble("step == 12 and attempt == 0 and sys.exit(1)")
    options = ("retry.backoff=10m", "retry.max_failures=1", "name=w")
    process = train.start(*RUN, "workload.args.steps=20", leave, *options)
    train.wait_for("w", "again")
    train.emulator("fault", *fault.split())
    assert process.wait(120) == 0
    result = train.result("w")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 0, 1)
    assert result["resumed_from"] == [10]
    assert created(train) == 2
    train.assert_clean()


def test_a_hang_is_found_with_its_stacks(train: Place) -> None:
    hang = trouble("step == 12 and attempt == 0 and time.sleep(600)")
    options = ("retry.hang_timeout=3s", "retry.max_failures=1", "name=g")
    shown = train.run(*RUN, "workload.args.steps=20", hang, *options)
    result = train.result("g")
    assert (result["attempts"], result["failures"], result["resumed_from"]) == (2, 1, [10])
    assert "hang" in shown
    log = (train.folder / "runs" / "g" / "logs" / "attempt-0" / "s0-h0.log").read_text()
    assert "train.py" in log.partition("step 11")[2]  # the stack
    train.assert_clean()


@pytest.mark.parametrize("step", [5, 15])
def test_the_same_command_takes_up_a_run_whose_launcher_was_killed(train: Place, step: int) -> None:
    words = (*RUN, "workload.args.steps=60", "name=s")
    process = train.start(*words)
    wait_for_step(train, "s", step)
    kill_supervisor(train, process)
    shown = train.run(*words)
    assert "went on by itself" in shown
    result = train.result("s")
    assert (result["attempts"], result["resumed_from"], result["final_step"]) == (1, [], 60)
    log = (train.folder / "runs" / "s" / "logs" / "attempt-0" / "s0-h1.log").read_text()
    assert log == "".join(f"step {n}\n" for n in range(1, 61))
    assert created(train) == 1
    train.assert_clean()


@pytest.mark.parametrize(
    ("cluster", "loss"),
    [
        (["cluster=v4-16"], ["freeze-host", "m-s0", "1"]),
        (["cluster=v4-8", "mode=multislice"], ["preempt", "m-s1"]),
    ],
    ids=["host", "slice"],
)
def test_what_went_on_without_a_launcher_is_known_though_its_peers_are_lost(
    train: Place, cluster: list[str], loss: list[str]
) -> None:
    """A launcher dies, then a part of the hosts; the others have gone on meanwhile."""
    words = (*RUN, *cluster, "workload.args.steps=60", "name=m")
    process = train.start(*words)
    wait_for_step(train, "m", 5)
    kill_supervisor(train, process)
    train.emulator("fault", *loss)
    wait_until(lambda: last_saved(train, "m") >= 20)
    shown = train.run(*words)
    assert "went on by itself" in shown
    result = train.result("m")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    assert (result["resumed_from"][0] >= 20, result["final_step"]) == (True, 60)
    assert sorted({step for _, step in steps_of(train, "m")}) == list(range(1, 61))
    train.assert_clean()


def steps_of(place: Place, name: str) -> list[tuple[int, int]]:
    """Each attempt and step in the run's metrics."""
    lines = (place.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return [(value["attempt"], value["step"]) for value in told if "step" in value]


def test_what_ended_is_charged_by_the_next_launcher_if_the_first_was_killed_over_it(
    train: Place,
) -> None:
    """All processes have ended, and the launcher is killed while it waits for news of the slice."""
    words = (*RUN, "workload.args.steps=40", "retry.max_failures=0", "name=j")
    process = train.start(*words)
    wait_for_step(train, "j", 12)
    program_of(train, 1).kill()
    wait_until(lambda: [event["kind"] for event in train.events("j")].count("died") == 2)
    time.sleep(0.5)
    kill_supervisor(train, process)
    assert not (train.folder / "runs" / "j" / "verdicts").exists()
    assert "went on by itself" in train.run(*words, expect=5)
    result = train.result("j")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (1, 0, 1)
    assert train.verdict("j", 0)["cause"] == "s0 h1"
    assert created(train) == 1
    train.assert_clean()


def test_what_has_succeeded_is_not_run_again_when_the_launcher_is_killed_over_the_deletion(
    train: Place,
) -> None:
    """It would ask for slices once more, to find that all is done."""
    words = (*RUN, "name=z")
    process = train.start(*words, "workload.args.steps=12")
    train.wait_for("z", "verdict")
    wait_until(lambda: "succeeded" in (train.folder / "runs/z/account.json").read_text())
    kill_supervisor(train, process)
    assert not (train.folder / "runs" / "z" / "result.json").exists()
    assert "attempt 0 has succeeded" in train.run(*words, "workload.args.steps=12")
    result = train.result("z")
    assert (result["status"], result["attempts"], result["final_step"]) == ("succeeded", 1, 12)
    assert created(train) == 1
    train.assert_clean()


def last_saved(place: Place, name: str) -> int:
    folder = place.folder / "runs" / name / "checkpoints"
    return max((int(path.name) for path in folder.iterdir()), default=0)


def test_a_launcher_that_is_killed_while_its_processes_save_leaves_a_run_that_goes_on(
    train: Place,
) -> None:
    """What another command told to leave did not fail, and nobody has cancelled the run."""
    slow = 'if stop: print("saves", flush=True); time.sleep(15)'
    words = (*RUN, trouble(slow), "retry.grace=30s", "retry.max_failures=0", "name=w")
    process = train.start(*words, "workload.args.steps=40")
    wait_for_step(train, "w", 12)
    process.terminate()
    train.wait_for_output("w", "saves\n")
    kill_supervisor(train, process)
    shown = train.run(*words, "workload.args.steps=40")
    assert "went on by itself" in shown
    result = train.result("w")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 0, 0)
    assert (result["resumed_from"][0] >= 12, result["final_step"]) == (True, 40)
    assert created(train) == 1
    train.assert_clean()


def test_what_runs_on_is_ended_by_the_same_name_with_another_program(train: Place) -> None:
    """Other arguments, and then other code, in place of the program whose launcher was killed."""
    words = (*RUN, "name=p")
    process = train.start(*words, "workload.args.steps=600")
    wait_for_step(train, "p", 12)
    kill_supervisor(train, process)
    process = train.start(*words, "workload.args.steps=601")
    logs = train.folder / "runs" / "p" / "logs"
    wait_until((logs / "attempt-1" / "s0-h0.log").exists)
    kill_supervisor(train, process)
    other = TRAIN.replace("tell(told)", "tell(told)\nprint('other code', flush=True)")
    (train.folder / "train.py").write_text(other)
    shown = train.run(*words, "workload.args.steps=1")
    assert "what runs there is another program" in shown
    first, second, third = ((logs / f"attempt-{n}" / "s0-h0.log").read_text() for n in range(3))
    assert first.startswith("step 1\n")
    began = int(second.splitlines()[0].removeprefix("step "))
    assert began > 10  # from a checkpoint
    assert began % 10 == 1
    assert third == "other code\n"
    result = train.result("p")
    assert (result["status"], result["attempts"]) == ("succeeded", 3)
    assert created(train) == 1
    train.assert_clean()


def test_where_an_attempt_went_on_from_is_known_to_whoever_takes_it_up(train: Place) -> None:
    """The supervisor is killed before the program has said it."""
    leave = trouble("step == 12 and attempt == 0 and sys.exit(42)")
    late = "workload.env.FIRST='attempt and time.sleep(8)'"
    words = (*RUN, "workload.args.steps=30", leave, late, "retry.restart_exit_codes=[42]", "name=f")
    process = train.start(*words)
    deadline = time.monotonic() + 90
    while [e["kind"] for e in train.events("f")].count("started") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1)  # for the processes to be started
    kill_supervisor(train, process)
    assert "went on by itself" in train.run(*words)
    result = train.result("f")
    assert (result["attempts"], result["resumed_from"], result["final_step"]) == (2, [10], 30)
    train.assert_clean()


def test_an_attempt_is_new_and_its_run_is_not(train: Place) -> None:
    """Name and checkpoint folder outlive a restart in place and a new slice."""
    who = 'print("I am", os.environ["LAUNCHER_RUN"], attempt, folder.name, flush=True)'
    leave = trouble("step == 12 and attempt == 0 and sys.exit(42)")
    words = (*RUN, "workload.args.steps=40", f"workload.env.FIRST='{who}'", leave, "name=i")
    process = train.start(*words, "retry.restart_exit_codes=[42]")
    wait_for_step(train, "i", 25)
    train.emulator("fault", "preempt", "i-s0")
    assert process.wait(150) == 0
    logs = sorted((train.folder / "runs" / "i" / "logs").glob("*/s0-h1.log"))
    assert [log.read_text().splitlines()[0] for log in logs] == [
        f"I am i {attempt} checkpoints" for attempt in range(3)
    ]
    first, second = train.result("i")["resumed_from"]
    assert first == 10 < 20 <= second
    train.assert_clean()


def test_processes_end_when_nobody_comes_for_them(train: Place) -> None:
    words = (*RUN, "workload.args.steps=600", "name=o", "retry.reattach_timeout=1s")
    process = train.start(*words)
    wait_for_step(train, "o", 12)
    kill_supervisor(train, process)
    wait_until(lambda: not train.runs("train.py"))
    train.start(*words)
    resumed = train.wait_for("o", "resumed")["step"]
    train.run("cancel", "o")
    assert train.verdict("o", 0)["outcome"] == "stopped"
    assert [step for attempt, step in steps_of(train, "o") if not attempt] == [
        *range(1, resumed + 1)
    ]
    train.assert_clean()


KILLS = 15


@pytest.mark.stress
@pytest.mark.parametrize("moment", range(KILLS))
def test_killed_at_any_moment(train: Place, moment: int) -> None:
    """From the first second to the last of a run that takes about twelve."""
    words = (*RUN, "workload.args.steps=40", "name=k")
    process = train.start(*words)
    time.sleep(12 * (moment + 0.5) / KILLS)
    kill_supervisor(train, process)
    train.run(*words)
    result = train.result("k")
    assert (result["status"], result["final_step"] or 40) == ("succeeded", 40)
    train.assert_clean()


def plain_client(endpoint: str) -> Any:
    """A client that knows nothing of the launcher."""
    import grpc
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(endpoint)))


def test_preempted_while_creating_and_deleted_by_another_client(train: Place) -> None:
    rules = "provider.rules=[{fault: slow-create, seconds: 3s, count: 1}]"
    process = train.start(*RUN, "workload.args.steps=60", "name=t", rules)
    asked = train.wait_for("t", "provisioning")
    time.sleep(1)
    train.emulator("fault", "preempt", "t-s0")
    wait_for_step(train, "t", 15)
    plain_client(asked["endpoint"]).delete_node(name=asked["node"])
    assert process.wait(150) == 0
    result = train.result("t")
    assert (result["preemptions"], result["failures"]) == (1, 0)
    assert result["resumed_from"][0] >= 10
    train.assert_clean()


def test_two_supervisors_of_one_run_cannot_be(train: Place) -> None:
    words = (*RUN, "workload.args.steps=30", "name=two")
    first = train.start(*words)
    wait_for_step(train, "two", 5)
    shown = train.run(*words, expect=2)
    assert "going on in another process" in shown
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    train.assert_clean()


def test_a_full_disk_costs_the_record_and_not_the_run(train: Place) -> None:
    """Of the launcher alone: its own files may not grow beyond 64 KiB, as metrics.jsonl would."""
    much = trouble('tell({"much": "x" * 50_000})')
    process = train.start(*RUN, "workload.args.steps=30", much, "name=full")
    train.wait_for("full", "joined")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))
    assert process.wait(120) == 0
    shown = train.screen(0).read_text()
    assert shown.count("runs/full cannot be written: File too large; the run goes on") == 1
    assert "fault" not in shown
    assert (train.folder / "runs" / "full" / "metrics.jsonl").stat().st_size == 2**16
    result = train.result("full")
    assert (result["status"], result["final_step"]) == ("succeeded", 30)
    log = train.folder / "runs" / "full" / "logs" / "attempt-0" / "s0-h1.log"
    assert log.read_text().endswith("step 30\n")
    train.assert_clean()


def test_the_death_of_the_ray_head_costs_no_slice(train: Place) -> None:
    process = train.start(*RUN, "workload.args.steps=40", "name=c", "retry.max_failures=0")
    wait_for_step(train, "c", 15)
    train.kill_head()
    assert process.wait(150) == 0
    result = train.result("c")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (2, 1, 0)
    assert (result["resumed_from"][0] >= 10, result["final_step"]) == (True, 40)
    assert created(train) == 1
    train.assert_clean()


def test_the_ray_head_dies_while_hosts_join(train: Place) -> None:
    """One of the two has joined, and joins again; the other one is booting."""
    slow = "provider.rules=[{fault: slow-boot, worker: 1, seconds: 8s, count: 1}]"
    process = train.start(*RUN, "workload.args.steps=5", "name=j", slow)
    train.wait_for("j", "joined")
    train.kill_head()
    assert process.wait(150) == 0
    result = train.result("j")
    assert (result["attempts"], result["preemptions"], result["failures"]) == (1, 1, 0)
    assert created(train) == 1
    train.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("moment", range(12))
def test_the_ray_head_dies_at_any_moment_before_the_start(train: Place, moment: int) -> None:
    """That at which the launcher connects is one of them: Ray itself would try for 205 s."""
    process = train.start(*RUN, "workload.args.steps=60", "name=a")
    train.wait_for("a", "head")
    time.sleep(moment / 2)
    train.kill_head()
    assert process.wait(120) == 0
    assert train.result("a")["failures"] == 0
    assert created(train) == 1
    train.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("when", ["hosts join", "it runs"])
def test_a_ray_head_that_stands_still_is_missed_and_replaced(train: Place, when: str) -> None:
    slow = "provider.rules=[{fault: slow-boot, worker: 1, seconds: 15s, count: 1}]"
    process = train.start(*RUN, "workload.args.steps=300", "name=z", slow)
    if when == "it runs":
        wait_for_step(train, "z", 15)
    else:
        train.wait_for("z", "joined")
    folder = json.loads((train.home / "heads" / "run-z.json").read_text())["folder"]
    for part, argv in train.commands():
        if any(folder in word for word in argv):
            part.suspend()
    assert process.wait(240) == 0
    said = [e["text"] for e in train.events("z") if "silent for 20 s" in e.get("text", "")]
    assert said
    result = train.result("z")
    assert (result["preemptions"], result["failures"], result["final_step"]) == (1, 0, 300)
    assert created(train) == 1
    train.assert_clean()


def test_slices_that_stay_outlive_their_ray_head(train: Place) -> None:
    """As when the machine that they were made from has been started anew, with an empty /tmp."""
    words = (*RUN, "keep=true", "name=o")
    train.run(*words, "workload.args.steps=5")
    train.kill_head()
    (head,) = (train.home / "heads").glob("*.json")
    shutil.rmtree(json.loads(head.read_text())["folder"])
    shown = train.run(*words, "workload.args.steps=15")
    assert "is gone: another takes its place" in shown
    assert train.result("o")["final_step"] == 15
    assert created(train) == 1
    train.run("down", "o")
    train.assert_clean()


@pytest.mark.stress
@pytest.mark.parametrize("moment", range(6))
def test_the_ray_head_dies_while_a_run_finds_slices_that_stay(train: Place, moment: int) -> None:
    """Ray itself would try for 205 s."""
    words = (*RUN, "keep=true", "name=n")
    train.run(*words, "workload.args.steps=5")
    before = len(train.events("n"))
    process = train.start(*words, "workload.args.steps=100")
    wait_until(lambda: any(event["kind"] == "plan" for event in train.events("n")[before:]))
    time.sleep(0.5 + moment / 4)
    train.kill_head()
    assert process.wait(120) == 0
    assert train.result("n")["failures"] == 0
    train.run("down", "n")
    train.assert_clean()


def test_a_run_on_slices_that_stay_is_counted_anew(train: Place) -> None:
    words = (*RUN, "keep=true", "name=n")
    train.run(*words, "workload.args.steps=5")
    time.sleep(1)
    train.run(*words, "workload.args.steps=15")
    result = train.result("n")
    assert (result["attempts"], result["final_step"]) == (1, 15)
    assert result["seconds"]["recovery"] < 1
    train.run("down", "n")
    train.assert_clean()
