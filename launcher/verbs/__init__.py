"""The verbs of the command line: what each takes, and where it is; each is loaded on use."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from launcher.config.values import NAME_LENGTH, is_name
from launcher.errors import ClusterError, ConfigError, Interrupted, LauncherError, Problem


class Takes(Enum):
    """What the words of a command line are that are no flags."""

    OVERRIDES = "Hydra overrides"
    NAMES = "names of runs"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb. `flags` are keys of FLAGS."""

    module: str
    takes: Takes
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its other spelling, and what argparse is to do with the value that follows."""

    short: str = ""
    value: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, taken apart. `hydra` are the flags that Hydra itself is to heed; `values`
    are those of our own flags that take one."""

    overrides: Sequence[str] = ()
    names: Sequence[str] = ()
    flags: frozenset[str] = frozenset()
    config_dirs: Sequence[Path] = ()
    hydra: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)


_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_OF_HYDRA: Mapping[str, Flag] = {
    "--multirun": Flag("-m"),
    "--cfg": Flag("-c", {"choices": ("job", "hydra", "all")}),
    "--resolve": Flag(),
    "--package": Flag("-p", {}),
    "--info": Flag("-i", {"nargs": "?", "const": "all", "choices": _INFO}),
    "--hydra-help": Flag(),
    "--shell-completion": Flag("-sc"),
}
FLAGS: Mapping[str, Flag] = {
    "--all": Flag(),
    "--dry-run": Flag(),
    "--faults": Flag("", {}),
    "--config-dir": Flag("-cd", {"action": "append", "default": [], "type": Path}),
    "--follow": Flag("-f"),
    "--for": Flag("", {}),
    "--html": Flag("", {}),
    "--json": Flag(),
    "--name": Flag("", {}),
    "--only": Flag("", {}),
    "--random": Flag("", {}),
    "--seed": Flag("", {}),
    "--show-files": Flag(),
    "--strict": Flag(),
    "--tolerance": Flag("", {}),
    "--yes": Flag(),
    **_OF_HYDRA,
}
_OF_TRIALS = ("logs", "report")  # these take the identity of a trial behind a name
_TRIAL = re.compile(r"[0-9a-f]{1,8}(-[0-9]+)?")
_REHEARSAL = ("--faults", "--only", "--random", "--seed", "--tolerance")
_OWN_VALUES = ("--for", "--html", "--name", *_REHEARSAL)
VERBS: Mapping[str, Verb] = {
    "run": Verb("launcher.verbs.run", Takes.OVERRIDES, ("--config-dir", *_OF_HYDRA)),
    "plan": Verb(
        "launcher.verbs.plan", Takes.OVERRIDES, ("--json", "--show-files", "--for", "--config-dir")
    ),
    "rehearse": Verb(
        "launcher.verbs.rehearse", Takes.OVERRIDES, (*_REHEARSAL, "--strict", "--config-dir")
    ),
    "up": Verb("launcher.verbs.up", Takes.OVERRIDES, ("--config-dir",)),
    "down": Verb("launcher.verbs.down", Takes.NAMES, ("--all",)),
    "cancel": Verb("launcher.verbs.down", Takes.NAMES),
    "gc": Verb("launcher.verbs.gc", Takes.OVERRIDES, ("--yes", "--config-dir")),
    "status": Verb("launcher.verbs.status", Takes.NAMES, ("--json",)),
    "logs": Verb("launcher.verbs.logs", Takes.NAMES, ("--follow",)),
    "report": Verb("launcher.verbs.report", Takes.NAMES, ("--html",)),
    "doctor": Verb("launcher.verbs.doctor", Takes.OVERRIDES, ("--json", "--config-dir")),
    "coordinator": Verb(
        "launcher.verbs.coordinator", Takes.OVERRIDES, ("--name", "--dry-run", "--config-dir")
    ),
}


def find(verb: str) -> Callable[[Arguments], int]:
    """The function of a verb: it returns the exit code and raises `LauncherError`."""
    module = importlib.import_module(VERBS[verb].module)
    found: Callable[[Arguments], int] = getattr(module, verb)
    return found


