"""Whether the program is written in the framework of the mode, as far as its imports say.

Told before anything is provisioned: on the hosts it would be a missing module, minutes later, or a
program that trains on each host by itself.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator

from launcher.config.draft import Draft
from launcher.config.target import Target, find_target
from launcher.errors import Problem

FRAMEWORKS = ("jax", "torch_xla")


def framework_problems(draft: Draft) -> Iterator[Problem]:
    """A framework that the program imports, other than the mode's, and that nothing installs."""
    target = find_target(draft)
    if isinstance(target, Problem):
        return
    lacking = imported(source_of(target)) - {draft["mode.framework"], *_listed(draft)}
    for name in FRAMEWORKS:
        if name in lacking:
            shown = draft.show(target.key, target.words[0].rpartition("/")[2])
            message = f"{shown} imports {name}, and mode.framework is {draft['mode.framework']}"
            hint = f"mode={name}; or name {name} under workload.requirements"
            yield draft.origins.problem(message, target.key, hint)


def _listed(draft: Draft) -> Iterator[str]:
    """What the hosts install, as modules are called."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in (*draft["mode.requirements"], *draft["workload.requirements"]):
        with contextlib.suppress(InvalidRequirement):  # told elsewhere
            yield Requirement(text).name.lower().replace("-", "_")


def source_of(target: Target) -> bytes:
    """The file that Python begins with; empty where it is not known, or cannot be read."""
    folder, word = target.working_dir, target.words[0]
    places = [folder / word]
    if target.kind == "module":
        module = folder.joinpath(*word.split("."))
        places = [module / "__main__.py", module.with_name(f"{module.name}.py")]
    for place in places if target.kind != "command" else []:
        with contextlib.suppress(OSError):
            return place.read_bytes()
    return b""


def imported(source: bytes) -> frozenset[str]:
    """The packages that a program imports before anything else; none of what is no Python.

    Those that it imports in functions, or on conditions, it may never need.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the program, and for its own author
        try:
            statements = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
    names: list[str] = []
    for statement in statements:
        match statement:
            case ast.Import():
                names += (alias.name for alias in statement.names)
            case ast.ImportFrom(module=str(module), level=0):
                names.append(module)
    return frozenset(name.partition(".")[0] for name in names)
