"""Times how soon a job makes steps again after one of its processes, or a host, has died.

    python benchmarks/recovery.py [-n RUNS]

process   SIGKILL of one of two processes: until it is noticed, and until the first new step
standby   the same with `mode.standby`: another run, whose next processes have their imports done
host      SIGKILL of a whole emulated host: the same, less the time in which its slice is replaced
by hand   a script that starts the same two processes, waits for a death, ends both, starts both
polling   the same script when it looks every 30 seconds and starts one Ray job a host, as Google's
          `ray_tpu` controller did; computed of parts that are measured here: the time from start to
          first step by hand, the mean wait of half a poll, and the start of an empty Ray job

All in one run, taking turns. The table gives medians and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from launcher.emulator import client as emulator
from launcher.emulator.faults import OVERTAKEN
from launcher.errors import ConfigError
from launcher.hosts import ahead

STEPS = Path(__file__).with_name("baselines") / "steps.py"
STEP = re.compile(rb"step (\d+) ([\d.]+)\n")
SECONDS = 120.0
POLL_SECONDS = 30.0
FIRST_STEP = "first new step"


def wait_for(what: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What the call gives once it gives something true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing within {seconds:g} s")
        time.sleep(0.005)
    return found


def first_step_after(path: Path, moment: float) -> float | None:
    """When the first step of the youngest start after that moment was made."""
    text = path.read_bytes() if path.exists() else b""
    times = [float(t) for number, t in STEP.findall(text) if number == b"1" and float(t) > moment]
    return times[0] if times else None


class Launched:
    """A run of two processes on an emulated v4-16, started again for ever."""

    def __init__(self, base: Path, *, standby: bool = False) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.standby = standby
        self.folder = base / "runs" / "bench"
        self.env = {**os.environ, "LAUNCHER_HOME": str(base / "home"), "TMPDIR": str(base)}
        words = ["cluster=v4-16", f"workload.script={STEPS}", "name=bench", "retry.backoff=1ms"]
        words += ["retry.max_failures=999", "retry.same_step_limit=null", "retry.grace=2s"]
        words += [f"workload.working_dir={STEPS.parent}", f"mode.standby={str(standby).lower()}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *words],
            cwd=base,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def log(self) -> Path:
        attempts = (self.folder / "logs").glob("attempt-*/s0-h0.log")
        return max(attempts, key=lambda p: int(p.parent.name[8:]), default=self.folder / "none")

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def running(self) -> None:
        """Wait for steps of the attempt that is under way, and for its standbys."""
        wait_for(lambda: first_step_after(self.log(), 0.0))
        time.sleep(0.5)
        if self.standby:
            wait_for(lambda: sum(is_ready(process) for _, process in self.processes()) == 2)

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """By rank; a standby has that of the process beside it."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if str(self.base) in variables.get("LAUNCHER_METRICS", ""):
                    found.append((variables["LAUNCHER_PROCESS_ID"], process))
        return found

    def program(self) -> psutil.Process:
        for rank, process in self.processes():
            if rank == "1" and not is_standby(process):
                return process
        raise SystemExit("no process to kill")

    def strike(self, deed: Callable[[], None]) -> dict[str, float]:
        """Seconds from the deed until it was noticed, and until the first new step, less those
        spent on a new slice; and by phase.
        """
        self.running()
        before, struck = len(self.events()), time.time()
        deed()
        wait_for(lambda: [e for e in self.events()[before:] if e["kind"] == "died"])
        noticed = time.time() - struck
        step = wait_for(lambda: first_step_after(self.log(), struck)) - struck
        new = self.events()[before:]
        at = {event["kind"]: event["elapsed"] for event in reversed(new)}
        made = at["cluster"] - at["again"] if "provisioning" in at else 0.0
        judged, ordered = at["verdict"] - at["died"], at["started"] - at["verdict"] - made
        return {
            "noticed": noticed,
            "the others ended, all judged": judged,
            "the next attempt ordered": ordered,
            "from there to the first new step": step - made - noticed - judged - ordered,
            FIRST_STEP: step - made,
        }

    def kill_process(self) -> None:
        self.program().send_signal(signal.SIGKILL)

    def kill_host(self) -> None:
        endpoint = next(e["endpoint"] for e in self.events() if "endpoint" in e)
        fault = {"command": "fault", "fault": "kill-host", "node": "bench-s0", "worker": 1}
        try:
            emulator.control(endpoint, fault)
        except ConfigError as error:  # the run has the node deleted before it has wholly ended
            if OVERTAKEN not in str(error):
                raise

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def is_standby(process: psutil.Process) -> bool:
    return bool(process.name().startswith(ahead.NAME))


