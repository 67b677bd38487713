"""For each key of the composed config: where it was set, and the text as written there.

YAML turns `1e-5`, `3.10`, `010` and `yes` into other types before anyone sees them; the node graph
of the same file still has the text. Files are read in the order in which Hydra merges them, and
the overrides after them, by the rules of the merge: maps join, all else replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.config.files import Folders, read
from launcher.config.overrides import Kind, Override
from launcher.errors import Problem

Key = tuple[str, ...]

_MERGE = "tag:yaml.org,2002:merge"  # `<<: *other`


@dataclass(frozen=True, slots=True)
class Origin:
    """`rank` grows with precedence; `text` is None for maps and lists, and where it is lost."""

    rank: int
    where: str
    text: str | None = None
    file: Path | None = None


@dataclass(slots=True)
class Origins:
    """What set each key last; made once, while the config is composed."""

    folders: Folders
    _found: dict[Key, Origin] = field(default_factory=dict)
    _rank: int = 0

    def copy(self) -> Origins:
        """To be added to without an effect on this one."""
        return Origins(self.folders, dict(self._found), self._rank)

    def get(self, key: Key) -> Origin | None:
        return self._found.get(key)

    def nearest(self, key: Key) -> Origin | None:
        """The origin of the key, or of the nearest map around it."""
        candidates = (self._found.get(key[:length]) for length in range(len(key), 0, -1))
        return next((origin for origin in candidates if origin), None)

    def users_keys(self, group: str) -> list[Key]:
        """The keys of a group that were set by anything but the files that ship."""
        shipped = self.folders.paths[0]
        return [
            key
            for key, origin in self._found.items()
            if key[0] == group and len(key) > 1
            if origin.file is None or not origin.file.is_relative_to(shipped)
        ]

    def is_left_open(self, key: Key) -> bool:
        """Whether `???` was the last to be said, which Hydra passes over if there is a default."""
        origin = self.get(key)
        return origin is not None and origin.text == "???"

    def problem(self, message: str, key: Key, hint: str = "") -> Problem:
        """A problem of that key, with the place where it was set."""
        origin = self.nearest(key)
        return Problem(message, ".".join(key), origin.where if origin else "", hint)

    def add_file(self, file: Path, package: str) -> None:
        """All keys of a file, whose content Hydra puts under `package` ("" is the root)."""
        self._rank += 1
        prefix = tuple(package.split(".")) if package else ()
        for key, node, line in _walk(read(file), prefix, 1):
            text = node.value if isinstance(node, yaml.ScalarNode) else None
            origin = Origin(self._rank, f"{self.folders.show(file)}:{line}", text, file)
            self._set(key, origin, isinstance(node, yaml.MappingNode))

    def add_override(self, override: Override) -> None:
        """The key of an override, the maps around it that are new, and what lies in its value."""
        path, where = override.path, override.typed.lstrip("+")
        if override.kind is Kind.DELETE:
            self._remove(path)
            return
        for length in range(1, len(path)):
            self._found.setdefault(path[:length], Origin(_COMMAND_LINE, where))
        for key, value, text in _values(path, override):
            self._set(key, Origin(_COMMAND_LINE, where, text), isinstance(value, dict))

    def _remove(self, key: Key) -> None:
        for other in [other for other in self._found if other[: len(key)] == key]:
            del self._found[other]

    def _set(self, key: Key, origin: Origin, is_map: bool) -> None:
        if not is_map:
            self._remove(key)
        self._found[key] = origin


_COMMAND_LINE = 1_000_000  # above any file


def _walk(node: yaml.Node | None, key: Key, line: int) -> Iterator[tuple[Key, yaml.Node, int]]:
    """Every node below, maps before their members; merged maps before what overrides them."""
    if node is None:
        return
    if key:
        yield key, node, line
    if isinstance(node, yaml.MappingNode):
        for name, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            inner = key if name.tag == _MERGE else (*key, str(name.value))
            for part in _parts(value) if name.tag == _MERGE else (value,):
                yield from _walk(part, inner, name.start_mark.line + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*key, str(index)), value.start_mark.line + 1)


def _parts(merged: yaml.Node) -> list[yaml.Node]:
    """The maps of `<<: *one` or `<<: [*one, *two]`, of which the first wins."""
    return merged.value[::-1] if isinstance(merged, yaml.SequenceNode) else [merged]


def _values(path: Key, override: Override) -> Iterator[tuple[Key, Any, str | None]]:
    """The key, value and text of an override and, for a list, of each element."""
    value = override.value
    yield path, value, None if isinstance(value, (dict, list)) else override.text
    if isinstance(value, dict):
        for name, inner in _leaves(value):
            yield (*path, *name), inner, None
    for index, text in enumerate(override.elements):
        yield (*path, str(index)), value[index], text


def _leaves(value: Any) -> Iterator[tuple[Key, Any]]:
    for name, inner in value.items():
        yield (str(name),), inner
        if isinstance(inner, dict):
            yield from (((str(name), *rest), leaf) for rest, leaf in _leaves(inner))
