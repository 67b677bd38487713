"""From an omegaconf config to plain values: every interpolation resolved, every problem told.

What an environment variable holds (`${oc.env:NAME}`) may be a secret: no message shows a resolved
value, and `takes_environment` says which keys hold one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from launcher.config.origins import Key, Origins
from launcher.errors import Problem

_REFERENCE = re.compile(r"\$\{\s*(\.*)([\w.\[\]-]+)\s*\}")
_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\b|oc\.env:")
_NO_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


def resolve(config: Any, origins: Origins) -> tuple[dict[str, Any], list[Problem]]:
    """The config as plain dicts and lists; keys with a problem are left out."""
    walk = _Walk(origins)
    return walk.members(config, (), ()), walk.problems


def unresolved(config: Any) -> dict[str, Any]:
    """The config as plain dicts and lists with its interpolations as written."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=False)
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def takes_environment(written: Any, key: Key, seen: frozenset[Key] = frozenset()) -> bool:
    """Whether the value at `key` of the unresolved config comes from an environment variable,
    by itself or through the keys that it refers to."""
    text = _at(written, key)
    if not isinstance(text, str) or key in seen:
        return False
    return bool(_ENVIRONMENT.search(text)) or any(
        takes_environment(written, other, seen | {key}) for other in _references(text, key)
    )


def _references(text: str, key: Key) -> Iterator[Key]:
    for dots, name in _REFERENCE.findall(text):
        around = key[: len(key) - len(dots)] if dots else ()
        yield (*around, *(part for part in re.split(r"[.\[\]]", name) if part))


def _at(written: Any, key: Key) -> Any:
    for part in key:
        if isinstance(written, list) and part.isdecimal() and int(part) < len(written):
            written = written[int(part)]
        elif isinstance(written, dict):
            written = written.get(part)
        else:
            return None
    return written


class _Walk:
    """Goes through a config once; `around` holds the containers on the way down, to stop loops."""

    def __init__(self, origins: Origins) -> None:
        self.origins = origins
        self.problems: list[Problem] = []

    def members(self, config: Any, key: Key, around: tuple[int, ...]) -> dict[str, Any]:
        values = {name: self.value(config, name, (*key, str(name)), around) for name in config}
        return {name: value for name, value in values.items() if value is not _FAULTY}

    def value(self, config: Any, name: Any, key: Key, around: tuple[int, ...]) -> Any:
        from omegaconf import DictConfig, ListConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if OmegaConf.is_missing(config, name) or self.origins.is_left_open(key):
            return self.faulty("not set", key, f"give {'.'.join(key)}=…")
        try:
            value = config[name]
        except OmegaConfBaseException as error:
            return self.faulty(*_reason(error, key))
        if not isinstance(value, DictConfig | ListConfig):
            return value
        if id(value) in around:
            return self.faulty("refers to itself", key)
        inside = (*around, id(value))
        if isinstance(value, DictConfig):
            return self.members(value, key, inside)
        elements = [self.value(value, i, (*key, str(i)), inside) for i in range(len(value))]
        return _FAULTY if _FAULTY in elements else elements

    def faulty(self, message: str, key: Key, hint: str = "") -> object:
        self.problems.append(self.origins.problem(message, key, hint))
        return _FAULTY


def _reason(error: Exception, key: Key) -> tuple[str, Key, str]:
    """Message, key and hint of a failed interpolation, without the value of any variable."""
    first = str(error).splitlines()[0]
    if found := _NO_VARIABLE.search(first):
        hint = f"export {found[1]}, or give a default: ${{oc.env:{found[1]},default}}"
        return f"the environment variable {found[1]} is not set", key, hint
    known = ("Interpolation key ", "Unsupported interpolation", "Recursive", "Interpolation to ")
    return first if first.startswith(known) else "the interpolation cannot be resolved", key, ""


_FAULTY = object()
