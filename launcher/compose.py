"""From YAML files and overrides to a `Spec`, or to every problem there is with them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.build import Suffix, build, random_suffix
from launcher.config.checks import check
from launcher.config.composition import Composed, Known, compose_files
from launcher.config.draft import Draft
from launcher.config.files import Folders
from launcher.config.overrides import OPEN_MAPS, parse
from launcher.config.resolve import resolve, unresolved
from launcher.config.schema import schema_problems
from launcher.config.texts import restore_texts
from launcher.errors import ConfigError, Problem
from launcher.spec import Spec

_PACKAGE = Path(__file__).resolve().parent

# conf/, schemas/ and workloads/ lie in the package once it is a wheel, else beside it.
_SHIPPED = next(home for home in (_PACKAGE, _PACKAGE.parent) if (home / "conf").is_dir())
CONF = _SHIPPED / "conf"
SCHEMAS = _SHIPPED / "schemas"
WORKLOADS = _SHIPPED / "workloads"


def config_folders(cwd: Path, config_dirs: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Where options are looked up: ours, then `conf/` where the user stands, then `config_dirs`.

    Raises ConfigError if one of `config_dirs` is no folder.
    """
    given = [cwd / folder for folder in config_dirs]
    if missing := [Problem(f"no config folder {path}") for path in given if not path.is_dir()]:
        raise ConfigError(missing)
    own = [cwd / "conf"] if (cwd / "conf").is_dir() else []
    folders = dict.fromkeys(folder.resolve() for folder in (CONF, *own, *given))
    return tuple(folders)


def compose(
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[Path] = (),
    cwd: Path,
    require_workload: bool = True,
    suffix: Suffix = random_suffix,
    known: Known | None = None,
) -> Spec:
    """The run that the config files and overrides describe.

    `cwd` is where the user stands: relative paths begin there. Without `require_workload` the
    program is neither checked nor part of the Spec. `suffix` ends a made-up name. Files that are
    `known` are not read again.

    Raises ConfigError with every problem found.
    """
    folders = Folders(config_folders(cwd, config_dirs), cwd)
    parsed, unread = parse(overrides, folders)
    try:
        composed, found = compose_files(parsed, folders, known)
    except ConfigError as error:
        raise ConfigError([*unread, *error.problems]) from None
    draft, later = _examine(composed, folders, require_workload)
    if problems := _once([*unread, *found, *later]):
        raise ConfigError(problems)
    return build(
        draft,
        overrides=overrides,
        choices=composed.choices,
        with_workload=require_workload,
        suffix=suffix,
        multirun=composed.hydra.get("mode") == "MULTIRUN",
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which of Hydra's plug-ins a multirun uses, as its files say (an empty sweeper: the command
    line has the word). A sweeper may set keys by itself.
    """

    launcher: str
    sweeper: str
    sets_sweeper: bool


def chosen_plugins(overrides: Sequence[str], config_dirs: Sequence[Path], cwd: Path) -> Chosen:
    """Raises ConfigError if the files cannot be composed."""
    folders = Folders(config_folders(cwd, config_dirs), cwd)
    composed, _problems = compose_files(parse(overrides, folders)[0], folders)
    given = any(override.startswith("hydra/sweeper") for override in overrides)
    sweeper = "" if given else composed.plugins.get("hydra/sweeper", "")
    sets = sweeper != "basic" or composed.origins.get(("hydra", "sweeper", "params")) is not None
    return Chosen(composed.plugins.get("hydra/launcher", ""), sweeper, sets)


def _examine(
    composed: Composed, folders: Folders, require_workload: bool
) -> tuple[Draft, list[Problem]]:
    """The resolved config and its problems; each stage passes over keys that have one."""
    origins = composed.origins
    resolved, problems = resolve(composed.config, origins)
    plain, lost = restore_texts(resolved, origins)
    problems += lost
    faulty = {problem.key for problem in problems}
    problems += [
        breach for breach in schema_problems(plain, origins, SCHEMAS) if breach.key not in faulty
    ]
    written = _with_texts(unresolved(composed.config), plain)
    draft = Draft(plain, written, origins, folders.cwd, _SHIPPED)
    faulty_keys = frozenset(problem.key for problem in problems)
    return draft, [*problems, *check(draft, faulty_keys, require_workload)]


def _with_texts(written: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """The unresolved config with texts where a process gets them, to be stored without loss."""
    for group, name in OPEN_MAPS:
        texts, values = plain.get(group, {}).get(name), written.get(group, {}).get(name)
        if isinstance(texts, dict) and isinstance(values, dict):
            for key, value in values.items():
                if not isinstance(value, str):
                    values[key] = texts.get(key)
    return written


def _once(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
