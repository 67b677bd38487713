"""Which program a configuration runs, and from which folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.config.draft import Draft
from launcher.config.origins import Key
from launcher.errors import Problem

KINDS = ("script", "module", "command")


@dataclass(frozen=True, slots=True)
class Target:
    """`words` as in Workload.target, save that a script is still an absolute path."""

    kind: str
    words: tuple[str, ...]
    working_dir: Path

    @property
    def key(self) -> Key:
        return ("workload", self.kind)


def find_target(draft: Draft) -> Target | Problem:
    """What to run: of script, module and command the one that was set last.

    So an override or an experiment replaces what a file of the group says; two in one place are a
    contradiction.
    """
    kinds = [kind for kind in KINDS if draft[f"workload.{kind}"] is not None]
    if not kinds:
        hint = "give one of workload.script=…, workload.module=… and workload.command=[…]"
        return draft.origins.problem("nothing to run", ("workload",), hint)
    ranks = {kind: _rank(draft, kind) for kind in kinds}
    last = [kind for kind in kinds if ranks[kind] == max(ranks.values())]
    if len(last) > 1:
        message = f"{' and '.join(last)} are both set: a run has one program"
        return draft.origins.problem(message, ("workload", last[-1]))
    return _target(draft, last[0])


def target_problems(draft: Draft) -> Iterator[Problem]:
    """What is wrong with the program, its files and its folder."""
    target = find_target(draft)
    if isinstance(target, Problem):
        yield target
    elif not target.working_dir.is_dir():
        key = ("workload", "working_dir")
        yield draft.origins.problem(f"no folder {draft.show(key, str(target.working_dir))}", key)
    elif target.kind == "script":
        yield from _script_problems(draft, target)
    elif target.kind == "command":
        yield from _command_problems(draft, target)


def _rank(draft: Draft, kind: str) -> int:
    origin = draft.origins.get(("workload", kind))
    return origin.rank if origin else 0


def _target(draft: Draft, kind: str) -> Target:
    value = draft[f"workload.{kind}"]
    shipped = kind == "script" and draft.is_shipped(("workload", "script"))
    words = tuple(value) if kind == "command" else (str(value),)
    if kind == "script":
        words = (_absolute(draft.shipped if shipped else draft.cwd, words[0]),)
    given = draft["workload.working_dir"]
    if given is not None:
        return Target(kind, words, Path(_absolute(draft.cwd, given)))
    return Target(kind, words, Path(words[0]).parent if shipped else draft.cwd)


def _absolute(folder: Path, path: str) -> str:
    return os.path.abspath(folder / Path(path).expanduser())


def _script_problems(draft: Draft, target: Target) -> Iterator[Problem]:
    script = Path(target.words[0])
    shown = draft.show(target.key, str(script))
    if fault := _file_fault(script) or ("is empty" if script.stat().st_size == 0 else ""):
        yield draft.origins.problem(f"{shown} {fault}", target.key)
    if not script.is_relative_to(target.working_dir):
        message = f"{shown} is not in the folder that travels to the hosts"
        hint = "stand in the script's folder, or give workload.working_dir=…"
        yield draft.origins.problem(message, target.key, hint)


def _command_problems(draft: Draft, target: Target) -> Iterator[Problem]:
    program = target.words[0]
    if not program:
        yield draft.origins.problem("the program's name is empty", target.key)
    elif "/" in program and not program.startswith("/"):
        file = target.working_dir / program
        if fault := _file_fault(file):
            yield draft.origins.problem(f"{file} {fault}", target.key)
        elif not os.access(file, os.X_OK):
            hint = f"chmod +x {file}, or put its interpreter before it"
            yield draft.origins.problem(f"{file} is not executable", target.key, hint)


def _file_fault(file: Path) -> str:
    if not file.exists():
        return "does not exist"
    if not file.is_file():
        return "is not a file"
    return "" if os.access(file, os.R_OK) else "cannot be read"
