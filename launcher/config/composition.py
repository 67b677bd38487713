"""The config of the chosen files and overrides, and where each of its keys was set.

Hydra decides which files take part, in which order and where their content goes (its defaults
list). They are merged here, and the values of the command line set after them, one by one: Hydra
would stop at the first that does not fit, and here each of them is told.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from launcher.config.files import (
    Folders,
    choice_problem,
    defaults,
    file_problems,
    hidden_problem,
    read,
    syntax_problem,
)
from launcher.config.nearest import nearest_or_all
from launcher.config.origins import Key, Origins
from launcher.config.overrides import PARSER, Kind, Override
from launcher.errors import ConfigError, Problem

_ROOT = "config"  # the primary file, conf/config.yaml
_PERSONAL = "local/default"
_WITHOUT_PERSONAL = Override("~local", Kind.CHOICE, ("local",), None, "")


@dataclass(frozen=True, slots=True)
class Composed:
    """An omegaconf DictConfig as yet unresolved, the option taken of each group, and what the files
    say to Hydra itself. `plugins` are the options of Hydra's own groups.
    """

    config: Any
    origins: Origins
    choices: dict[str, str]
    hydra: Mapping[str, Any]
    plugins: Mapping[str, str]


Known = dict[tuple[str, ...], tuple[Composed, list[Problem]]]
"""What files come to, by the options taken: the trials of a sweep differ in values, mostly."""


def compose_files(
    overrides: Sequence[Override], folders: Folders, known: Known | None = None
) -> tuple[Composed, list[Problem]]:
    """The composed config, and the problems met; what has a problem is not part of the config.

    Files that are `known` already are not read again.
    Raises ConfigError if Hydra can make no defaults list.
    """
    judged = [(override, list(_choice_problems(override, folders))) for override in overrides]
    problems = [problem for _override, found in judged for problem in found]
    usable = [override for override, found in judged if not found]
    if faults := list(_file_problems(_PERSONAL, folders)):
        problems += faults
        usable.append(_WITHOUT_PERSONAL)
    choices = tuple(each.for_hydra for each in usable if each.kind is Kind.CHOICE)
    known = {} if known is None else known
    if choices not in known:
        try:
            known[choices] = _files(usable, folders)
        except Exception as error:
            raise ConfigError([*problems, _translate(error, usable, folders)]) from None
    files, faults = known[choices]
    composed = replace(files, config=copy.deepcopy(files.config), origins=files.origins.copy())
    return composed, [*problems, *faults, *_set_values(composed, usable)]


def _files(usable: Sequence[Override], folders: Folders) -> tuple[Composed, list[Problem]]:
    """What the files that take part come to, without the values of the command line."""
    used, taken = _defaults_list(usable, folders)
    chosen = {config for override in usable for config in _chosen(override)} | {_PERSONAL}
    problems: list[Problem] = []
    for config in dict.fromkeys(config for config, _package in used if config not in chosen):
        problems += _file_problems(config, folders)
    composed, unmerged = _merge(used, taken, folders)
    return composed, [*problems, *unmerged]


def _defaults_list(
    overrides: Sequence[Override], folders: Folders
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Hydra's list of (config, package) in the order of the merge, and the options taken."""
    from hydra.types import RunMode

    main, *more = folders.paths
    words = [search_path(more)] if more else []
    words += [override.for_hydra for override in overrides if override.kind is Kind.CHOICE]
    with _config_loader(main) as loader:
        found = loader.compute_defaults_list(_ROOT, words, RunMode.RUN)
    entries = [(each.config_path or "", each.package or "") for each in found.defaults]
    taken = {key: str(option) for key, option in sorted(found.overrides.known_choices.items())}
    return [entry for entry in entries if folders.files(entry[0])], taken


@contextmanager
def _config_loader(folder: Path) -> Iterator[Any]:
    """Hydra's loader of configs. A trial of a multirun runs inside a Hydra: it is put back."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from launcher.sweep import hydra_options

    with PARSER:
        hydra_options.register()
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(folder), version_base="1.3", job_name="launcher"):
                yield GlobalHydra.instance().config_loader()
        finally:
            GlobalHydra.instance().hydra = outer


def _merge(
    used: Sequence[tuple[str, str]], taken: dict[str, str], folders: Folders
) -> tuple[Composed, list[Problem]]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config, origins, problems = OmegaConf.create(), Origins(folders), []
    for name, package in used:
        file = folders.files(name)[0]
        try:
            config.merge_with(_content(file, package))
            origins.add_file(file, package)
        except yaml.YAMLError as error:
            problems.append(syntax_problem(error, folders.show(file)))
        except (OmegaConfBaseException, AttributeError, ValueError) as error:
            first = str(error).splitlines()[0]
            problems.append(Problem(f"does not fit: {first}", where=folders.show(file)))
    hydra: Any = OmegaConf.to_container(config.pop("hydra", None) or OmegaConf.create())
    choices = {key: option for key, option in taken.items() if folders.files(f"{key}/{option}")}
    plugins = {key: option for key, option in taken.items() if key.startswith("hydra/")}
    return Composed(config, origins, choices, hydra, plugins), problems


def _content(file: Path, package: str) -> Any:
    from omegaconf import OmegaConf

    content: Any = OmegaConf.load(file)
    content.pop("defaults", None)
    for part in reversed(package.split(".") if package else []):
        content = OmegaConf.create({part: content})
    return content


def search_path(folders: Sequence[Path]) -> str:
    """The override that adds config folders to Hydra's search path."""
    escaped = (str(folder).replace("\\", "\\\\").replace("'", "\\'") for folder in folders)
    quoted = ",".join(f"'file://{path}'" for path in escaped)
    return f"hydra.searchpath=[{quoted}]"


