"""Starts Ray's processes on one machine: the head on the coordinator, or a TPU host.

    python raynode.py check  CONFIG     exit 0 when this interpreter can run CONFIG, else say why
    python raynode.py head   CONFIG     CONFIG is a JSON file; stays in the foreground
    python raynode.py host   CONFIG     the same; address and token come from the metadata server
    python raynode.py vm     CONFIG     the head on a VM of its own; the same

It stands alone (standard library and Ray), since its text travels to the hosts in their startup
script. `ray start` would do the same work, but it holds every host back until Ray's dashboard and
runtime-environment agents have imported themselves (seconds of CPU that no job waits for), and
the head until the dashboard answers. Here the ports of these agents are published beforehand, and
the agents rest for the first seconds and run at low priority. That takes Ray's `Node` class, which
is not a public interface: the launcher therefore pins Ray's minor version and installs the very
same release on every host.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import math
import os
import platform
import random
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

# Above those of an agent's processes, below the ephemeral range from 32768 of Ray's workers.
PORT_BASE, PORTS_PER_BLOCK = 20_000, 8
HOST_BLOCKS, HEAD_BLOCKS = 1024, 572
START_TRIES = 3  # a port that was free may be taken a moment later
STANDBY = "standby"  # begins the name of a process of `hosts.ahead` that is no program yet
LOW_PRIORITY = 19
AGENT_REST_SECONDS = 15.0
LEAVE_SECONDS = 60.0  # for the user's processes, when the VM is shut down; it has 90
AGENT_PROGRAMS = ("dashboard/agent.py", "runtime_env/agent/main.py")
INCARNATION_LABEL = "launcher/incarnation"  # tells a host from one of the same name before it
AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
ESSENTIAL = ("gcs_server", "raylet")  # without these there is no node
OWN_PORTS = ("node_manager_port", "object_manager_port")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def metadata(key: str, folder: str = "attributes/", tries: int = 60) -> str:
    """A value of this VM, an attribute of it, from its metadata server (`GCE_METADATA_HOST`)."""
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/{folder}{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for left in reversed(range(tries)):
        try:
            with opener.open(request, timeout=5) as reply:
                return str(reply.read().decode())
        except OSError:
            if not left:
                raise
            time.sleep(1)
    raise AssertionError("unreachable")


def tpu_environment() -> dict[str, str]:
    """What Ray's TPU detection reads: with these set it asks no metadata server itself."""
    lines = metadata("tpu-env").splitlines()
    tpu_env = {key: value.strip().strip("'") for key, _, value in (x.partition(":") for x in lines)}
    return {
        "TPU_ACCELERATOR_TYPE": metadata("accelerator-type"),
        "TPU_NAME": metadata("instance-id"),
        "TPU_WORKER_ID": metadata("agent-worker-number"),
        "TPU_TOPOLOGY": tpu_env["TOPOLOGY"],
    }


def mismatches(config: dict[str, Any]) -> list[str]:
    """Why this interpreter cannot join: other Python, other Ray, a requirement that is absent."""
    problems = []
    python = platform.python_version()
    if python != config["python"]:
        problems.append(f"Python {python} in place of {config['python']}")
    for name, wanted in config["packages"].items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed")
        else:
            if wanted and found != wanted:
                problems.append(f"{name} {found} in place of {wanted}")
    return problems


def port_block(address: str, head: bool, again: bool = False) -> list[int]:
    """Ports for one Ray node, all free now. Hosts on one machine get blocks of their own.

    Emulated hosts share a machine and differ in the last two bytes of their address only. `again`
    avoids a host's own block, whose ports have turned out to be taken.
    """
    low = int.from_bytes(socket.inet_aton(address)[2:], "big")
    blocks = range(HOST_BLOCKS, HOST_BLOCKS + HEAD_BLOCKS) if head else range(HOST_BLOCKS)
    own = [] if head or again else [low % HOST_BLOCKS]
    for block in [*own, *random.sample(blocks, len(blocks))]:
        first = PORT_BASE + block * PORTS_PER_BLOCK
        ports = list(range(first, first + PORTS_PER_BLOCK))
        if all(is_free(port) for port in ports):
            return ports
    raise SystemExit("raynode: no free block of ports")


def is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports in TIME_WAIT are free
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def ray_environment(token_file: str) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Workers started ahead of need would import Ray once per CPU of every host.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # By default workers, and the user's processes below them, would run at nice 15.
        "RAY_worker_niceness": "0",
        # A raylet that asks for its object store too early sleeps for a second by default.
        "RAY_raylet_client_connect_timeout_milliseconds": "10",
        "RAY_raylet_client_num_connect_attempts": "1000",
    }


