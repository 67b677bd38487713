"""What runs on a host: an actor that owns the host's processes of one attempt.

Ray ships it to the hosts by value, with the modules that it is made of (`cluster.ON_HOSTS`); a host
needs the standard library and psutil, which Ray brings. Its duties, by module:

* `archive`: unpack the user's code once per host, by digest, whole or not at all;
* `processes`: start each process in a group of its own, with exactly the argv and environment
  of the order; end them on demand, with all their descendants, and say when none is left;
* `standby`, `ahead`: have the imports of the next one made meanwhile;
* `lobby`: have nobody wait who comes to JAX's coordinator before it is there;
* `journal`, `link`: send output, metrics, exits and a heartbeat to the supervisor over one TCP
  connection: that it breaks tells of a dead host thirty times sooner than Ray does;
* `notices`: hear that the host will go;
* `tpu_env`: say where the metadata of this host contradicts what it was told;
* `stacks`: say where a process hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import psutil

from launcher.hosts.archive import unpack
from launcher.hosts.descendants import adopt_orphans, end_those_with, has_ended
from launcher.hosts.notices import Notices
from launcher.hosts.processes import HostProcesses
from launcher.hosts.standby import Standbys
from launcher.hosts.tpu_env import contradictions

PORTS = range(12_000, 20_000)  # below those that `raynode` gives to Ray's own processes
NOTHING: Mapping[str, str] = MappingProxyType({})
# Set by Ray, by the image or by an earlier tenant; never meant for the user's process. The last two
# make PyTorch/XLA believe that there is a process for each chip already.
FOREIGN_PREFIXES = (
    *("RAY_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "LAUNCHER_"),
    *("TORCHELASTIC_", "PJRT_LOCAL_PROCESS_"),
)


class Agent:
    """One per host, as a Ray actor. No method but `prepare` waits for a process; threads do that.

    An order carries the key of its attempt. One for another attempt than was prepared last comes
    from a supervisor that has been replaced, and is ignored.
    """

    def __init__(self) -> None:
        adopt_orphans()
        # Where the launcher did not start Ray, the environment of Ray itself has to do.
        environment = json.loads(os.environ.get("LAUNCHER_HOST_ENVIRONMENT", "null"))
        environment = environment or dict(os.environ)
        self.environment = clean_environment(environment)
        self.prepared = ""  # the key of the attempt that may start
        self.mine: HostProcesses | None = None
        self.standbys = Standbys(Path.home() / ".launcher")
        self.incoming: IO[bytes] | None = None
        self.metadata = environment  # tells where the metadata server is
        self.notices = Notices(environment, self._notice)

    def hello(self, told: Mapping[str, str] = NOTHING) -> dict[str, Any]:
        """Who this host is, the versions that must equal those of its peers, and where its metadata
        contradicts what it is `told` of itself.
        """
        import ray

        return {
            "node": os.environ.get("TPU_NAME", ""),
            "address": ray.util.get_node_ip_address(),
            "python": platform.python_version(),
            "ray": ray.__version__,
            "wrong": contradictions(told, self.metadata),
        }

    def busy(self) -> bool:
        """Whether processes of an attempt run here."""
        return self.mine is not None and self.mine.is_running()

    def notice(self) -> str:
        """By what it is known that this host will go, if it is."""
        return ", ".join(self.notices.in_force)

    def has_code(self, digest: str) -> bool:
        return self._code(digest).is_dir()

    def receive_code(self, digest: str, chunk: bytes, first: bool, last: bool) -> None:
        """Take the next piece of the archive; unpack it when it was the `last`."""
        if first or self.incoming is None:
            folder = self._code(digest).parent
            folder.mkdir(parents=True, exist_ok=True)
            # Of its own: other agents of this host may get the same code.
            self.incoming = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.incoming.write(chunk)
        if last:
            with self.incoming as file:
                file.seek(0)
                self.incoming = None
                unpack(file, self._code(digest))

    def prepare(self, digest: str, key: str, ports: int = 1) -> dict[str, Any]:
        """End what an earlier attempt left here; give so many ports that are free now.

        `left` are the ids of processes that do not die: the TPU may still be theirs.
        """
        left = self.mine.end() if self.mine else []
        left += end_strays(self._attempts())
        self.mine, self.prepared = None, key
        return {"ports": free_ports(ports), "code": self.has_code(digest), "left": left}

    def start(self, order: dict[str, Any]) -> bool:
        """Start the processes of `order` (see `fanout.make_orders`) and report to its `callback`.

        False when another attempt has been prepared since.
        """
        if order["key"] != self.prepared or self.mine:
            return False
        folder = self._attempts() / f"{identity(os.getpid())}-{order['key']}"
        code, refresh = self._code(order["code"]), self.notices.refresh
        self.mine = HostProcesses(order, code, self.environment, folder, refresh, self.standbys)
        for notice in list(self.notices.in_force.values()):
            self.mine.notice(notice)
        return True

    def state(self) -> dict[str, Any]:
        """Of the attempt here: its `key`, the `running` processes, `exits`, `notices`, whether it
        is `supervised`, and whether all is `gone`. Empty when there is none.
        """
        return self.mine.state() if self.mine else {}

    def attach(self, order: dict[str, Any]) -> str:
        """Report to the `callback` of a new supervisor what it does not know by its `offsets`.

        Those map a process to its bytes of output and lines of metrics. The answer is the key of
        the attempt here; "" when there is none; "later" when a supervisor that took over `since`
        has been here already.
        """
        mine = self.mine
        if mine is None or mine.key != order["key"]:
            return mine.key if mine else ""
        offsets = {int(process): known for process, known in order["offsets"].items()}
        taken = mine.attach(order["callback"], order["host"], offsets, order["since"])
        return mine.key if taken else "later"

    def _notice(self, **notice: Any) -> None:
        if self.mine:
            self.mine.notice(notice)

    def _attempts(self) -> Path:
        return Path.home() / ".launcher" / "attempts"

    def _code(self, digest: str) -> Path:
        return Path.home() / ".launcher" / "code" / digest


def end_strays(attempts: Path) -> list[int]:
    """Remove the folders of old attempts, and end what is left of one whose agent was killed.

    The name of a folder begins with its agent; those of another living one stay: two runs may have
    an agent each on a host, of which one is idle.
    """
    left: list[int] = []
    for folder in attempts.glob("*-*"):
        pid = int(folder.name.partition(".")[0])
        agent = identity(pid)
        is_alive = bool(agent) and folder.name.startswith(f"{agent}-")
        if is_alive and pid != os.getpid():
            continue
        if not is_alive:
            # What was a standby once has the folder of an attempt before its own.
            whose = folder.name.partition("-")[0]
            left += end_those_with("LAUNCHER_METRICS", f"{attempts / whose}-")
        shutil.rmtree(folder, ignore_errors=True)
    return left


def identity(pid: int) -> str:
    """A living process by its id and start, as no other had or will have; "" when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return "" if has_ended(process) else f"{pid}.{process.create_time():.2f}"
    return ""


def clean_environment(environment: dict[str, str]) -> dict[str, str]:
    """The host's own environment without what belongs to Ray, the image or another tenant."""
    kept = {k: v for k, v in environment.items() if not k.startswith(FOREIGN_PREFIXES)}
    folder = os.path.dirname(sys.executable)
    # A TPU that cannot be opened must be an error, not a silent fall back to the CPU.
    defaults = {"JAX_PLATFORMS": "tpu,cpu", "PJRT_DEVICE": "TPU", "PYTHONUNBUFFERED": "1"}
    return defaults | kept | {"PATH": f"{folder}:{kept.get('PATH', os.defpath)}"}


def free_ports(count: int) -> list[int]:
    """Ports, no two alike, on which nobody listens now, on any of this machine's addresses."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            found.add(port)
    return list(found)
