"""Find or start an emulator, attach to it, and send it commands.

Light on purpose: the standard library and gRPC.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from launcher import locks
from launcher.errors import ConfigError, ProvisioningError

CONTROL = "/launcher.emulator.Control"
IDLE_TIMEOUT = "10s"
"""For an emulator that was started in the background and whose starter died before attaching."""
POLL = 0.005
REPLY_TIMEOUT = 60.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def default_state_dir() -> Path:
    """`$LAUNCHER_HOME/emulator`, or `launcher/emulator` in the user's cache folder."""
    if home := os.environ.get("LAUNCHER_HOME"):
        return Path(home, "emulator").absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "launcher", "emulator").absolute()


def open_channel(endpoint: str) -> grpc.Channel:
    """A plaintext channel that ignores proxies; also what `TpuGrpcTransport(channel=…)` takes."""
    return grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)])


def _method(kind: Callable[..., Any], name: str) -> Any:
    """A method of the emulator's own service; its messages are bytes."""
    return kind(f"{CONTROL}/{name}", request_serializer=None, response_deserializer=None)


class Attachment:
    """Keeps the emulator up while it is open; an emulator without nodes ends when none is left.

    What the `request` asks for holds as long. `endpoint` is that of gRPC, `rest` the URL of the
    REST front. Raises ProvisioningError if no emulator answers within `timeout` seconds,
    ConfigError if it refuses the request.
    """

    def __init__(self, endpoint: str, request: bytes = b"{}", timeout: float = 10.0) -> None:
        self.endpoint = endpoint
        self._channel = open_channel(endpoint)
        self._stream: Any = _method(self._channel.unary_stream, "Attach")(request)
        watchdog = threading.Timer(timeout, self._stream.cancel)
        watchdog.start()
        try:
            answer = json.loads(next(self._stream))
        except grpc.RpcError as error:
            self.close()
            raise unanswered(endpoint, error) from error
        finally:
            watchdog.cancel()
        if "error" in answer:
            self.close()
            raise ConfigError(str(answer["error"]).removeprefix("  • "))
        self.rest = str(answer["rest"])

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def unanswered(endpoint: str, error: grpc.RpcError) -> ProvisioningError:
    """What gRPC says is told as well."""
    said = f": {error.details()}" if isinstance(error, grpc.Call) else ""
    return ProvisioningError(f"no emulator answers on {endpoint}{said}")


def attach(endpoint: str) -> Attachment:
    """Attaches to the emulator at that endpoint. Raises ProvisioningError if none answers."""
    return Attachment(endpoint)


def arm(endpoint: str, rules: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> Attachment:
    """Arms rules until the attachment is closed or this process ends, even by SIGKILL.

    A rule without `node` strikes only the node ids given, so that others may use the emulator; it
    spares calls that name no node, such as ListNodes. A deed that still waits for its `after` at
    the end is dropped. Raises ConfigError with every problem in the rules.
    """
    request = {"rules": [dict(rule) for rule in rules], "nodes": list(nodes)}
    return Attachment(endpoint, json.dumps(request).encode())


def connect(state_dir: Path, *, options: Sequence[str] = (), timeout: float = 30.0) -> Attachment:
    """Attaches to the folder's emulator, which is started if there is none.

    An emulator that is just ending refuses; then the next one is started. Raises ProvisioningError
    after `timeout` seconds, or at once when an emulator cannot start.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        endpoint = ensure_running(state_dir, options=options, timeout=left)
        try:
            return attach(endpoint)
        except ProvisioningError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL)


def ensure_running(state_dir: Path, *, options: Sequence[str] = (), timeout: float = 30.0) -> str:
    """The endpoint of the folder's emulator, which is started in the background if there is none.

    `options` are further ones of `serve`, for an emulator that is started. Any number of processes
    may call this at once. Raises ProvisioningError with the end of its log if it cannot start.
    """
    deadline = time.monotonic() + timeout
    state_dir = make_state_dir(state_dir)
    started: subprocess.Popen[bytes] | None = None
    starts = state_dir / "start.lock"
    with locks.held(starts, ProvisioningError(f"{starts} is held by another process"), timeout):
        while time.monotonic() < deadline:
            alive = is_alive(state_dir)
            if alive and (endpoint := read_endpoint(state_dir)):
                return endpoint
            if started is None and not alive:
                started = _start(state_dir, options)
            if started and started.poll() is not None and not is_alive(state_dir):
                raise ProvisioningError(f"the emulator did not start{_log_end(state_dir)}")
            time.sleep(POLL)
    raise ProvisioningError(f"no emulator within {timeout:.0f} s{_log_end(state_dir)}")


def make_state_dir(path: Path) -> Path:
    """The folder, absolute and there, for this user alone if new. Raises ProvisioningError."""
    try:
        path.absolute().mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ProvisioningError(f"no state folder for the emulator: {error}") from error
    return path.absolute()


def is_alive(state_dir: Path) -> bool:
    """Whether an emulator holds the folder's lock."""
    try:
        with (state_dir / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read_endpoint(state_dir: Path) -> str | None:
    """What `endpoint.json` says, which may be out of date if the emulator was killed."""
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads((state_dir / "endpoint.json").read_text())["endpoint"])
    return None


def rest_endpoint(state_dir: Path) -> str | None:
    """The URL of the REST front, as `read_endpoint` gives the gRPC endpoint."""
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads((state_dir / "endpoint.json").read_text())["rest"])
    return None


def control(endpoint: str, command: Mapping[str, Any]) -> dict[str, Any]:
    """Sends one command; see `launcher.emulator.control` for what there is.

    Raises ConfigError if the emulator refuses it, ProvisioningError if none answers.
    """
    with open_channel(endpoint) as channel:
        call = _method(channel.unary_unary, "Command")
        try:
            answer = json.loads(call(json.dumps(command).encode(), timeout=REPLY_TIMEOUT))
        except grpc.RpcError as error:
            raise unanswered(endpoint, error) from error
    if "error" in answer:
        raise ConfigError(str(answer["error"]).removeprefix("  • "))
    return dict(answer)


def _start(state_dir: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    (state_dir / "endpoint.json").unlink(missing_ok=True)
    argv = [sys.executable, "-m", "launcher.emulator", "serve", "--state-dir", str(state_dir)]
    with (state_dir / "emulator.log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--idle-timeout", IDLE_TIMEOUT, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state_dir,
            env=_environment(),
            start_new_session=True,
        )
    # It outlives us, or else must not stay a zombie for as long as we live.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def _environment() -> dict[str, str]:
    """Ours, able to import this package from a checkout that nobody installed."""
    if _PACKAGE_ROOT.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _log_end(state_dir: Path) -> str:
    log = state_dir / "emulator.log"
    text = log.read_text(errors="replace")[-2000:].strip() if log.exists() else ""
    return f"; the end of {log}:\n{text}" if text else ""
