"""What runs on a host: an actor that owns the host's processes of one attempt.

It needs the standard library, psutil (which Ray brings) and `launcher.archive`; Ray ships both
modules to the hosts by value. Its duties:

* unpack the user's code once per host, by digest, whole or not at all;
* start each process in a group of its own, with exactly the argv and environment of the order;
* send output, metrics, exits and a heartbeat to the supervisor over one TCP connection of its own:
  a broken connection tells of a dead host thirty times sooner than Ray does;
* end the processes on demand, with all their descendants, and say when none is left.

Frames on the connection are one line of JSON; an `output` frame is followed by `size` raw bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from launcher.archive import unpack

HEARTBEAT_SECONDS = 1.0
METRICS_POLL_SECONDS = 0.1
OUTPUT_CHUNK = 65_536
LAST_OUTPUT_SECONDS = 1.0  # how long a pipe held open by a grandchild is waited for
PORTS = range(12_000, 20_000)  # below those that `raynode` gives to Ray's own processes
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILL_SECONDS = 10.0
# Set by Ray, by the image or by an earlier tenant; never meant for the user's process.
FOREIGN_PREFIXES = ("RAY_", "TPU_", "MEGASCALE_", "LAUNCHER_")


class Agent:
    """One per host, as a Ray actor. All methods return at once; threads do the lasting work."""

    def __init__(self) -> None:
        adopt_orphans()
        environment = json.loads(os.environ["LAUNCHER_HOST_ENVIRONMENT"])
        self.environment = clean_environment(environment)
        self.mine: HostProcesses | None = None
        self.incoming: BinaryIO | None = None

    def hello(self) -> dict[str, Any]:
        """Who this host is, and the versions that must equal those of its peers."""
        import ray

        return {
            "node": os.environ["TPU_NAME"],
            "address": ray.util.get_node_ip_address(),
            "python": platform.python_version(),
            "ray": ray.__version__,
        }

    def has_code(self, digest: str) -> bool:
        return self._code(digest).is_dir()

    def receive_code(self, digest: str, chunk: bytes, first: bool, last: bool) -> None:
        """Take the next piece of the archive; unpack it when it was the `last`."""
        archive = self._code(digest).with_suffix(".tar")
        if first or self.incoming is None:
            archive.parent.mkdir(parents=True, exist_ok=True)
            self.incoming = archive.open("w+b")
        self.incoming.write(chunk)
        if last:
            with self.incoming as file:
                file.seek(0)
                self.incoming = None
                unpack(file, self._code(digest))
            archive.unlink()

    def prepare(self, digest: str) -> dict[str, Any]:
        """End what an earlier attempt left here; give a port that is free now."""
        if self.mine is not None:
            self.mine.stop(grace=0)
        return {"port": free_port(), "code": self.has_code(digest)}

    def start(self, order: dict[str, Any]) -> None:
        """Start the processes of `order` (see `fanout.order`) and report to its `callback`."""
        self.mine = HostProcesses(order, self._code(order["code"]), self.environment)

    def _code(self, digest: str) -> Path:
        return Path.home() / ".launcher" / "code" / digest


class HostProcesses:
    """The processes of one attempt on this host."""

    def __init__(self, order: dict[str, Any], code: Path, environment: dict[str, str]) -> None:
        self.link = Link(order["callback"], order["key"], order["host"])
        self.folder = Path.home() / ".launcher" / "attempts" / order["key"]
        self.folder.mkdir(parents=True)
        self.grace = float(order["grace"])
        self.ending = threading.Lock()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.followers: list[threading.Thread] = []
        for process in order["processes"]:
            self._start(process["process"], process["argv"], environment | process["env"], code)
        threading.Thread(target=self._follow_orders, daemon=True).start()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def _start(self, index: int, argv: list[str], env: dict[str, str], code: Path) -> None:
        metrics = self.folder / f"metrics-{index}.jsonl"
        env |= {"LAUNCHER_METRICS": str(metrics)}
        try:
            child = subprocess.Popen(
                argv,
                cwd=code,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self.link.output(index, f"launcher: cannot start {argv[0]}: {error}\n".encode())
            self.link.send(kind="exit", process=index, code=exec_failure_code(error))
            return
        self.processes[index] = child
        follower = threading.Thread(target=self._follow, args=(index, child, metrics), daemon=True)
        self.followers.append(follower)
        follower.start()

    def _follow(self, index: int, child: subprocess.Popen[bytes], metrics: Path) -> None:
        """Forward output and metrics until the process ends, then say how it ended."""
        output = threading.Thread(target=self._pump, args=(index, child), daemon=True)
        output.start()
        done = threading.Event()
        tail = threading.Thread(target=self._tail, args=(index, metrics, done), daemon=True)
        tail.start()
        code = child.wait()
        ended_at = time.time()
        output.join(LAST_OUTPUT_SECONDS)
        self._end_remains(child.pid)
        output.join(LAST_OUTPUT_SECONDS)
        done.set()
        tail.join()
        self.link.send(kind="exit", process=index, code=code, time=ended_at)

    def _pump(self, index: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        while chunk := os.read(child.stdout.fileno(), OUTPUT_CHUNK):
            self.link.output(index, chunk)

    def _tail(self, index: int, path: Path, done: threading.Event) -> None:
        """Forward whole lines that the process appends to its metrics file."""
        position, finished = 0, False
        while not finished:
            finished = done.wait(METRICS_POLL_SECONDS)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n") and not finished:
                        break
                    position += len(line)
                    self.link.send(
                        kind="metrics", process=index, line=line.decode(errors="replace")
                    )

    def _follow_orders(self) -> None:
        """Obey until the supervisor hangs up or dies; then nobody is left to run for."""
        for order in self.link.orders():
            if order["kind"] == "stop":
                self.stop(order["grace"])
        self.stop(self.grace)

    def stop(self, grace: float) -> None:
        """SIGTERM to every process group; after `grace` seconds SIGKILL to all descendants."""
        with self.ending:
            if grace:
                for child in self.processes.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and self._alive():
                time.sleep(0.02)
            end_descendants(self._leaders())
            for follower in self.followers:  # each has said how its process ended
                follower.join(3 * LAST_OUTPUT_SECONDS)
            self.link.send(kind="gone")

    def _end_remains(self, leader: int) -> None:
        """Kill what an ended process left: its group, or all that is left after the last one."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        if not self._alive():
            end_descendants(self._leaders())

    def _leaders(self) -> list[int]:
        return [child.pid for child in self.processes.values()]

    def _alive(self) -> bool:
        return any(child.poll() is None for child in self.processes.values())

    def _heartbeat(self) -> None:
        while self.link.send(kind="alive"):
            time.sleep(HEARTBEAT_SECONDS)


