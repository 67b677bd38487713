"""Labelled faults at random moments: no budget is charged for what it is not there for.

    FAULT_RUNS=15 FAULT_SEED=7 python -m pytest -m stress tests/e2e/test_faults.py

Each run is told what it is to be charged with by the fault that it is given, before it begins.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher import registry
from launcher.interrupt import Interrupt
from launcher.rehearsal import judge, place
from launcher.rehearsal.conduct import Job, Ran, conduct
from launcher.rehearsal.scenarios import make
from launcher.rehearsal.triggers import Course

pytestmark = [pytest.mark.e2e, pytest.mark.stress]

RUNS = int(os.environ.get("FAULT_RUNS", "50"))
SEED = int(os.environ.get("FAULT_SEED", str(time.time_ns() % 10**6)))
STEPS, EVERY = 50, 10
LATEST = 20  # for what is noticed within two seconds the run must not be over: notices, a dead head
LIMIT = 240.0  # seconds
HOSTS = {"v2-8": 1, "v4-16": 2}

# Its processes meet in every step, as those of JAX do: when one dies, its peers die of it, in the
# words of JAX, mostly before anybody knows why.
PROGRAM = f"""
import json, os, pathlib, signal, socket, sys, time

folder = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
attempt, rank = int(os.environ["LAUNCHER_ATTEMPT"]), int(os.environ["LAUNCHER_PROCESS_ID"])
others = int(os.environ["LAUNCHER_NUM_PROCESSES"]) - 1
saved, wish = max((int(path.name) for path in folder.iterdir()), default=0), []
signal.signal(signal.SIGTERM, lambda *_: wish.append(True))


def tell(**value):
    if rank == 0:
        with open(os.environ["LAUNCHER_METRICS"], "a") as file:
            file.write(json.dumps(value) + "\\n")


def save(step):
    if rank == 0:
        (folder / str(step)).touch()
        tell(saved_step=step)


def links():
    first = os.environ["TPU_WORKER_HOSTNAMES"].split(",")[0]
    address = first, int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server(address) as server:
            return [server.accept()[0] for _ in range(others)]
    while True:
        try:
            return [socket.create_connection(address)]
        except ConnectionRefusedError:
            time.sleep(0.05)


def everybody(word):
    if rank:
        peers[0].sendall(word)
        return peers[0].recv(1)
    answer = max([word, *(peer.recv(1) for peer in peers)])
    for peer in peers:
        peer.sendall(answer)
    return answer


peers = links() if others else []
tell(restored_step=saved)
for step in range(saved + 1, {STEPS} + 1):
    time.sleep(0.1)
    exec(os.environ.get("TROUBLE", ""))
    try:
        leaves = everybody(b"1" if wish else b"0")
        if not leaves:
            raise ConnectionResetError
    except OSError:
        print("Gloo all-reduce failed: Connection closed by peer", flush=True)
        sys.exit(1)
    print("step", step, flush=True)
    tell(step=step, loss=1 / step)
    if step % {EVERY} == 0 or leaves == b"1":
        save(step)
    if leaves == b"1":
        sys.exit(143)
