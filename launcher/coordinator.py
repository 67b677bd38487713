"""The Ray head that a supervisor uses: one on this machine, started for it, or one that is there.

A head that is started is a process group that outlives the launcher. Its address, ports and folder
are chosen and recorded before it is started, and it is found again by the path of its own
configuration on its command line, so no moment exists at which a death could leave a head that
nobody knows.

A supervisor that runs as a Ray job uses the head that runs the job: `$LAUNCHER_HEAD` names the file
that describes it. Such a head is neither started nor stopped here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from launcher import raynode, registry
from launcher.errors import ClusterError
from launcher.greeting import Greeting

STOP_SECONDS = 15.0
LONGEST_TEMP = 20
SILENCE_SECONDS = 20.0  # of a head that is frozen; Ray gives up one that is gone after a minute
OBJECT_STORE_BYTES = 200_000_000
GIVEN = "LAUNCHER_HEAD"


class HeadLost(ClusterError):
    """Nobody answers at the Ray head's address."""


@dataclass(frozen=True, slots=True)
class Head:
    """A Ray head on this machine. `folder` holds its sockets, so its path is short.

    `token_path` is empty where the launcher's home holds the token; None for a head of somebody
    else, whose authentication is that of this process's environment.
    """

    id: str
    address: str
    ports: tuple[int, ...]  # as `raynode.port_block` gives them
    folder: str
    token_path: str | None = ""

    @property
    def gcs(self) -> tuple[str, int]:
        """Where the head answers."""
        return self.address, self.ports[-2]

    @property
    def gcs_address(self) -> str:
        return f"{self.address}:{self.ports[-2]}"

    @property
    def dashboard(self) -> str:
        """Where the dashboard of a cluster that stays is, and takes Ray jobs."""
        return f"{self.address}:{self.ports[-1]}"

    @property
    def token_file(self) -> Path:
        own = registry.home() / "heads" / f"{self.id}.token"
        return Path(self.token_path) if self.token_path else own

    @property
    def token(self) -> str:
        return self.token_file.read_text()

    @property
    def log(self) -> Path:
        return registry.home() / "heads" / f"{self.id}.log"

    @property
    def config(self) -> str:
        return f"{self.folder}/head.json"


def head_path(head_id: str) -> Path:
    return registry.home() / "heads" / f"{head_id}.json"


def find_head(head_id: str) -> Head | None:
    return given_head() or read_head(head_path(head_id))


def given_head() -> Head | None:
    """The head that runs this process as a job. Raises ClusterError when it cannot be read."""
    if not (named := os.environ.get(GIVEN)):
        return None
    if head := read_head(Path(named)):
        return head
    raise ClusterError(f"no Ray head is described by ${GIVEN}, {named}")


def read_head(path: Path) -> Head | None:
    found = registry.read_json(path)
    return Head(**{**found, "ports": tuple(found["ports"])}) if found else None


def heads() -> list[Head]:
    """Every head on record."""
    paths = sorted((registry.home() / "heads").glob("[a-z]*.json"))
    return [head for path in paths if (head := read_head(path))]


def start_head(head_id: str, choose_address: Callable[[], str], dashboard: bool) -> Head:
    """The head of that id: the one that runs, or a new one, started but not waited for.

    Ray's dashboard costs more processor time than many a job: only clusters that stay get one.
    """
    if given := given_head():
        return given
    with head_lock(head_id):
        head = find_head(head_id)
        if head and processes(head):
            return head
        if head:
            stop_head(head)
        head = choose(head_id, choose_address)
        registry.write_json(head_path(head_id), asdict(head))
        spawn(head, dashboard, token_of_this_process() or secrets.token_hex(32))
    return head


def renew_head(head: Head, timeout: float, pause: Callable[[float], None]) -> None:
    """Another head in the place of one that died: its address, ports and token are the same, so
    that hosts and drivers of the old one find it. Does nothing when somebody else was faster.

    Raises HeadLost for a head that is somebody else's.
    """
    if given_head():
        require_alive(head)
        return
    with head_lock(head.id, 2 * STOP_SECONDS + timeout, pause):  # as long as another one may take
        if answers(head):
            return
        token, config = head.token, registry.read_json(Path(head.config)) or {}
        end_processes(head)
        spawn(head, bool(config.get("dashboard")), token)
        wait_for_head(head, timeout, pause)


def choose(head_id: str, choose_address: Callable[[], str]) -> Head:
    address = choose_address()
    temp = tempfile.gettempdir()
    # Ray's sockets lie 75 bytes below, and the path of a socket ends at 107.
    base = Path(temp if len(os.fsencode(temp)) <= LONGEST_TEMP else "/tmp")
    folder = base / f"ray-{secrets.token_hex(4)}"
    return Head(head_id, address, tuple(raynode.port_block(address, head=True)), str(folder))


