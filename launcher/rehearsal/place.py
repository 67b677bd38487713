"""Where one scenario happens: an emulator, a launcher home and a temp folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.emulator import client
from launcher.errors import ProvisioningError
from launcher.record import RUNS

START_SECONDS = 60.0  # for an emulator
LEAVE_SECONDS = 20.0  # for what ends by itself, such as an emulator that is empty


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` is the run's. The temp folder has a short path: sockets lie below it."""

    name: str
    folder: Path
    home: Path
    temp: Path

    @property
    def env(self) -> dict[str, str]:
        own = {"LAUNCHER_HOME": self.home, "TMPDIR": self.temp, RUNS: self.folder.parent}
        return {**os.environ, **{key: str(path) for key, path in own.items()}}

    @property
    def screen(self) -> Path:
        """What the launcher said."""
        return self.folder / "screen.log"

    def processes(self) -> list[Any]:
        return holders(self.home, self.temp)

    def record(self) -> dict[str, Any]:
        """What the launcher has on record for the run; empty when nothing is up."""
        return registry.read_json(self.home / "runs" / f"{self.name}.json") or {}

    @property
    def head_path(self) -> Path:
        """Where the run's Ray head is on record."""
        return self.home / "heads" / f"{self.record().get('head')}.json"


@contextlib.contextmanager
def opened(rehearsal: Path, name: str) -> Iterator[Place]:
    """A place below the rehearsal's folder; whatever is still in it at the end is removed."""
    temp = Path(tempfile.mkdtemp(prefix="lr-", dir="/tmp"))
    place = Place(name, rehearsal / name, rehearsal / ".home" / name, temp)
    place.folder.mkdir(parents=True)
    place.home.mkdir(parents=True, mode=0o700)
    try:
        yield place
    finally:
        for process in place.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(temp, ignore_errors=True)


@contextlib.contextmanager
def emulator(place: Place) -> Iterator[str]:
    """The endpoint of the place's emulator, which lives at least as long as the block.

    Raises ProvisioningError if it does not start.
    """
    state = client.make_state_dir(place.home / "emulator")
    with (state / "emulator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher.emulator", "serve", "--state-dir", str(state)],
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        started = lambda: client.read_endpoint(state) or process.poll() is not None  # noqa: E731
        wait_until(started, START_SECONDS)
        if (endpoint := client.read_endpoint(state)) is None:
            raise ProvisioningError(f"the emulator did not start: {state / 'emulator.log'}")
        with client.attach(endpoint):
            yield endpoint
        wait_until(lambda: process.poll() is not None)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, else by SIGKILL."""
    process.terminate()
    try:
        process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def leaks(place: Place, endpoint: str) -> list[str]:
    """What the launcher left: of the cloud and on record. To be asked while the emulator lives."""
    left = client.control(endpoint, {"command": "ledger"})["left"]
    records = [*(place.home / "runs").glob("[a-z]*.json"), *(place.home / "heads").glob("*.json")]
    return [*map(str, left), *(f"record {path.relative_to(place.home)}" for path in records)]


def remains(place: Place) -> list[str]:
    """What is still there when the emulator has had its time to end: processes, temp folders."""
    wait_until(lambda: not place.processes())
    found = [f"process {each.pid} ({command(each)})" for each in place.processes()]
    return [*found, *(str(path) for path in place.temp.iterdir())]


def holders(*folders: Path) -> list[Any]:
    """Every process that has one of the folders in its environment, whatever it has become."""
    import psutil

    return [process for process in psutil.process_iter() if knows(process, folders)]


def knows(process: Any, folders: Sequence[Path]) -> bool:
    import psutil

    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        values = process.environ().values()
    except psutil.Error:
        return False
    return any(str(folder) in value for value in values for folder in folders)


def command(process: Any) -> str:
    import psutil

    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "gone"


def wait_until(condition: Callable[[], object], seconds: float = LEAVE_SECONDS) -> None:
    """Returns when it holds, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
