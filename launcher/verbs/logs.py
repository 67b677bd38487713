"""`logs`: the output of all processes of a run, as it comes with `-f`."""

from __future__ import annotations

import time
from pathlib import Path

from launcher import registry
from launcher.errors import ConfigError
from launcher.verbs import Arguments
from launcher.verbs.status import run_folder


def logs(arguments: Arguments) -> int:
    if len(arguments.names) != 1:
        raise ConfigError("logs needs the name of one run; `python -m launcher status` lists them")
    name = arguments.names[0]
    folder = run_folder(name, registry.record(name))
    positions: dict[Path, int] = {}
    follow = "--follow" in arguments.flags
    while True:
        record = registry.record(name)
        going_on = follow and record is not None and registry.is_alive(record["supervisor"])
        for path in sorted((folder / "logs").glob("attempt-*/*.log"), key=by_attempt):
            if path not in positions and path.parent not in {p.parent for p in positions}:
                print(f"--- {path.parent.name.replace('-', ' ')} ---", flush=True)
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


def by_attempt(path: Path) -> tuple[int, str]:
    return int(path.parent.name.rpartition("-")[2]), path.name
