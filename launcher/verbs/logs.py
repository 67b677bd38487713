"""`logs`: the output of all processes of a run, or of a sweep's trials; as it comes with `-f`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ClusterError, ConfigError
from launcher.sweep import folder as folders
from launcher.verbs import Arguments
from launcher.verbs.status import run_folder


def logs(arguments: Arguments) -> int:
    if len(arguments.names) not in (1, 2):
        raise ConfigError(
            "logs needs the name of one run, or of a sweep and a trial;"
            " `python -m launcher status` lists them"
        )
    name, *trial = arguments.names
    follow = "--follow" in arguments.flags
    record = registry.record(name)
    folder = run_folder(name, record)
    if trial or (sweep := folders.read(folder)) is None:
        own = folders.trial_folder(folder, trial[0]) if trial else folder
        with mirrored(record, follow) as is_fed:
            show(name, own, follow, is_fed)
        return 0
    if follow:
        raise ConfigError(f"{name} is a sweep: which trial is to be followed?")
    for row in sweep["trials"]:
        print(f"=== trial {row['trial']}: {row['status']} ===", flush=True)
        show(name, folder / row["trial"], False, lambda: False)
    return 0


@contextlib.contextmanager
def mirrored(record: Mapping[str, Any] | None, follow: bool) -> Iterator[Callable[[], bool]]:
    """Bring the folder of a remote run up to now, and keep it so; gives whether more may come."""
    if record is None or not record.get("remote"):
        yield lambda: False
        return
    from launcher.remote import standing

    if not follow:
        trouble = None
        try:
            standing.caught_up(record)
        except ClusterError as error:  # what came before is here all the same
            trouble = error
        yield lambda: False
        if trouble:
            raise trouble
        return
    with ThreadPoolExecutor(1) as pool:
        leaving = threading.Event()
        feeding = pool.submit(standing.feed, record, leaving)
        try:
            yield lambda: not feeding.done()
        finally:
            leaving.set()
    feeding.result()


def show(name: str, folder: Path, follow: bool, is_fed: Callable[[], bool]) -> None:
    positions: dict[Path, int] = {}
    while True:
        going_on = is_fed() or (follow and is_supervised(registry.record(name)))
        for path in sorted((folder / "logs").glob("attempt-*/*.log"), key=by_attempt):
            if path not in positions and path.parent not in {p.parent for p in positions}:
                print(f"--- {path.parent.name.replace('-', ' ')} ---", flush=True)
            positions[path] = show_log(path, positions.get(path, 0), last=not going_on)
        if not going_on:
            return
        time.sleep(0.2)


def is_supervised(record: Mapping[str, Any] | None) -> bool:
    """By a process of this machine."""
    return record is not None and registry.is_alive(record["supervisor"])


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