def renew_environment(token_file: str, extra: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(ray_environment(token_file))
    os.environ.update(extra)


def ray_parameters(config: dict[str, Any], head: bool) -> dict[str, Any]:
    address = config["node_ip_address"]
    ports = config.get("ports") or port_block(address, head)
    shared = dict(zip((*AGENT_PORTS, *OWN_PORTS), ports, strict=False))
    shared |= {"node_ip_address": address, "temp_dir": config["temp_dir"]}
    shared |= {"include_log_monitor": False, "object_store_memory": config["object_store_memory"]}
    if "incarnation" in config:
        shared["resources"] = {"TPU": config["chips_per_host"]}
        shared["labels"] = {INCARNATION_LABEL: config["incarnation"]}
    if head:
        dashboard = {"dashboard_host": address, "dashboard_port": ports[-1]}
        return shared | dashboard | {"num_cpus": 0, "gcs_server_port": ports[-2]}
    return shared | {"gcs_address": config["gcs_address"]}


def start_node(config: dict[str, Any], head: bool) -> Any:
    """Start GCS (head only) and raylet; return Ray's `Node` once the raylet has registered."""
    import ray._raylet
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray._private.utils import write_ray_address

    _raylet: Any = ray._raylet  # compiled; its stub does not list these
    names = {
        "metrics_agent_port": _raylet.METRICS_AGENT_PORT_NAME,
        "metrics_export_port": _raylet.METRICS_EXPORT_PORT_NAME,
        "dashboard_agent_listen_port": _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        "runtime_env_agent_port": _raylet.RUNTIME_ENV_AGENT_PORT_NAME,
    }

    class QuickNode(Node):
        """Waits for nothing that a job does not need."""

        def start_raylet(self, *args: Any, **kwargs: Any) -> None:
            for name in AGENT_PORTS:
                port = getattr(self._ray_params, name)
                _raylet.persist_port(self._session_dir, self._node_id, names[name], port)
            super().start_raylet(*args, **kwargs)

        def start_api_server(self, **_: Any) -> None:
            """The dashboard comes when the node is up: see `start_dashboard`."""

        def start_monitor(self) -> None:
            """No autoscaler: the launcher owns the hosts."""

    params = RayParams(**ray_parameters(config, head))
    node = QuickNode(params, head=head, shutdown_at_exit=False, spawn_reaper=False)
    if head:  # else a Ray job would take the first head of this machine that it finds for its own
        write_ray_address(node.gcs_address, config["temp_dir"])
    return node


def start_dashboard(node: Any, required: bool = False) -> None:
    """Ray's dashboard, at the coordinator's own address; unless `required` at low priority."""
    from ray._private.node import Node

    if not required:
        os.nice(LOW_PRIORITY)
    Node.start_api_server(node, include_dashboard=True, raise_on_failure=required)


def children() -> list[Any]:
    try:
        import psutil  # comes with Ray; before Ray there are no children
    except ImportError:
        return []
    return list(psutil.Process().children(recursive=True))


def rest_agents() -> None:
    """Let Ray's own agents, which have just been started, wait until the job is on its way.

    Importing themselves they would take the processor from it for seconds. Never the raylet, whose
    workers would inherit the priority: it has the agents' commands inside one of its arguments,
    hence the look at whole arguments.
    """
    agents = [process for process in children() if is_agent(process)]
    for agent in agents:
        agent.suspend()
        agent.nice(LOW_PRIORITY)
    alarm = threading.Timer(AGENT_REST_SECONDS, wake, [agents])
    alarm.daemon = True
    alarm.start()


def is_agent(process: Any) -> bool:
    try:
        return any(part.endswith(AGENT_PROGRAMS) for part in process.cmdline())
    except Exception:  # it has ended meanwhile
        return False


def wake(agents: list[Any]) -> None:
    for agent in agents:
        with contextlib.suppress(Exception):
            agent.resume()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that `end_all` finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all() -> None:
    """Kill every descendant, however it was started, and wait until none is left."""
    deadline = time.monotonic() + 10
    while (found := children()) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(Exception):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.01)