"""
WORDS = (
    "workload.script=train.py",
    "provider=local",
    "retry.backoff=200ms",
    "retry.grace=5s",
    "retry.restart_exit_codes=[42]",
    "retry.max_failures=1",
)


@dataclass(frozen=True, slots=True)
class Label:
    """What becomes of the first attempt, whom it is charged to, and how many slices are made.

    `seen`: a launcher is there all the time. One that is killed right after a fault may not have
    charged it, and the next one may find nothing to charge: then 0 is right as well.
    """

    outcome: str
    budget: str
    slices: int
    deeds: Sequence[Mapping[str, Any]] = ()  # the first one at the chosen step
    trouble: str = ""  # in the program, at the chosen step of the chosen process
    words: Sequence[str] = ()
    seen: bool = True


PREEMPTED = ("preempted", "preemptions", 2)
LOST = ("host_lost", "preemptions", 2)
OWN = ("workload_failed", "failures", 1)
STOCKOUT = {"do": "stockout", "count": 2}
KILL_HOST = {"do": "kill-host", "worker": "any"}
A_BUG = 'raise ValueError("a bug")'
LABELS: Mapping[str, Label] = {
    "preempted": Label(*PREEMPTED, [{"do": "preempt"}]),
    "preempted-with-notice": Label(*PREEMPTED, [{"do": "preempt", "notice": "8s"}]),
    "preempted-in-a-stockout": Label(*PREEMPTED, [STOCKOUT, {"do": "preempt"}]),
    "node-deleted": Label(*PREEMPTED, [{"do": "delete-node"}]),
    "maintenance": Label(
        "maintenance", "preemptions", 2, [{"do": "maintenance-event", "notice": "4s"}]
    ),
    "host-killed": Label(*LOST, [KILL_HOST]),
    "host-frozen": Label(*LOST, [{"do": "freeze-host", "worker": "any"}]),
    "head-killed": Label("head_lost", "preemptions", 1, [{"do": "kill-head"}]),
    "launcher-killed": Label("succeeded", "", 1, [{"do": "kill-launcher"}]),
    "process-killed": Label(*OWN, trouble="os.kill(os.getpid(), 9)"),
    "segmentation-fault": Label(*OWN, trouble="os.kill(os.getpid(), 11)"),
    "exception": Label(*OWN, trouble=A_BUG),
    "exit-code": Label(*OWN, trouble="sys.exit(3)"),
    "asks-for-a-restart": Label("workload_failed", "", 1, trouble="sys.exit(42)"),
    "out-of-memory": Label("out_of_memory", "failures", 1, trouble="raise MemoryError"),
    "host-killed-then-launcher": Label(
        *LOST, [KILL_HOST, {"when": {"after": "any"}, "do": "kill-launcher"}], seen=False
    ),
    "exception-then-launcher": Label(
        *OWN,
        [{"when": {"event": "died", "after": "any"}, "do": "kill-launcher"}],
        trouble=A_BUG,
        seen=False,
    ),
    "hang": Label(
        "hang", "failures", 1, trouble="time.sleep(600)", words=["retry.hang_timeout=4s"]
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run: what is done to it, on which cluster, when and to whom."""

    name: str
    label: Label
    cluster: str
    step: int
    host: int
    later: str  # how long after the fault something else happens, if it does

    @property
    def row(self) -> dict[str, Any]:
        """As in a file of scenarios."""
        deeds = [{"when": {"step": self.step}, **deed} for deed in self.label.deeds[:1]]
        deeds += [{**deed} for deed in self.label.deeds[1:]]
        for deed in deeds:
            if "worker" in deed:
                deed["worker"] = self.host
            if "after" in deed.get("when", {}):
                deed["when"] = {**deed["when"], "after": self.later}
        charged = {"preemptions": [0, 0], "failures": [0, 0]}
        if self.label.budget:
            charged[self.label.budget] = [int(self.label.seen), 1]
        return {"name": self.name, "deeds": deeds, "expect": charged}

    @property
    def words(self) -> list[str]:
        place_ = f"attempt == 0 and step == {self.step} and rank == {self.host}"
        trouble = f"if {place_}: {self.label.trouble}"
        own = [f"workload.env.TROUBLE='{trouble}'"] if self.label.trouble else []
        return [f"cluster={self.cluster}", *WORDS, *self.label.words, *own]


def drawn(index: int) -> Case:
    """Every kind comes once before any comes again."""
    kinds = random.Random(SEED).sample(list(LABELS), len(LABELS))
    kind, chance = kinds[index % len(kinds)], random.Random(f"{SEED} {index}")
    cluster = chance.choice(list(HOSTS))
    return Case(
        f"{kind}-{index}",
        LABELS[kind],
        cluster,
        chance.randint(2, LATEST),
        chance.randrange(HOSTS[cluster]),
        f"{chance.randint(0, 3000)}ms",
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("index", range(RUNS))
def test_every_fault_is_charged_to_whom_it_belongs(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = drawn(index)
    print(f"FAULT_SEED={SEED}: {case}")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    job, scenario = Job(case.words, HOSTS[case.cluster]), make(case.row)
    course = Course(STEPS, STEPS * 0.1, saves=True)
    with place.opened(tmp_path / "runs", case.name) as where:
        ran = conduct(job, scenario, where, course, LIMIT, Interrupt(print), print)
    told = judge.read(where.folder)
    print(where.screen.read_text())
    finding = judge.judge(scenario, ran, told, calm(), where.folder)
    assert finding.failures == (), f"FAULT_SEED={SEED} run {index}: {case}"
    check(case, ran, told, where.folder)


def calm() -> judge.Told:
    """What a run tells that nothing happens to."""
    last = {"attempt": 0, "process": "s0 h0", "step": STEPS, "loss": 1 / STEPS}
    return judge.Told({}, [last], [], saves=True)


def check(case: Case, ran: Ran, told: judge.Told, folder: Path) -> None:
    label = case.label
    assert ran.exit_code == 0
    if not label.seen:
        return
    verdict = registry.read_json(folder / "verdicts" / "attempt-0.json") or {}
    assert verdict["outcome"] == label.outcome, verdict
    again = label.outcome != "succeeded"
    assert told.result["attempts"] == 1 + again
    assert sum(event["kind"] == "ready" for event in told.events) == label.slices
    assert len(told.result["resumed_from"]) == again
    if again:
        (resumed,) = told.result["resumed_from"]
        assert resumed in resumable(told.metrics), told.metrics
    if label.trouble:
        assert verdict["cause"] == f"s0 h{case.host}" or label.outcome == "hang", verdict


def resumable(lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The last save that the first attempt told, and what it may have saved untold later."""
    first = [line for line in lines if line["attempt"] == 0]
    last = max((line["saved_step"] for line in first if "saved_step" in line), default=0)
    high = max((line["step"] for line in first if "step" in line), default=0)
    return {last, *range(last + 1, high + 2)}
