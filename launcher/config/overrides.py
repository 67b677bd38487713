"""The overrides of the command line, parsed one by one, so that all the wrong ones are told.

Hydra's grammar decides what a value means. Two things differ from Hydra. A value may set any key,
with or without `+`: the closed schemas judge it afterwards, which gives one message for a wrong
key wherever it stands. And in the open maps the rest of the key is one name, dots and all, and a
number is kept as it was typed.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from launcher.config.files import Folders
from launcher.errors import ConfigError, Problem

# Maps whose keys are the user's own and whose values are text.
OPEN_MAPS = (
    *(("workload", "args"), ("workload", "env")),
    *(("cluster", "labels"), ("cluster", "env")),
)

PARSER = threading.RLock()
"""Hydra's parser, and what Hydra keeps of itself, are for one thread at a time."""

_SEVERAL = re.compile(r"(choice\(|\[)(.*)([)\]])", re.DOTALL)
_FORM = re.compile(r"(?P<mark>\+\+|\+|~|)(?P<key>[^=]*)(?:=(?P<text>.*))?", re.DOTALL)


class Kind(Enum):
    """What an override acts on."""

    CHOICE = "the option of a config group"
    HYDRA = "Hydra's own settings"
    VALUE = "the value of a key"
    DELETE = "a key to take away"


@dataclass(frozen=True, slots=True)
class Override:
    """One override. `text` is the value as typed, `elements` the texts of a list's elements."""

    typed: str
    kind: Kind
    path: tuple[str, ...]
    value: Any
    text: str
    elements: tuple[str, ...] = ()

    @property
    def for_hydra(self) -> str:
        """The form that Hydra composes: no `+` for a group, which has an option; null by `~`."""
        if self.kind is not Kind.CHOICE:
            return self.typed
        return f"~{self.path[0]}" if self.value is None else self.typed.lstrip("+")


def parse(
    typed: Sequence[str], folders: Folders
) -> tuple[tuple[Override, ...], tuple[Problem, ...]]:
    """The overrides that can be read, and a problem for each that cannot."""
    results = [_parse_one(override, folders) for override in typed]
    return (
        tuple(result for result in results if isinstance(result, Override)),
        tuple(result for result in results if isinstance(result, Problem)),
    )


def as_hydra(typed: Sequence[str]) -> list[str]:
    """The same overrides in the form that Hydra itself accepts, and hands to the trials of a sweep.

    Keys get `++` so that Hydra lets them pass to our own checks. What a process gets as text is
    quoted where Hydra would make a number of it. Raises ConfigError for a map or list with values
    of a sweep in it: there is no such form.
    """
    if problems := [problem for override in typed if (problem := _inner_sweep(override))]:
        raise ConfigError(problems)
    return [_one_for_hydra(override) for override in typed]


def check_points(typed: Sequence[str]) -> list[list[str]]:
    """Some trials of the sweep that the overrides describe, among which each value occurs.

    The first takes the first value of each key, the others one other value each. Sweeps whose
    values are for a sweeper to find (`interval`, `glob`) are left out.
    """
    keys = [values for override in typed if (values := _values(override))]
    first = [values[0] for values in keys]
    others = [
        [*first[:index], value, *first[index + 1 :]]
        for index, values in enumerate(keys)
        for value in values[1:]
    ]
    return [first, *others]


def settled(typed: str) -> tuple[str, Any]:
    """The key of an override with one value, without `+`, and that value: a text in an open map,
    and for a key that is taken away `~` and None. ConfigError if it cannot be read.
    """
    mark, key, text = _split(typed)
    if text is None:
        return f"{'~' if mark == '~' else ''}{key}", None
    try:
        value = _read(f"x={text}").value()
    except ValueError:
        raise ConfigError([Problem("the value cannot be read", key, typed)]) from None
    is_number = isinstance(value, int | float)  # truth values are among them
    return key, text.strip() if is_number and _open_map(key) else value


def _values(typed: str) -> list[str]:
    """The override once for each of its values; none if they are not known."""
    mark, key, text = _split(typed)
    try:
        parsed = _read(f"x={_with_quotes(text or '') if _is_text(key) else text}")
    except ValueError:
        return [typed]
    if not parsed.is_sweep_override():
        return [typed]
    if not parsed.is_discrete_sweep() or parsed.value_type.name == "GLOB_CHOICE_SWEEP":
        return []
    return [f"{mark}{key}={value}" for value in parsed.sweep_string_iterator()]


def _one_for_hydra(typed: str) -> str:
    mark, key, text = _split(typed)
    if mark == "~" or text is None or key.startswith(("hydra.", "hydra/")):
        return typed
    return f"{'++' if '.' in key else ''}{key}={_with_quotes(text) if _is_text(key) else text}"


def _is_text(key: str) -> bool:
    """Whether a process gets the value, byte for byte as typed."""
    return bool(_open_map(key)) or key == "workload.command"


