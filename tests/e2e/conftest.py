"""A place to run the real command line, which must be left as clean as it was found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.rehearsal.place import holders

LAUNCHER = [sys.executable, "-m", "launcher"]
ROOT = Path(__file__).parents[2]
LEAVE_SECONDS = 15.0  # for what ends by itself, such as an emulator that is empty


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real clusters share two cores with other tests: what fails is run once more, and counted."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@dataclass
class Place:
    """A folder to stand in, and a launcher home of its own."""

    folder: Path
    home: Path
    temp: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        # Values of another world must not matter to anything.
        stale = {"TPU_WORKER_HOSTNAMES": "bogus", "MEGASCALE_NUM_SLICES": "3", "RAY_ADDRESS": "x:1"}
        own = {
            "LAUNCHER_HOME": str(self.home),
            "TMPDIR": str(self.temp),
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": "",
        }
        return {**os.environ, **stale, **own}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with self.screen(len(self.started)).open("wb") as screen:
            process = subprocess.Popen(
                [*LAUNCHER, *words],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def screen(self, number: int) -> Path:
        return self.home / f"screen-{number}"

    def run(self, *words: str, expect: int = 0, timeout: float = 120) -> str:
        """Run to the end; return stdout and stderr together."""
        number = len(self.started)
        code = self.start(*words).wait(timeout)
        shown = self.screen(number).read_text()
        assert code == expect, f"exit {code}\n{shown}"
        return shown

    def emulator(self, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "launcher.emulator", *words]
        shown = subprocess.run(
            command, cwd=self.folder, env=self.env, check=True, capture_output=True, timeout=60
        )
        return dict(json.loads(shown.stdout))

    def result(self, name: str) -> Mapping[str, Any]:
        return dict(json.loads((self.folder / "runs" / name / "result.json").read_text()))

    def verdict(self, name: str, attempt: int) -> Mapping[str, Any]:
        path = self.folder / "runs" / name / "verdicts" / f"attempt-{attempt}.json"
        return dict(json.loads(path.read_text()))

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "runs" / name / "events.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def wait_for(self, name: str, kind: str, timeout: float = 90) -> dict[str, Any]:
        """The first event of that kind in the run's folder."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for event in self.events(name):
                if event["kind"] == kind:
                    return event
            time.sleep(0.02)
        raise AssertionError(f"no {kind} in {self.events(name)}")

    def wait_for_output(self, name: str, text: str, timeout: float = 90) -> None:
        deadline = time.monotonic() + timeout
        logs = self.folder / "runs" / name / "logs"
        while not any(text in path.read_text() for path in logs.glob("*/*.log")):
            assert time.monotonic() < deadline, f"no {text!r} in the logs of {name}"
            time.sleep(0.02)

    def kill_head(self) -> None:
        """SIGKILL to the whole process group of the only Ray head."""
        (head,) = [p for p, argv in self.commands() if argv[2:3] == ["head"]]
        os.killpg(head.pid, signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        return holders(self.home, self.temp)

    def commands(self) -> list[tuple[psutil.Process, list[str]]]:
        """Each process and its argv, but those that have just ended."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append((process, process.cmdline()))
        return found

    def runs(self, program: str) -> bool:
        """Whether a process of this place has that word in its command line."""
        return any(program in " ".join(argv) for _, argv in self.commands())

    def assert_clean(self) -> None:
        """No process, temp folder, record or billed node of this place is left."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.commands() == []
        assert not list(self.temp.glob("ray-*")) + list(self.temp.glob("tpu-*"))
        assert not list((self.home / "runs").glob("*.json"))
        assert not list((self.home / "heads").glob("*.json"))
        ledger = self.home / "emulator" / "ledger.json"
        if ledger.exists():
            assert self.emulator("ledger")["left"] == []


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("place")) as made:
        yield made


@contextlib.contextmanager
def opened(base: Path) -> Iterator[Place]:
    """A place in that folder; nothing of it is left running."""
    temp = Path(f"/tmp/lt-{os.getpid()}-{base.name[-4:]}")  # short: sockets live below it
    made = Place(base / "user's folder", base / "home", temp)
    for folder in (made.folder, made.home, temp):
        folder.mkdir()
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    for left in made.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    for path in sorted(temp.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    temp.rmdir()