def take_apart(verb: str, words: Sequence[str]) -> Arguments:
    """The words behind a verb. Raises ConfigError for flags and words that it does not take."""
    found, unknown = _parser(verb).parse_known_intermixed_args(words)
    if unknown:
        hint = _of_run(verb, unknown) or _known(verb)
        raise ConfigError([Problem(f"{verb} does not take {' '.join(unknown)}", hint=hint)])
    given = vars(found)
    takes, rest = VERBS[verb].takes, given["words"]
    if problems := [problem for word in rest for problem in _WORD_CHECKS[takes](verb, word)]:
        raise ConfigError(problems)
    valued = [name for name, flag in _OF_HYDRA.items() if flag.value is not None]
    hydra = [f"{name}={given[name]}" for name in valued if given.get(name) is not None]
    return Arguments(
        overrides=rest if takes is Takes.OVERRIDES else (),
        names=rest if takes is Takes.NAMES else (),
        flags=frozenset(given["flags"]) - set(_OF_HYDRA),
        config_dirs=given.get("--config-dir", ()),
        hydra=[*(name for name in given["flags"] if name in _OF_HYDRA), *hydra],
        values={name: given[name] for name in _OWN_VALUES if given.get(name) is not None},
    )


def exit_code(call: Callable[[], int]) -> int:
    """The exit code of a call; an error of ours is told, without a traceback."""
    try:
        return call()
    except LauncherError as error:
        print(f"launcher: {type(error).__name__}\n{error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"launcher: {error.name} is not installed here: {ACTIVATE}", file=sys.stderr)
        return ClusterError.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code


ACTIVATE = "in the checkout, `make demo` makes .venv; then `source .venv/bin/activate`"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem(message, hint=_known(self.prog))])


def _parser(verb: str) -> _Parser:
    parser = _Parser(prog=verb, add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.set_defaults(flags=[])
    for name in VERBS[verb].flags:
        flag = FLAGS[name]
        names = (flag.short, name) if flag.short else (name,)
        if flag.value is None:
            parser.add_argument(*names, dest="flags", action="append_const", const=name)
        else:
            parser.add_argument(*names, dest=name, **flag.value)
    return parser


def _known(verb: str) -> str:
    spelled = [f"{FLAGS[name].short} {name}".strip() for name in VERBS[verb].flags]
    return f"{verb} takes {VERBS[verb].takes.value} and the flags {', '.join(spelled) or 'none'}"


def _of_run(verb: str, words: Sequence[str]) -> str:
    """Where the flags of Hydra go that were given to a verb which does without them."""
    spelled = {word for name in _OF_HYDRA for word in (name, FLAGS[name].short) if word}
    if VERBS[verb].takes is not Takes.OVERRIDES or not spelled & {w.split("=")[0] for w in words}:
        return ""
    return f"`launcher -m --cfg job …` prints each trial's configuration; {_known(verb)}"


def _override_problems(verb: str, word: str) -> list[Problem]:
    """A verb that is misspelt or stands too late; any other word is judged with the overrides."""
    if "=" in word or verb != "run":
        return []
    from launcher.config.nearest import nearest_hint

    hint = "the verb comes first" if word in VERBS else nearest_hint(word, VERBS)
    return [Problem(f"no override and no verb: {word}", hint=hint)] if hint else []


def _name_problems(verb: str, word: str) -> list[Problem]:
    if verb in _OF_TRIALS and _TRIAL.fullmatch(word):
        return []
    rule = f"a-z, then a-z, 0-9 and -, at most {NAME_LENGTH}"
    return [] if is_name(word) else [Problem(f"not the name of a run ({rule}): {word!r}")]


_WORD_CHECKS: Mapping[Takes, Callable[[str, str], list[Problem]]] = {
    Takes.OVERRIDES: _override_problems,
    Takes.NAMES: _name_problems,
}
