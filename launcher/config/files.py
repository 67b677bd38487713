"""The config folders, the options they hold, and what is wrong with a file before it is composed.

Hydra accepts in silence what most often goes wrong in these files: a misspelt keyword in a
defaults list, and an experiment whose `# @package _global_` is not its first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

from launcher import accelerators
from launcher.config.nearest import nearest_hint
from launcher.errors import Problem

# Groups whose files may set any key, and so must say that they do.
GLOBAL_GROUPS = ("experiment", "local")

_KEYWORDS = frozenset({"optional", "override"})
_HEADER = re.compile(r"#\s*@package\s+(?P<package>\S+)\s*$")
_HEADER_LINE = re.compile(r"#\s*@\w+(\s|$)")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders in which options are looked up, the launcher's own first.

    Paths are shown relative to `cwd` where they lie in it.
    """

    paths: tuple[Path, ...]
    cwd: Path

    def is_group(self, group: str) -> bool:
        return _inside(group) and any((folder / group).is_dir() for folder in self.paths)

    def options(self, group: str) -> tuple[str, ...]:
        files = (file for folder in self.paths for file in (folder / group).glob("*.yaml"))
        return tuple(sorted({file.stem for file in files}, key=_natural))

    def files(self, config: str) -> tuple[Path, ...]:
        """Every file of that name (`cluster/v6e-16`); Hydra takes the first."""
        candidates = (folder / f"{config}.yaml" for folder in self.paths)
        return tuple(file for file in candidates if file.is_file()) if _inside(config) else ()

    def show(self, file: Path) -> str:
        return str(file.relative_to(self.cwd) if file.is_relative_to(self.cwd) else file)


def choice_problem(config: str, where: str, folders: Folders) -> Problem | None:
    """A problem if there is no such `group/option`, with the nearest and all that there are."""
    if folders.files(config):
        return None
    group, _, option = config.partition("/")
    options = folders.options(group)
    hint = _cluster_hint(option, options) if group == "cluster" else ""
    message = f"no option {option!r} in the group {group}; there are {', '.join(options)}"
    return Problem(message, group, where, hint or nearest_hint(option, options))


def hidden_problem(config: str, folders: Folders) -> Problem | None:
    """A problem if Hydra takes the launcher's own file where the user has one of the same name."""
    used, *hidden = folders.files(config) or (None,)
    for other in hidden:
        if used is not None and used.read_bytes() != other.read_bytes():
            message = f"hidden by {folders.show(used)}, which has the same name"
            return Problem(message, where=folders.show(other), hint="give it a name of its own")
    return None


def read(file: Path) -> yaml.Node | None:
    """The node graph of a YAML file, in which scalars keep their text; None if it is empty.

    Raises yaml.YAMLError or UnicodeDecodeError.
    """
    return yaml.compose(file.read_text(encoding="utf-8"), Loader=_LOADER)


def file_problems(file: Path, group: str, folders: Folders) -> Iterator[Problem]:
    """What is wrong with a file as such: syntax, header, words in its defaults list."""
    where = folders.show(file)
    try:
        node = read(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield syntax_problem(error, where)
        return
    if node is not None and not isinstance(node, yaml.MappingNode):
        yield Problem("must hold a map of keys", where=f"{where}:1")
    if group in GLOBAL_GROUPS:
        yield from _header_problems(file.read_text(encoding="utf-8"), where)
    yield from _defaults_problems(node, where)


def syntax_problem(error: Exception, where: str) -> Problem:
    """A YAML error as one problem with its line."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Problem(f"not valid YAML: {reason}", where=f"{where}:{mark.line + 1}" if mark else where)


def defaults(node: yaml.Node | None) -> Iterator[tuple[str, str, int]]:
    """The entries of a file's defaults list: key as written ("" if bare), option, line."""
    for entry in _defaults_nodes(node):
        line = entry.start_mark.line + 1
        if isinstance(entry, yaml.MappingNode):
            for key, value in entry.value:
                yield str(key.value), str(value.value), line
        else:
            yield "", str(entry.value), line


def _defaults_nodes(node: yaml.Node | None) -> list[yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    found = [value for key, value in pairs if key.value == "defaults"]
    return found[0].value if found and isinstance(found[0], yaml.SequenceNode) else []


def _defaults_problems(node: yaml.Node | None, where: str) -> Iterator[Problem]:
    for key, _option, line in defaults(node):
        for word in key.split()[:-1]:
            if word not in _KEYWORDS:
                hint = nearest_hint(word, _KEYWORDS)
                yield Problem(f"{word!r} is no keyword", "defaults", f"{where}:{line}", hint)


def _header_problems(text: str, where: str) -> Iterator[Problem]:
    """Hydra stops to look for the header at the first line that is not `# @key value`."""
    lines = text.splitlines()
    in_header = True
    for number, line in enumerate(lines, start=1):
        in_header = in_header and (not line.strip() or _HEADER_LINE.match(line) is not None)
        if found := _HEADER.match(line):
            if in_header and found["package"] == "_global_":
                return
            yield Problem("`# @package _global_` must be the first line", where=f"{where}:{number}")
            return
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        hint = "without it the keys would not be those of the run"
        yield Problem("the first line must be `# @package _global_`", where=f"{where}:1", hint=hint)


def _cluster_hint(option: str, options: tuple[str, ...]) -> str:
    names = accelerators.nearest(option)
    with_file = tuple(name for name in names if name in options)
    if names and names[0] not in with_file:
        return f"{names[0]} has no file of its own: use cluster.accelerator_type={names[0]}"
    return accelerators.did_you_mean(with_file)


def _inside(config: str) -> bool:
    parts = PurePosixPath(config).parts
    return bool(parts) and not config.startswith("/") and ".." not in parts and "\0" not in config


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
