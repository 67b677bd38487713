"""What each verb of the command line does. Returns the exit code; errors are raised."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import registry
from launcher.errors import ConfigError
from launcher.plan import Plan, make_plan
from launcher.providers import EMULATED_PROJECT
from launcher.spec import Spec

if TYPE_CHECKING:
    from launcher.provision import Session
    from launcher.source import Manifest

CANCEL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, taken apart: Hydra overrides, names of runs, and our own flags."""

    overrides: Sequence[str] = ()
    names: Sequence[str] = ()
    flags: frozenset[str] = frozenset()
    config_dirs: Sequence[Path] = ()


def owner() -> str:
    """This user as a label value: `[a-z0-9_-]`, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:63]


def load(arguments: Arguments, *, workload: bool = True) -> tuple[Spec, Plan]:
    from launcher.compose import compose

    spec = compose(
        arguments.overrides,
        config_dirs=arguments.config_dirs,
        cwd=Path.cwd(),
        require_workload=workload,
    )
    return spec, make_plan(spec, owner(), spec.provider.project or EMULATED_PROJECT)


def run(arguments: Arguments) -> int:
    from launcher import git, source, supervise

    spec, plan = load(arguments)
    manifest = scan(spec)
    with session(spec, plan) as current:
        current.tell("plan", headline(spec, plan))
        current.tell("code", source.describe(manifest))
        current.folder.write("source.json", git.state(manifest.root))
        result = supervise.run(current, manifest)
    return int(result["exit_code"])


def scan(spec: Spec) -> Manifest:
    """What travels to the hosts; the workload's script must be among it."""
    from launcher import source

    workload = spec.workload
    assert workload is not None
    return source.scan(
        workload.working_dir,
        include=workload.include,
        exclude=workload.exclude,
        required=workload.target if workload.kind == "script" else (),
    )


@contextlib.contextmanager
def session(spec: Spec, plan: Plan) -> Iterator[Session]:
    """Hold the run's lock, open its folder, heed signals."""
    import yaml

    from launcher.interrupt import Interrupt
    from launcher.provision import LazyProvider, Session
    from launcher.record import RunFolder
    from launcher.screen import Screen

    taken = f"run {spec.name} is going on in another process; choose another name="
    path = Path.cwd() / "runs" / spec.name
    with registry.lock(f"run-{spec.name}", taken), RunFolder(path) as folder:
        interrupt, screen = Interrupt(), Screen()
        interrupt.on_first = lambda name: screen.phase(
            "stopping", f"{name}: ending processes and deleting slices; again to leave at once"
        )
        interrupt.install()
        folder.write_text("spec.yaml", yaml.safe_dump(dict(spec.config), sort_keys=False))
        folder.write("plan.json", plan.to_json())
        with contextlib.closing(LazyProvider(spec.provider)) as provider:
            yield Session(spec, plan, owner(), folder, screen, interrupt, provider)


def headline(spec: Spec, plan: Plan) -> str:
    where = {"local": "emulated on this machine; provider=google for real TPUs"}
    place = where.get(spec.provider.kind, f"{spec.provider.kind}, {spec.cluster.zones[0]}")
    cost = (
        f", {plan.cost_per_hour_usd:.2f} USD/h"
        if spec.provider.kind != "local" and plan.cost_per_hour_usd
        else ""
    )
    return (
        f"{spec.name}: {spec.mode.slices} x {spec.cluster.accelerator.accelerator_type},"
        f" {plan.hosts} hosts, {plan.chips} chips{cost} ({place})"
    )


def plan(arguments: Arguments) -> int:
    from launcher import source

    spec, planned = load(arguments)
    manifest = scan(spec)
    if "--json" in arguments.flags:
        print(json.dumps(planned.to_json(), indent=2))
        return 0
    print(headline(spec, planned))
    for request in planned.requests:
        print(f"  CreateNode {request.name}")
        for key, value in request.body.items():
            print(f"    {key}: {brief(value)}")
    for process in planned.processes:
        print(f"  s{process.slice} h{process.host}: {' '.join(process.argv)}")
    print(f"  {source.describe(manifest)}")
    if "--show-files" in arguments.flags:
        print("\n".join(f"    {entry.path} ({entry.size} bytes)" for entry in manifest.files))
    print("nothing was touched; --json prints all of it, --show-files what would be shipped")
    return 0


def brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={brief(v)}" for k, v in value.items())
    text = str(value)
    return f"<{len(text.splitlines())} lines>" if "\n" in text else text


def up(arguments: Arguments) -> int:
    from launcher import cluster, provision

    spec, plan = load(arguments, workload=False)
    with session(spec, plan) as current:
        current.tell("plan", headline(spec, plan))
        with provision.acquired(current, stays=True) as joined:
            view = cluster.view()
            address = joined.head.gcs_address
    print(f"{spec.name} is up: Ray at {address}, {view['nodes']} nodes")
    for name, amount in sorted(view["resources"].items()):
        if name.startswith("TPU") or name in {request.node_id for request in plan.requests}:
            print(f"  {name}: {amount:g}")
    print(f"run on it:    python -m launcher run name={spec.name} …")
    print(f"take it down: python -m launcher down {spec.name}")
    return 0


def down(arguments: Arguments) -> int:
    names = list(arguments.names)
    if "--all" in arguments.flags:
        names = [record["name"] for record in registry.records()]
    if not names and "--all" not in arguments.flags:
        raise ConfigError("down needs a name, or --all; `python -m launcher status` lists them")
    for name in names:
        end(name)
    return 0


