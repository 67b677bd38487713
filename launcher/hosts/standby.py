"""Starts programs, the next one from a process that has made its imports. Runs on a host.

Beside a process of the user's waits at most one standby: a fresh interpreter with the same
interpreter, environment and working directory, which runs `ahead`. It takes one program and is
never used again, so that a program shares its process with none before it. When anything but
the arguments and the variables of the attempt is different, it is ended, and the program started
as if there were none.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from launcher.hosts.ahead import is_later
from launcher.hosts.descendants import KILL_SECONDS

PROGRAM = Path(__file__).with_name("ahead.py").read_text()  # travels with this module
SIGKILLED = -9
IDLE_SECONDS = 60.0  # after the end of an attempt, for the next one to begin


@dataclass(frozen=True, slots=True)
class Standby:
    """`fits` is what must be the same for the next program."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    fits: tuple[object, ...]

    def take(self, argv: Sequence[str], env: Mapping[str, str], output: int) -> bool:
        """Have it be that program; False when it cannot."""
        order = json.dumps({"argv": argv, "env": env}).encode()
        with self.channel, contextlib.suppress(OSError):
            self.channel.setblocking(False)  # it may still import: what does not fit in is too much
            socket.send_fds(self.channel, [b"!"], [output])
            return self.channel.send(order) == len(order)
        return False

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it sleeps in the kernel
            self.process.wait(KILL_SECONDS)


class Standbys:
    """Those of a host, by the number of the process. `folder` is for the program that they run."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"ahead-{sha256(PROGRAM.encode()).hexdigest()[:8]}.py"
        self.lock = threading.RLock()
        self.waiting: dict[int, Standby] = {}
        self.killed = 0
        self.alarm: threading.Timer | None = None

    def start(
        self, index: int, argv: Sequence[str], env: Mapping[str, str], folder: Path, output: int
    ) -> subprocess.Popen[bytes]:
        """The program. Raises OSError."""
        with self.lock:
            if self.alarm:
                self.alarm.cancel()
            standby = self.waiting.pop(index, None)
            if standby and standby.process.poll() is None:
                fits = standby.fits == what_fits(argv, env, folder)
                if fits and standby.take(argv, env, output):
                    return standby.process
            if standby:
                self._end(standby)
        return subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def prepare(
        self, index: int, argv: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        """Have one for what comes after this program, if it is Python. Raises OSError."""
        if not (target := target_of(argv)):
            return
        ours, its = socket.socketpair()
        with its, tempfile.TemporaryFile() as said, self.lock:
            self._install()
            process = subprocess.Popen(
                [argv[0], str(self.file), str(its.fileno()), *target],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
            earlier = self.waiting.pop(index, None)
            self.waiting[index] = Standby(process, ours, what_fits(argv, env, folder))
            if earlier:
                self._end(earlier)

    def _install(self) -> None:
        """Whole or not at all: other agents of this host may do the same."""
        if not self.file.exists():
            own = self.file.with_suffix(f".{os.getpid()}")
            own.write_text(PROGRAM)
            own.replace(self.file)

    def _end(self, standby: Standby) -> None:
        """With the lock."""
        self.killed += standby.process.poll() == SIGKILLED
        standby.end()

    def rest(self) -> None:
        """Nothing runs now: end them if that stays so."""
        with self.lock:
            self.alarm = threading.Timer(IDLE_SECONDS, self.end)
            self.alarm.daemon = True
            self.alarm.start()

    def end(self) -> None:
        with self.lock:
            for standby in self.waiting.values():
                self._end(standby)
            self.waiting.clear()

    def count_killed(self) -> int:
        """How many another has killed: the kernel, for want of memory."""
        with self.lock:
            now = (standby.process.poll() for standby in self.waiting.values())
            return self.killed + sum(code == SIGKILLED for code in now)

    def pids(self) -> list[int]:
        with self.lock:
            return [standby.process.pid for standby in self.waiting.values()]


def target_of(argv: Sequence[str]) -> list[str]:
    """The script, or `-m` and the module; empty when it is not run by Python, or with options."""
    if not os.path.basename(argv[0]).startswith("python") or len(argv) < 2:
        return []
    if argv[1] == "-m":
        return [*argv[1:3]] if len(argv) > 2 else []
    return [argv[1]] if argv[1].endswith(".py") and not argv[1].startswith("-") else []


def what_fits(argv: Sequence[str], env: Mapping[str, str], folder: Path) -> tuple[object, ...]:
    constant = {name: value for name, value in env.items() if not is_later(name)}
    return argv[0], target_of(argv), constant, folder