def _file_problems(config: str, folders: Folders) -> Iterator[Problem]:
    for file in folders.files(config)[:1]:
        yield from file_problems(file, config.partition("/")[0], folders)
    if hidden := hidden_problem(config, folders):
        yield hidden


def _chosen(override: Override) -> list[str]:
    """The files that a choice names, as `group/option`."""
    if override.kind is not Kind.CHOICE or override.value is None:
        return []
    value = override.value
    options = value if isinstance(value, list) else [value]
    return [f"{override.path[0]}/{option}" for option in options]


def _choice_problems(override: Override, folders: Folders) -> Iterator[Problem]:
    if "@" in override.path[0] or override.path[0].startswith("hydra/"):
        return  # for Hydra to judge
    for config in _chosen(override):
        if missing := choice_problem(config, override.typed, folders):
            yield missing
        yield from _file_problems(config, folders)


def _set_values(composed: Composed, overrides: Sequence[Override]) -> Iterator[Problem]:
    from omegaconf.errors import OmegaConfBaseException

    for override in overrides:
        if override.kind is Kind.CHOICE:
            continue
        try:
            if override.kind is Kind.VALUE:
                _set(composed.config, override.path, override.value)
            elif override.kind is Kind.DELETE:
                _delete(composed.config, override.path)
        except (OmegaConfBaseException, KeyError, TypeError, ValueError) as error:
            first = str(error).splitlines()[0]
            gone = override.kind is Kind.DELETE
            reason = "no such key to take away" if gone else f"cannot be set: {first}"
            yield Problem(reason, ".".join(override.path), override.typed)
        else:
            composed.origins.add_override(override)
    yield from _hydra_problems(composed.origins)


def _hydra_problems(origins: Origins) -> Iterator[Problem]:
    """Keys that Hydra's own settings do not have; Hydra itself lets `+hydra.anything` pass."""
    from hydra.conf import HydraConf
    from omegaconf import OmegaConf

    keys = origins.users_keys("hydra")
    settings = OmegaConf.structured(HydraConf) if keys else None
    for key in keys:
        if key == ("hydra", "searchpath"):
            yield origins.problem("has no effect here", key, "--config-dir adds a config folder")
        elif known := _siblings(settings, key):
            yield origins.problem("no such key", key, nearest_or_all(key[-1], known))


def _siblings(settings: Any, key: Key) -> list[str]:
    """The keys that stand where `key` does not; empty if it is there, or where any may be."""
    from omegaconf import DictConfig, OmegaConf

    *around, last = key[1:]
    for part in around:
        if not isinstance(settings, DictConfig) or part not in settings:
            return []
        settings = settings[part]
    if not isinstance(settings, DictConfig) or OmegaConf.get_type(settings) is dict:
        return []
    known = [str(name) for name in settings]
    return [] if last in known else known


def _set(config: Any, path: tuple[str, ...], value: Any) -> None:
    from omegaconf import DictConfig

    *around, last = path
    for name in around:
        if not isinstance(config.get(name), DictConfig):
            config[name] = {}
        config = config[name]
    if isinstance(value, dict) and isinstance(config.get(last), DictConfig):
        config[last].merge_with(value)
    else:
        config[last] = value


def _delete(config: Any, path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        config = config[name]
    del config[path[-1]]


def _translate(error: Exception, overrides: Sequence[Override], folders: Folders) -> Problem:
    """What Hydra says, as one problem."""
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        return syntax_problem(error, folders.show(Path(mark.name)) if mark else "")
    if missing := getattr(error, "missing_cfg_file", None):
        where = _entry(str(missing), overrides, folders)
        known = not str(missing).startswith("hydra/")
        found = choice_problem(str(missing), where, folders) if known else None
        return found or Problem(f"no config {missing}", where=where)
    first, *rest = str(error).splitlines() or [type(error).__name__]
    inside = re.match(r"In '?([^':]+)'?: ?(.*)", first)
    files = folders.files(inside[1]) if inside else ()
    where = folders.show(files[0]) if files else ""
    return Problem(inside[2] if inside else first, where=where, hint=rest[0] if rest else "")


def _entry(missing: str, overrides: Sequence[Override], folders: Folders) -> str:
    """The line of a chosen file's defaults list that asks for `missing` (`cluster/v6e-16`)."""
    group, _, option = missing.rpartition("/")
    chosen = [config for override in overrides for config in _chosen(override)]
    for config in (*chosen, _PERSONAL):
        for file in folders.files(config)[:1]:
            for key, value, line in defaults(read(file)):
                if value.endswith(option) and (key.endswith(group) or not key):
                    return f"{folders.show(file)}:{line}"
    return ""