def cancel(arguments: Arguments) -> int:
    if not arguments.names:
        raise ConfigError("cancel needs a name; `python -m launcher status` lists them")
    for name in arguments.names:
        end(name)
    return 0


def end(name: str) -> None:
    """Stop the supervisor of a run, if it has one, and remove what is left of the run."""
    from launcher import provision
    from launcher.providers import open_provider
    from launcher.spec import ProviderSpec

    record = registry.record(name)
    if record is None:
        print(f"{name}: nothing is up under this name")
        return
    if registry.is_alive(record["supervisor"]) and record["supervisor"]["pid"] != os.getpid():
        os.kill(record["supervisor"]["pid"], signal.SIGTERM)
    with registry.lock(
        f"run-{name}", f"{name} did not stop in {CANCEL_SECONDS:g} s", CANCEL_SECONDS
    ):
        if record := registry.record(name):
            opened = open_provider(ProviderSpec(**record["provider"]))
            with contextlib.closing(opened) as provider:
                provision.take_down(record, provider)
    print(f"{name}: nothing is left")


def gc(arguments: Arguments) -> int:
    """Find what dead runs left; delete it with --yes."""
    from launcher import coordinator

    dead = [
        r for r in registry.records() if not r["stays"] and not registry.is_alive(r["supervisor"])
    ]
    used = {record["head"] for record in registry.records()}
    heads = [head for head in coordinator.heads() if head.id not in used]
    for record in dead:
        cost = record["cost_per_hour_usd"] if record["provider"]["kind"] != "local" else 0
        print(
            f"{record['name']}: {', '.join(record['nodes'])} and its Ray head, {cost or 0:g} USD/h"
        )
    for head in heads:
        print(f"a Ray head that nobody uses: {head.id} at {head.gcs_address}")
    if not dead and not heads:
        print("nothing is left by dead runs")
    elif "--yes" not in arguments.flags:
        print("delete all of it with: python -m launcher gc --yes")
        return 0
    for record in dead:
        end(record["name"])
    for head in heads:
        coordinator.stop_head(head)
    return 0


def status(arguments: Arguments) -> int:
    names = arguments.names or known_names()
    states = [state_of(name) for name in names]
    if "--json" in arguments.flags:
        one = len(arguments.names) == 1
        print(json.dumps(states[0] if one else states, indent=2))
        return 0
    for state in states:
        step = "" if state["last_step"] is None else f", step {state['last_step']}"
        nodes = (
            f", up: {', '.join(n.split('/')[-1] for n in state['nodes'])}" if state["nodes"] else ""
        )
        print(f"{state['name']}: {state['phase']}, attempt {state['attempt']}{step}{nodes}")
    if not states:
        print("no runs here and nothing is up")
    return 0


def known_names() -> list[str]:
    """Runs in this folder, and what is up anywhere on this machine."""
    here = (path.parent.name for path in Path("runs").glob("*/events.jsonl"))
    return sorted({*here, *(record["name"] for record in registry.records())})


def state_of(name: str) -> dict[str, Any]:
    record = registry.record(name)
    folder = run_folder(name, record)
    events = read_lines(folder / "events.jsonl")
    result = registry.read_json(folder / "result.json")
    endpoint = next((e["endpoint"] for e in reversed(events) if "endpoint" in e), None)
    attempt = next((e["attempt"] for e in reversed(events) if "attempt" in e), None)
    steps = read_lines(folder / "metrics.jsonl")
    return {
        "name": name,
        "phase": phase_of(record, events, result),
        "attempt": attempt,
        "last_step": steps[-1].get("step") if steps else None,
        "nodes": record["nodes"] if record else [],
        "endpoint": endpoint,
        "folder": str(folder),
        "result": result,
    }


def phase_of(
    record: Mapping[str, Any] | None,
    events: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
) -> str:
    if record is None:
        return str(result["status"]) if result else "gone"
    if registry.is_alive(record["supervisor"]):
        return str(events[-1]["kind"]) if events else "starting"
    return "up" if record["stays"] else "left behind (see gc)"


def run_folder(name: str, record: Mapping[str, Any] | None) -> Path:
    """Raises ConfigError when neither this folder nor the machine knows the name."""
    folder = Path(record["folder"]) if record else Path.cwd() / "runs" / name
    if not folder.is_dir():
        raise ConfigError(f"no run {name!r} here; `python -m launcher status` lists them")
    return folder


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a line being written is left for later."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def logs(arguments: Arguments) -> int:
    if len(arguments.names) != 1:
        raise ConfigError("logs needs the name of one run; `python -m launcher status` lists them")
    name = arguments.names[0]
    folder = run_folder(name, registry.record(name))
    positions: dict[Path, int] = {}
    follow = bool({"-f", "--follow"} & arguments.flags)
    while True:
        record = registry.record(name)
        going_on = follow and record is not None and registry.is_alive(record["supervisor"])
        for path in sorted((folder / "logs").glob("attempt-*/*.log")):
            positions[path] = show_log(path, positions.get(path, 0), last=not going_on)
        if not going_on:
            return 0
        time.sleep(0.2)


def show_log(path: Path, position: int, last: bool) -> int:
    """Print whole lines from `position` on behind their place; return where to go on."""
    prefix = f"[{path.stem.replace('-', ' ')}] "
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n") and not last:
                break
            position += len(line)
            print(prefix + line.decode(errors="replace").rstrip("\n"), flush=True)
    return position


VERBS: Mapping[str, Callable[[Arguments], int]] = {
    "run": run,
    "plan": plan,
    "up": up,
    "down": down,
    "status": status,
    "logs": logs,
    "cancel": cancel,
    "gc": gc,
}