class Link:
    """The connection to the supervisor. A supervisor that is gone is not an error here."""

    def __init__(self, callback: str, key: str, host: list[int]) -> None:
        address, _, port = callback.rpartition(":")
        self.socket = socket.create_connection((address, int(port)), timeout=30)
        self.socket.settimeout(None)
        self.lock = threading.Lock()
        self.send(kind="hello", key=key, host=host)

    def send(self, payload: bytes = b"", **header: Any) -> bool:
        frame = json.dumps({"time": time.time()} | header).encode() + b"\n" + payload
        try:
            with self.lock:
                self.socket.sendall(frame)
        except OSError:
            return False
        return True

    def output(self, process: int, chunk: bytes) -> None:
        self.send(chunk, kind="output", process=process, size=len(chunk))

    def orders(self) -> Any:
        """Each order of the supervisor, as a dictionary, until the connection ends."""
        with contextlib.suppress(OSError), self.socket.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)


def clean_environment(environment: dict[str, str]) -> dict[str, str]:
    """The host's own environment without what belongs to Ray, the image or another tenant."""
    kept = {k: v for k, v in environment.items() if not k.startswith(FOREIGN_PREFIXES)}
    folder = os.path.dirname(sys.executable)
    # A TPU that JAX cannot open must be an error, not a silent fall back to the CPU.
    defaults = {"JAX_PLATFORMS": "tpu,cpu", "PYTHONUNBUFFERED": "1"}
    return defaults | kept | {"PATH": f"{folder}:{kept.get('PATH', os.defpath)}"}


def exec_failure_code(error: OSError) -> int:
    """As a shell would say it: 127 not found, 126 found but cannot be run."""
    return 127 if isinstance(error, FileNotFoundError) else 126


def free_port() -> int:
    """A port nobody listens on now, on any of this machine's addresses."""
    while True:
        port = random.choice(PORTS)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return port


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs: a daemon cannot slip away."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(leaders: list[int]) -> None:
    """SIGKILL everything below this agent until nothing is left but zombies of `leaders`."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline and (
        found := [p for p in psutil.Process().children(recursive=True) if not ended(p)]
    ):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.01)
    reap_orphans(leaders)


def ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def reap_orphans(leaders: list[int]) -> None:
    """Collect adopted zombies; those of `leaders` belong to their `Popen`."""
    for process in psutil.Process().children():
        if process.pid not in leaders:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