def is_ready(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.name() == ahead.READY)
    return False


class ByHand:
    """The same two processes, kept going by a loop."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.port = 15_000
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        self.port += 1
        hosts = "127.0.9.10,127.0.9.11"
        for index in range(2):
            variables = {
                "JAX_FORCE_TPU_INIT": "1",
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "4",
                "JAX_COORDINATOR_PORT": str(self.port),
                "TPU_WORKER_ID": str(index),
                "TPU_WORKER_HOSTNAMES": hosts,
                "MEGASCALE_COORDINATOR_ADDRESS": "",
                "MEGASCALE_NUM_SLICES": "",
                "MEGASCALE_SLICE_ID": "",
                "LAUNCHER_NUM_PROCESSES": "2",
                "PYTHONUNBUFFERED": "1",
            }
            with (self.base / f"hand-{index}.log").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, STEPS], env=os.environ | variables, stdout=log, stderr=log
                    )
                )

    def strike(self) -> float:
        """Seconds from the death of a process to the first new step."""
        log = self.base / "hand-0.log"
        wait_for(lambda: first_step_after(log, 0.0))
        time.sleep(0.5)
        struck = time.time()
        self.processes[1].send_signal(signal.SIGKILL)
        wait_for(lambda: any(process.poll() is not None for process in self.processes))
        self.end()
        self.start()
        moment: float = wait_for(lambda: first_step_after(log, struck))
        return moment - struck

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []


@contextmanager
def empty_job() -> Iterator[Callable[[], float]]:
    """Times an empty Ray job on a small cluster of its own."""
    sys.path.insert(0, str(STEPS.parent))
    import ray_cluster
    from ray.job_submission import JobStatus, JobSubmissionClient

    with ray_cluster.cluster(dashboard=True) as (_, dashboard):
        client = wait_for(lambda: connected(JobSubmissionClient, dashboard))

        def run() -> float:
            started = time.monotonic()
            job = client.submit_job(entrypoint="true", entrypoint_resources={"TPU": 1})
            wait_for(lambda: client.get_job_status(job) == JobStatus.SUCCEEDED)
            return time.monotonic() - started

        run()
        yield run


def connected(client: Any, dashboard: str) -> Any:
    try:
        return client(f"http://{dashboard}")
    except (ConnectionError, RuntimeError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=5, help="how many times each")
    runs = parser.parse_args().n
    rows: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder:
        launched, by_hand = Launched(Path(folder, "a")), ByHand(Path(folder))
        warm = Launched(Path(folder, "b"), standby=True)
        try:
            for turn in range(runs + 1):
                found = {"process": launched.strike(launched.kill_process)}
                found["standby"] = warm.strike(warm.kill_process)
                found["by hand"] = {FIRST_STEP: by_hand.strike()}
                found["host, less the new slice"] = launched.strike(launched.kill_host)
                for what, times in found.items() if turn else ():  # the first round warms up
                    for phase, seconds in times.items():
                        rows[f"{what}: {phase}"].append(seconds)
        finally:
            launched.end()
            warm.end()
            by_hand.end()
    hand = statistics.median(rows[f"by hand: {FIRST_STEP}"])
    with empty_job() as job:
        rows[f"polling: {FIRST_STEP}"] = [hand + POLL_SECONDS / 2 + job() for _ in range(runs)]
    show(rows, hand)


def show(rows: dict[str, list[float]], hand: float) -> None:
    print("| what | median | range | / by hand | / polling |\n| --- | --- | --- | --- | --- |")
    polling = statistics.median(rows[f"polling: {FIRST_STEP}"])
    for name, times in rows.items():
        middle = statistics.median(times)
        is_whole = name.endswith(f": {FIRST_STEP}")
        ratios = f"{middle / hand:.2f} | {middle / polling:.2f}" if is_whole else " | "
        print(f"| {name} | {middle:.2f} s | {min(times):.2f} to {max(times):.2f} | {ratios} |")


if __name__ == "__main__":
    main()
