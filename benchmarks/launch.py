"""Times the launcher beside what it is built on, and prints a Markdown table.

    python benchmarks/launch.py [--only a|b|c] [-n RUNS]

Contenders take turns (A B A B …), so that what else the machine does meets all of them alike; the
table gives medians and their ratios. Every time is that of a whole command, as a user waits for it.

a  `plan` for a v6e-16                     / composing the same configuration with bare Hydra
b  the whole main job on an emulated slice / the same job by hand, with parallel `ray start`
c  a command on a cluster that is up, from request to the first line of all four hosts
                                           / actors by hand, one Ray job per host, JaxTrainer
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

BASELINES = Path(__file__).with_name("baselines")
sys.path.insert(0, str(BASELINES))  # its scripts import each other by name

import ray_cluster  # noqa: E402

MAIN_JOB = ("cluster=v6e-16", "mode=jax", "workload=basic")
ON_A_CLUSTER = ("cluster=v6e-16", "mode=jax", "name=bench", "keep=true")
SAY = ("/bin/echo", "up")
HOST = re.compile(r"^\[(?:s0 )?h(\d)\]", re.MULTILINE)
SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One command; `target` is the highest ratio of the launcher's time to its that we want."""

    name: str
    argv: tuple[str, ...]
    target: float | None = None


@dataclass(slots=True)
class Timing:
    """What one command took: seconds, and the peak resident memory of its own process in MB."""

    whole: float = math.nan
    first_lines: float = math.nan
    peak_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder to run in and variables to run with."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def time(self, argv: Sequence[str]) -> Timing:
        """Run a command to its end; SystemExit with the end of its output when it fails."""
        timing, start, said = Timing(), time.monotonic(), ""
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            with subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
            ) as process:
                threading.Thread(target=_watch, args=(process, timing), daemon=True).start()
                for line in process.stdout or ():
                    said += line
                    if math.isnan(timing.first_lines) and len(set(HOST.findall(said))) == 4:
                        timing.first_lines = time.monotonic() - start
            timing.whole = time.monotonic() - start
            if process.returncode:
                errors.seek(0)
                raise SystemExit(f"{argv} failed:\n{said[-2000:]}\n{errors.read()[-2000:]}")
        return timing

    def compare(self, contenders: Sequence[Contender], runs: int) -> list[list[Timing]]:
        """Timings by contender; one round first that does not count, to warm every cache."""
        rounds = [[self.time(contender.argv) for contender in contenders] for _ in range(runs + 1)]
        return [list(column) for column in zip(*rounds[1:], strict=True)]


def _watch(process: subprocess.Popen[str], timing: Timing) -> None:
    """Follow the kernel's high-water mark of a process, and end the process when it is too slow."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None:
        with suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            if mark := re.search(r"VmHWM:\s+(\d+) kB", status):
                timing.peak_mb = int(mark[1]) * 1024 / 1e6
        if time.monotonic() > deadline:
            process.terminate()
        time.sleep(0.05)


def ours(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "launcher", *arguments)


def by_hand(script: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(BASELINES / script), *arguments)


def bench_plan(bench: Bench, runs: int) -> Iterator[str]:
    contenders = (
        Contender("`launcher plan`", ours("plan", *MAIN_JOB)),
        Contender(
            "bare Hydra, `--cfg job`", by_hand("hydra_app.py", *MAIN_JOB, "--cfg", "job"), 1.5
        ),
    )
    yield from rows("a", contenders, bench.compare(contenders, runs), lambda t: t.whole)


def bench_main_job(bench: Bench, runs: int) -> Iterator[str]:
    contenders = (
        Contender("`launcher`, whole main job", ours(*MAIN_JOB)),
        Contender("parallel `ray start`, four actors", by_hand("ray_start.py"), 1.0),
    )
    timings = bench.compare(contenders, runs)
    yield from rows("b", contenders, timings, lambda timing: timing.whole)
    peak = max(timing.peak_mb for timing in timings[0])
    yield f"| b | peak memory of the supervising process | {peak:.0f} MB | | | ≤ 300 MB |"


def bench_on_a_cluster(bench: Bench, runs: int) -> Iterator[str]:
    command = f"workload.command=[{','.join(SAY)}]"
    with ExitStack() as stack:
        stack.enter_context(launcher_cluster(bench))
        address, dashboard = stack.enter_context(ray_cluster.cluster(dashboard=True))
        contenders = [
            Contender("`launcher run`", ours("run", *ON_A_CLUSTER, command)),
            Contender("actors", by_hand("actors.py", address, *SAY), 1.2),
            Contender("one Ray job per host", by_hand("jobs.py", dashboard, *SAY), 0.5),
        ]
        if find_spec("pyarrow"):  # Ray Train's own need; the extra `bench` brings it
            contenders.append(Contender("JaxTrainer", by_hand("jax_trainer.py", address)))
        timings = bench.compare(contenders, runs)
    yield from rows("c", contenders, timings, lambda timing: timing.first_lines)


@contextmanager
def launcher_cluster(bench: Bench) -> Iterator[None]:
    """A cluster of the launcher's that is up under the name that `ON_A_CLUSTER` uses."""
    bench.time(ours("up", *ON_A_CLUSTER))
    try:
        yield
    finally:
        bench.time(ours("down", "bench"))


def rows(
    part: str,
    contenders: Sequence[Contender],
    timings: Sequence[Sequence[Timing]],
    seconds: Callable[[Timing], float],
) -> Iterator[str]:
    """One table row a contender, the launcher's own first."""
    columns = [[seconds(timing) for timing in column] for column in timings]
    own = statistics.median(columns[0])
    for contender, column in zip(contenders, columns, strict=True):
        median = statistics.median(column)
        cells = (
            part,
            contender.name,
            f"{median:.2f} s",
            f"{min(column):.2f} to {max(column):.2f}",
            f"{own / median:.2f}" if contender is not contenders[0] else "",
            f"≤ {contender.target}" if contender.target else "",
        )
        yield f"| {' | '.join(cells)} |"


PARTS = {"a": bench_plan, "b": bench_main_job, "c": bench_on_a_cluster}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part alone")
    parser.add_argument("-n", dest="runs", type=int, default=5, help="runs of each (default: 5)")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, Ray {version('ray')}, "
        f"JAX {version('jax')}; medians of {options.runs} alternating runs\n\n"
        "| part | what | median | range | launcher / this | target |\n| --- " + "| --- " * 5 + "|"
    )
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:
        variables = ray_cluster.environment() | {"LAUNCHER_HOME": f"{folder}/home"}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        bench = Bench(Path(folder), variables)
        for part in options.only or PARTS:
            for row in PARTS[part](bench, options.runs):
                print(row, flush=True)


if __name__ == "__main__":
    main()
