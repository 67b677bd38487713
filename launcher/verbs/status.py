"""`status`: where a run stands, from its folder and from what is on record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ConfigError
from launcher.record import phase, read_lines
from launcher.verbs import Arguments


def status(arguments: Arguments) -> int:
    names = arguments.names or known_names()
    states = [state_of(name) for name in names]
    if "--json" in arguments.flags:
        one = len(arguments.names) == 1
        print(json.dumps(states[0] if one else states, indent=2))
        return 0
    for state in states:
        attempt = "not started" if state["attempt"] is None else f"attempt {state['attempt']}"
        step = "" if state["last_step"] is None else f", step {state['last_step']}"
        nodes = (
            f", up: {', '.join(n.split('/')[-1] for n in state['nodes'])}" if state["nodes"] else ""
        )
        print(f"{state['name']}: {state['phase']}, {attempt}{step}{nodes}")
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
    if result:
        return str(result["status"]) if record is None or not record["stays"] else "up"
    if record is None:
        supervisor = next((e["supervisor"] for e in reversed(events) if "supervisor" in e), None)
        return phase(events) if registry.is_alive(supervisor) else "gone"
    if registry.is_alive(record["supervisor"]):
        return phase(events)
    return "up" if record["stays"] else "left behind (see gc)"


def run_folder(name: str, record: Mapping[str, Any] | None) -> Path:
    """Raises ConfigError when neither this folder nor the machine knows the name."""
    folder = Path(record["folder"]) if record else Path.cwd() / "runs" / name
    if not folder.is_dir():
        raise ConfigError(
            f"no run {name!r} in {Path.cwd() / 'runs'}, and nothing is up under this name;"
            " `python -m launcher status` lists what there is"
        )
    return folder