def token_of_this_process() -> str | None:
    """Ray keeps the first token that a process has used: its next heads must have the same."""
    used = os.environ.get("RAY_AUTH_TOKEN")
    return used if "ray" in sys.modules else None


def spawn(head: Head, dashboard: bool, token: str) -> None:
    Path(head.folder).mkdir(mode=0o700)
    head.token_file.touch(0o600)
    head.token_file.write_text(token)
    config = {
        "node_ip_address": head.address,
        "ports": head.ports,
        "temp_dir": head.folder,
        "token_file": str(head.token_file),
        "object_store_memory": OBJECT_STORE_BYTES,
        "dashboard": dashboard,
    }
    Path(head.config).write_text(json.dumps(config))
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    with head.log.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, raynode.__file__, "head", head.config],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=own | {"TMPDIR": head.folder},
        )
    await_sight(head, child)


def await_sight(head: Head, child: subprocess.Popen[bytes]) -> None:
    """Until `processes` finds it: on a busy machine a program that has just been loaded shows no
    command line yet, and would be taken for one that has ended.
    """
    while not processes(head) and child.poll() is None:
        time.sleep(0.01)


def wait_for_head(head: Head, timeout: float, pause: Callable[[float], None]) -> None:
    """Until the head has said that it is ready. Raises ClusterError with the end of its log."""
    if given_head():
        return
    deadline = time.monotonic() + timeout
    while '"ready"' not in (text := head.log.read_text(errors="replace")):
        if not processes(head):
            raise ClusterError(
                f"the Ray head ended while starting; its log {head.log}:\n{text[-2000:]}"
            )
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the Ray head did not start within {timeout:g} s; its log {head.log}:\n"
                f"{text[-2000:]}"
            )
        pause(0.02)


def require_alive(head: Head) -> None:
    """Raises HeadLost when nobody answers at the head's address any more: at once when it is gone,
    after SILENCE_SECONDS when it is frozen.
    """
    try:
        heard = greets(head)
    except OSError as error:
        raise HeadLost(gone(head, error)) from error
    if not heard:
        raise HeadLost(frozen(head))


def greets(head: Head) -> bool:
    """Whether what listens at the head's address is not frozen. Raises OSError if nothing does."""
    with contextlib.closing(Greeting(*head.gcs)) as greeting:
        return greeting.came(SILENCE_SECONDS)


def gone(head: Head, error: OSError) -> str:
    return f"the Ray head at {head.gcs_address} is gone: {error}"


def frozen(head: Head) -> str:
    return f"the Ray head at {head.gcs_address} is frozen: it was silent for {SILENCE_SECONDS:g} s"


def answers(head: Head) -> bool:
    with contextlib.suppress(HeadLost):
        require_alive(head)
        return True
    return False


def is_up(head: Head) -> bool:
    """Whether the head can be used again; one that is still starting can."""
    if given_head():
        return answers(head)
    with contextlib.suppress(OSError):
        return greets(head) and bool(processes(head))
    return bool(processes(head))


def processes(head: Head) -> list[psutil.Process]:
    """Every process that has the head's folder on its command line; the launcher's own first."""
    found = [p for p in psutil.process_iter(["cmdline"]) if is_part(p, head)]
    return sorted(found, key=lambda p: head.config not in (p.info["cmdline"] or []))


def is_part(process: psutil.Process, head: Head) -> bool:
    return any(head.folder in argument for argument in process.info["cmdline"] or [])


def release_head(head_id: str, but_for: str = "") -> None:
    """Stop the head unless a run on record, but for one, needs it; none can begin to meanwhile."""
    if given_head():
        return
    with head_lock(head_id):
        users = {r["name"] for r in registry.records() if r["head"] == head_id} - {but_for}
        head = find_head(head_id)
        if head and not users:
            stop_head(head)


def head_lock(
    head_id: str, wait: float = 30.0, pause: Callable[[float], None] = time.sleep
) -> contextlib.AbstractContextManager[None]:
    return registry.lock(f"head-{head_id}", f"the Ray head {head_id} is busy", wait, pause)


def stop_head(head: Head) -> None:
    """End the head and all it started, remove its folder, and forget it."""
    end_processes(head)
    head.token_file.unlink(missing_ok=True)
    head_path(head.id).unlink(missing_ok=True)


def end_processes(head: Head) -> None:
    """End the head and all it started; remove its folder and its log."""
    deadline = time.monotonic() + STOP_SECONDS
    for leader in [p for p in processes(head) if head.config in p.info["cmdline"]]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            leader.terminate()
            leader.wait(max(0.0, deadline - time.monotonic()))
    kill(head)
    shutil.rmtree(head.folder, ignore_errors=True)
    head.log.unlink(missing_ok=True)


def kill(head: Head) -> None:
    """End the head and all it started at once. Raises ClusterError when they do not die."""
    deadline = time.monotonic() + STOP_SECONDS
    while left := processes(head):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes of the Ray head survive: {[p.pid for p in left]}")
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)