def _with_quotes(text: str) -> str:
    """A value, a list, or values of a sweep, with the numbers and truth values quoted."""
    around = _SEVERAL.fullmatch(text)
    before, inner, after = around.groups() if around else ("", text, "")
    pieces = [piece.strip() for piece in _at_commas(inner)]
    try:
        quoted = [f"'{piece}'" if _is_number(piece) else piece for piece in pieces]
    except ValueError:
        return text
    return f"{before}{','.join(quoted)}{after}"


def _is_number(text: str) -> bool:
    return isinstance(_read(f"x={text}").value(), int | float)


def _parse_one(typed: str, folders: Folders) -> Override | Problem:
    mark, key, text = _split(typed)
    if not key or (text is None and mark != "~"):
        return Problem(
            "not an override",
            where=typed,
            hint="write key=value; `python -m launcher --help` lists the verbs",
        )
    try:
        parsed = _read(f"x={text}" if text is not None and _open_map(key) else typed)
    except ValueError:
        return Problem("the value cannot be read", key, typed, quoted(mark + key, text or ""))
    if parsed.is_sweep_override():
        as_list = "" if "(" in (text or "") else f"a list is {mark + key}=[{text}]; "
        hint = f"-m runs a trial for each; {as_list}for one text {quoted(mark + key, text or '')}"
        return Problem("several values in a single run", key, typed, hint)
    if problem := _inner_sweep(typed):
        return problem
    kind = _kind(mark, key, parsed, folders)
    return Override(
        typed, kind, _path(key), parsed.value(), (text or "").strip(), _elements(text, parsed)
    )


def _inner_sweep(typed: str) -> Problem | None:
    """What is wrong with `sweep.params={lr: interval(0,1)}`: Hydra's grammar has it, and no config
    can hold it.
    """
    key, text = _split(typed)[1:]
    if not (text or "").lstrip().startswith(("{", "[")):
        return None
    try:
        value = _read(f"x={text}").value()
    except ValueError:
        return None  # told elsewhere
    inner = getattr(value, "list", value)  # `[a],[b]` are values of a sweep, that are lists
    if not _holds_sweep(inner):
        return None
    hint = f"""quote each within it: {shlex.quote(key + '={a: "choice(1,2)"}')}"""
    return Problem("values of a sweep in a map or list", key, typed, hint)


def _holds_sweep(value: Any) -> bool:
    from hydra.core.override_parser.types import Glob, Sweep

    if isinstance(value, dict | list):
        return any(map(_holds_sweep, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Sweep | Glob)


def _split(typed: str) -> tuple[str, str, str | None]:
    match = _FORM.fullmatch(typed)
    assert match is not None  # every part may be empty
    return match["mark"], match["key"].strip(), match["text"]


def _kind(mark: str, key: str, parsed: Any, folders: Folders) -> Kind:
    if key.startswith("hydra."):
        return Kind.HYDRA
    group, _, _package = key.partition("@")
    is_group = group.startswith("hydra/") or folders.is_group(group)
    if is_group and not isinstance(parsed.value(), dict):
        return Kind.CHOICE
    return Kind.DELETE if mark == "~" else Kind.VALUE


def _open_map(key: str) -> tuple[str, ...] | None:
    parts = key.split(".", 2)
    return next((path for path in OPEN_MAPS if tuple(parts[:2]) == path and len(parts) == 3), None)


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split(".", 2) if _open_map(key) else key.split("."))


@lru_cache(maxsize=4096)  # the trials of a sweep have most of their overrides in common
def _read(text: str) -> Any:
    """Hydra's own reading of `key=value`; ValueError if its grammar has none."""
    from hydra.errors import HydraException

    try:
        return parsed_by_hydra(text)
    except HydraException as error:
        raise ValueError(text) from error


def parsed_by_hydra(text: str, config_loader: Any = None) -> Any:
    """By any thread; `config_loader` is for `glob`. Raises Hydra's own errors."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with PARSER:
        return OverridesParser.create(config_loader).parse_override(text)


def quoted(key: str, text: str) -> str:
    """How to write `text` as one string, ready for a shell; a list or map needs another look."""
    if text.startswith(("[", "{")):
        return "quote the elements that hold any of = , : # ' \" or letters beyond ASCII"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "quote it: " + shlex.quote(f'{key}="{escaped}"')


def _elements(text: str | None, parsed: Any) -> tuple[str, ...]:
    """The elements of a list as typed; empty if they cannot be told apart with certainty."""
    value = parsed.value()
    if text is None or not isinstance(value, list):
        return ()
    pieces = tuple(piece.strip() for piece in _at_commas(text.strip()[1:-1]))
    return pieces if len(pieces) == len(value) else ()


def _at_commas(text: str) -> list[str]:
    """`text` cut at the commas that stand outside quotes."""
    quoted = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
    return re.findall(rf"((?:{quoted}|\\.|[^,])+)", text, re.DOTALL)
