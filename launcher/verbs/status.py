"""`status`: where a run stands, from its folder and from what is on record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import coordinator, registry
from launcher.errors import ConfigError
from launcher.record import last_step, phase, read_lines, runs_folder
from launcher.sweep import folder as folders
from launcher.sweep import table
from launcher.verbs import Arguments
from launcher.words import counted

GONE = "gone"  # the launcher was killed, and what it had was removed
LEFT = "without a launcher: its own command goes on with it, gc deletes it"


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
            f", slices: {', '.join(n.split('/')[-1] for n in state['nodes'])}"
            if state["nodes"]
            else ""
        )
        what = told_trials(state) or f"{attempt}{step}"
        print(f"{state['name']}: {state['phase']}, {what}{nodes}")
        if arguments.names and state["dashboard"]:
            print(f"  Ray dashboard: {state['dashboard']}")
        if arguments.names and state["trials"]:
            print(table.text(state["trials"], folders.goal_of(state)))
    if not arguments.names:
        tell_coordinators()
    if not states:
        print("no runs here and nothing is up")
    return 0


def tell_coordinators() -> None:
    if (registry.home() / "coordinators").is_dir():
        from launcher.remote import vm

        for found in vm.on_record():
            users = ", ".join(vm.users_of(found)) or "no run"
            print(f"{found.title} serves {users}")


def known_names() -> list[str]:
    """Runs in this folder, and what is up anywhere on this machine."""
    here = (path.parent.name for path in runs_folder().glob("*/events.jsonl"))
    return sorted({*here, *(record["name"] for record in registry.records())})


def state_of(name: str) -> dict[str, Any]:
    trouble, record = look(name)
    folder = run_folder(name, record)
    events = read_lines(folder / "events.jsonl")
    result = registry.read_json(folder / "result.json")
    endpoint = next((e["endpoint"] for e in reversed(events) if "endpoint" in e), None)
    attempt = next((e["attempt"] for e in reversed(events) if "attempt" in e), None)
    is_at = trouble or phase_of(record, events, result)
    return {
        "name": name,
        "phase": is_at,
        "attempt": attempt,
        "last_step": last_step(folder),
        "nodes": nodes_of(record, events),
        "endpoint": endpoint,
        "dashboard": dashboard_of(record),
        "folder": str(folder),
        "result": result,
        **(folders.read(folder, at_rest=is_at == GONE) or {"trials": None}),
    }


def told_trials(state: Mapping[str, Any]) -> str:
    """How the trials of a sweep stand; nothing for a single run."""
    states = Counter(row["status"] for row in state["trials"] or ())
    told = ", ".join(f"{count} {status}" for status, count in sorted(states.items()))
    return f"{counted(sum(states.values()), 'trial')}: {told}" if told else ""


def look(name: str) -> tuple[str, dict[str, Any] | None]:
    """The record of a run, after its folder was brought up to now if it is a mirror; and what is
    the matter with the coordinator, if something is.
    """
    record = registry.record(name)
    if record is None or not record.get("remote"):
        return "", record
    from launcher.remote import standing

    trouble = standing.trouble(record)
    return trouble, registry.record(name)


def nodes_of(record: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]) -> list[str]:
    if record is None:
        return []
    if not record.get("remote"):
        return list(record["nodes"])
    from launcher.remote import standing

    return standing.nodes(events)


def dashboard_of(record: Mapping[str, Any] | None) -> str | None:
    """Where a cluster that stays up takes Ray jobs, if its head is on this machine."""
    if record is None or record.get("remote") or not record["stays"]:
        return None
    head = coordinator.find_head(record["head"])
    return head.dashboard if head else None


def phase_of(
    record: Mapping[str, Any] | None,
    events: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
) -> str:
    if result and not goes_on(record):
        return str(result["status"]) if record is None or not record["stays"] else "up"
    if record is None:
        supervisor = next((e["supervisor"] for e in reversed(events) if "supervisor" in e), None)
        return phase(events) if registry.is_alive(supervisor) else GONE
    if record.get("remote") or registry.is_alive(record["supervisor"]):
        return phase(events) if not (record.get("remote") or {}).get("ended") else "up"
    return "up" if record["stays"] else LEFT


def goes_on(record: Mapping[str, Any] | None) -> bool:
    """Whether a job has yet to bring its result: one in the folder is of an earlier job."""
    remote = (record or {}).get("remote")
    return remote is not None and not remote.get("ended")


def run_folder(name: str, record: Mapping[str, Any] | None) -> Path:
    """Raises ConfigError when neither this folder nor the machine knows the name."""
    folder = Path(record["folder"]) if record else runs_folder() / name
    if not folder.is_dir():
        raise ConfigError(
            f"no run {name!r} in {runs_folder()}, and nothing is up under this name;"
            " `python -m launcher status` lists what there is here; a run of elsewhere is found"
            " from where it was started, or with LAUNCHER_RUNS set to its runs folder"
        )
    return folder
