"""The folder of a sweep, as the verbs read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ConfigError
from launcher.sweep.scores import Goal

TRIALS = "trials.json"


def read(folder: Path, *, at_rest: bool = False) -> Mapping[str, Any] | None:
    """What `trials.json` says; None for the folder of a single run. `at_rest`: nothing runs, and
    what ran when the launcher was killed waits to go on.
    """
    found = registry.read_json(folder / TRIALS)
    for row in found["trials"] if found and at_rest else ():
        row["status"] = "waiting" if row["status"] == "running" else row["status"]
    return found


def goal_of(found: Mapping[str, Any]) -> Goal | None:
    return Goal(found["metric"], found["mode"]) if found["metric"] else None


def trial_folder(folder: Path, given: str) -> Path:
    """That of the trial whose identity begins so. Raises ConfigError if there is not just one."""
    found = read(folder)
    known = [row["trial"] for row in found["trials"]] if found else []
    fits = [trial for trial in known if trial.startswith(given)]
    exact = [trial for trial in fits if trial == given]
    if len(exact or fits) != 1:
        which = f"there are {', '.join(fits or known)}" if known else "it is no sweep"
        raise ConfigError(f"no trial {given!r} of {folder.name}: {which}")
    return folder / str((exact or fits)[0])
