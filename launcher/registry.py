"""What this user has running on this machine, written before it exists.

One JSON file a run (`runs/NAME.json`), one a Ray head (`heads/ID.json`) and one a VM of a Ray head
(`coordinators/KEY.json`), under `home()`. Each names what is about to be created, so that after any
death, at any instant, the same command, `down` or `gc` finds it. The files hold names and paths, no
secrets, and are written whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import locks
from launcher.errors import ConfigError

MACHINE = "LAUNCHER_MACHINE"
ZOMBIE = "Z"
_updating = threading.Lock()  # slices are created by threads


def home() -> Path:
    """`$LAUNCHER_HOME`, else `launcher` in the user's cache folder."""
    if named := os.environ.get("LAUNCHER_HOME"):
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "launcher"


def machine_id() -> str:
    """Tells runs of this machine's records from others, as a label value. Nothing is written.

    A job that supervises a run elsewhere has the id of the user's machine in `$LAUNCHER_MACHINE`.
    """
    if given := os.environ.get(MACHINE):
        return given
    with contextlib.suppress(OSError):
        host = Path("/etc/machine-id").read_text()
        return hashlib.sha256(f"{host}{home()}".encode()).hexdigest()[:12]
    return hashlib.sha256(f"{socket.gethostname()}{home()}".encode()).hexdigest()[:12]


def write_whole(path: Path, content: str | bytes) -> None:
    """A reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content if isinstance(content, bytes) else content.encode())
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def json_text(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Raises ConfigError when it cannot be written: nothing is to be made that is not on record."""
    try:
        write_whole(path, json_text(value))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """None for what is not there, or is torn. Raises ConfigError when it cannot be read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def run_path(name: str) -> Path:
    return home() / "runs" / f"{name}.json"


def record(name: str) -> dict[str, Any] | None:
    """What is, or was about to be, up under this name; None when nothing is."""
    return read_json(run_path(name))


def records() -> list[dict[str, Any]]:
    paths = sorted((home() / "runs").glob("[a-z]*.json"))
    return [found for path in paths if (found := read_json(path))]


def write_record(name: str, value: Mapping[str, Any]) -> None:
    write_json(run_path(name), value)


def update(name: str, **fields: Any) -> None:
    """Change fields of a record, if there is one; only the holder of the run's lock may."""
    change(name, lambda _: fields)


def change(name: str, how: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """As `update`, with fields that depend on what is there: no other thread comes in between."""
    with _updating:
        if found := record(name):
            write_record(name, {**found, **how(found)})


def forget(name: str) -> None:
    """Raises ConfigError when the record cannot be removed."""
    path = run_path(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {error.strerror or error}") from error


@contextlib.contextmanager
def lock(
    name: str, what: str, wait: float = 0.0, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold a lock that the kernel releases when this process dies.

    Raises ConfigError when another process holds it after `wait` seconds; `what` says who.
    """
    path = home() / "locks" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"no folder for records ($LAUNCHER_HOME): {error}") from error
    with locks.held(path, ConfigError(what), wait, pause):
        yield


def this_process() -> dict[str, Any]:
    """Names this process beyond the reuse of its pid."""
    return {"pid": os.getpid(), "started": look(os.getpid())[1]}


def is_alive(process: Mapping[str, Any] | None) -> bool:
    """Whether a process that `this_process` named is still there."""
    if not process:
        return False
    try:
        state, started = look(process["pid"])
    except (FileNotFoundError, ProcessLookupError):
        return False
    return started == process["started"] and state != ZOMBIE


def look(pid: int) -> tuple[str, int]:
    """The state of a process, and when it was started: in clock ticks since the machine booted,
    which stay the same when somebody sets the clock. Raises OSError.
    """
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])  # the third and the 22nd, see proc(5)