def wait_for_programs() -> None:
    """Until the user's processes have left: a VM that shuts down signals them and us at once."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while any(is_program(process) for process in children()) and time.monotonic() < deadline:
        time.sleep(0.1)


def is_program(process: Any) -> bool:
    try:
        return "LAUNCHER_PROCESS_ID" in process.environ() and not process.name().startswith(STANDBY)
    except Exception:  # it has ended meanwhile
        return False


def wait_for_port(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), 2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"raynode: no Ray head at {address}: {error}") from error
            time.sleep(0.05)


def run_head(config: dict[str, Any]) -> None:
    renew_environment(config["token_file"], {})
    os.environ["LAUNCHER_PYTHON"] = sys.executable  # for jobs: PATH may have another one
    node = start_node(config, head=True)
    rest_agents()
    print(json.dumps({"kind": "ready", "gcs_address": node.gcs_address}), flush=True)
    if config.get("dashboard"):
        start_dashboard(node)
    raise SystemExit(f"raynode: {watch(node)}")


def make_base() -> tuple[Path, Path]:
    """This VM's folder for Ray, and the file in it that holds the cluster's token."""
    base = Path(os.environ.get("TMPDIR", "/tmp")) / "ray"
    shutil.rmtree(base, ignore_errors=True)  # left by an earlier boot
    base.mkdir(parents=True, mode=0o700)
    token = base / "token"
    token.touch(0o600)
    token.write_text(metadata("launcher-token"))
    return base, token


def run_vm(config: dict[str, Any]) -> None:
    base, token = make_base()
    address = metadata("network-interfaces/0/ip", folder="")
    ports = json.loads(metadata("launcher-head"))["ports"]
    renew_environment(str(token), {})
    serve_head(config | {"node_ip_address": address, "ports": ports}, base, token)


def serve_head(config: dict[str, Any], base: Path, token: Path) -> None:
    """A head that takes Ray jobs: its agents are awake at once, and it has a dashboard.

    Jobs find it, and this interpreter, by LAUNCHER_HEAD and LAUNCHER_PYTHON.
    """
    address = config["node_ip_address"]
    head = {"id": "given", "address": address, "ports": config["ports"], "folder": str(base)}
    (base / "head.json").write_text(json.dumps(head | {"token_path": str(token)}))
    os.environ |= {"LAUNCHER_HEAD": str(base / "head.json"), "LAUNCHER_PYTHON": sys.executable}
    node = start_node(config | {"temp_dir": str(base)}, head=True)
    start_dashboard(node, required=True)
    print(json.dumps({"kind": "ready", "address": address}), flush=True)
    raise SystemExit(f"raynode: {watch(node, (*ESSENTIAL, 'dashboard'))}")


def run_host(config: dict[str, Any]) -> None:
    """With `ports` the head is on worker 0, which is a host as well."""
    config |= json.loads(metadata("launcher-join"))
    base, token = make_base()
    worker, addresses = int(metadata("agent-worker-number")), worker_addresses()
    address = addresses[worker]
    config |= {"temp_dir": str(base), "node_ip_address": address}
    vm_environment = json.dumps(dict(os.environ))
    renew_environment(str(token), tpu_environment())
    os.environ["LAUNCHER_HOST_ENVIRONMENT"] = vm_environment
    if "ports" in config and worker == 0:
        serve_head(config, base, token)
    if "ports" in config:
        config["gcs_address"] = f"{addresses[0]}:{config.pop('ports')[-2]}"
    import ray  # noqa: F401  while the head may still be starting

    seconds = config["join_timeout"]
    while True:
        wait_for_port(config["gcs_address"], seconds)
        seconds = math.inf  # from then on: the head may be away as long as its machine is
        node = start_host(config)
        rest_agents()
        print(json.dumps({"kind": "ready", "address": address}), flush=True)
        print(f"raynode: {watch(node)}; joins again", flush=True)  # the head may be another one
        end_all()


def start_host(config: dict[str, Any]) -> Any:
    for left in reversed(range(START_TRIES)):
        try:
            return start_node(config, head=False)
        except Exception as error:
            print(f"raynode: Ray did not start: {error}", flush=True)
            end_all()
            if not left:
                raise
            config = config | {"ports": port_block(config["node_ip_address"], False, again=True)}
    raise AssertionError("unreachable")


def worker_addresses() -> list[str]:
    """Of the slice's hosts, by worker: the metadata server knows them all."""
    endpoints = metadata("worker-network-endpoints").split(",")
    return [endpoint.rpartition(":")[2] for endpoint in endpoints]


def watch(node: Any, kinds: tuple[str, ...] = ESSENTIAL) -> str:
    """Stay until a process of Ray's own ends, and say which; reap whatever else ends meanwhile."""
    essential = {
        info.process.pid
        for kind, infos in node.all_processes.items()
        if kind in kinds
        for info in infos
    }
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid in essential:
            return f"process {pid} of Ray ended with status {status}"


told_to_leave = threading.Event()


def stop(signum: int, _frame: object) -> None:
    told_to_leave.set()
    raise SystemExit(128 + signum)


def main() -> None:
    role, path = sys.argv[1:]
    config = json.loads(Path(path).read_text())
    if role == "check":
        raise SystemExit("; ".join(mismatches(config)) or 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    adopt_orphans()
    try:
        {"head": run_head, "host": run_host, "vm": run_vm}[role](config)
    finally:
        if role == "host" and told_to_leave.is_set():
            wait_for_programs()
        end_all()
        if role == "head":
            shutil.rmtree(config["temp_dir"], ignore_errors=True)


if __name__ == "__main__":
    main()
