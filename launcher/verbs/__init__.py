"""What each verb of the command line does; every verb is loaded on use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VERBS: Mapping[str, str] = {
    "run": "launcher.verbs.run",
    "plan": "launcher.verbs.plan",
    "up": "launcher.verbs.up",
    "down": "launcher.verbs.down",
    "cancel": "launcher.verbs.down",
    "gc": "launcher.verbs.gc",
    "status": "launcher.verbs.status",
    "logs": "launcher.verbs.logs",
}
TAKING_NAMES = frozenset({"down", "cancel", "gc", "status", "logs"})  # the others take overrides


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, taken apart: Hydra overrides, names of runs, and our own flags."""

    overrides: Sequence[str] = ()
    names: Sequence[str] = ()
    flags: frozenset[str] = frozenset()
    config_dirs: Sequence[Path] = ()


def find(verb: str) -> Callable[[Arguments], int]:
    """The function of a verb: it returns the exit code and raises `LauncherError`."""
    found: Callable[[Arguments], int] = getattr(importlib.import_module(VERBS[verb]), verb)
    return found
