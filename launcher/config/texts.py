"""Values that reach a process, as text, byte for byte as written.

A value that YAML left a string is that string. A number, a truth value or a date is taken from
where it was written: `1e-5`, `3.10`, `010` and `yes` stay what they are. Where that text is lost
(a number out of an interpolation), the value is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from launcher.config.origins import Key, Origins
from launcher.config.overrides import OPEN_MAPS
from launcher.errors import Problem

_COMMAND = ("workload", "command")
_COMPUTED = re.compile(r"\(|\$\{")  # int(3), ${key}: not the text of the value


def restore_texts(plain: dict[str, Any], origins: Origins) -> tuple[dict[str, Any], list[Problem]]:
    """`plain` with texts in the open maps and the command, and a problem for each that is lost.

    Keys whose value is null stay null in the maps.
    """
    problems: list[Problem] = []
    groups = {group: dict(value) for group, value in plain.items() if isinstance(value, dict)}
    for group, name in OPEN_MAPS:
        values = groups.get(group, {}).get(name)
        if isinstance(values, dict):
            groups[group][name] = _texts(values, (group, name), origins, problems)
    command = groups.get("workload", {}).get("command")
    if isinstance(command, list):
        named = {str(index): value for index, value in enumerate(command)}
        groups["workload"]["command"] = list(_texts(named, _COMMAND, origins, problems).values())
    return {**plain, **groups}, problems


def _texts(
    values: dict[Any, Any], key: Key, origins: Origins, problems: list[Problem]
) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    for name, value in values.items():
        here = (*key, str(name))
        found = list(_problems(name, value, here, origins))
        problems += found
        if not found:
            texts[str(name)] = None if _left_out(value, key) else _text(value, here, origins)
    return texts


def _left_out(value: Any, key: Key) -> bool:
    return value is None and key != _COMMAND


def _problems(name: Any, value: Any, key: Key, origins: Origins) -> Iterator[Problem]:
    if not isinstance(name, str):
        hint = "quote the key, or YAML makes a number or a truth value of it"
        yield origins.problem("the key is not a text", key, hint)
    elif isinstance(value, dict | list):
        kind = "map" if isinstance(value, dict) else "list"
        hint = "a process gets text: quote the whole value"
        yield origins.problem(f"a {kind} cannot be passed to a process", key, hint)
    elif not _left_out(value, key[:-1]) and _text(value, key, origins) is None:
        yield origins.problem("YAML made it a number, and its text is lost", key, "quote it")
    elif unsendable(_text(value, key, origins) or ""):
        yield origins.problem("holds a NUL or bytes that are not UTF-8", key)


def unsendable(text: str) -> bool:
    """Whether no argv, environment or file of ours can hold this text."""
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)


def _text(value: Any, key: Key, origins: Origins) -> str | None:
    """The text of a scalar; None if it cannot be told with certainty."""
    if isinstance(value, str):
        return value
    origin = origins.get(key)
    if origin is None or origin.text is None:
        return None
    if _COMPUTED.search(origin.text):
        return None
    return origin.text if origin.file is None or _reads_as(origin.text, value) else None


def _reads_as(text: str, value: Any) -> bool:
    """Whether YAML makes this value of this text, so that the text is the value's own."""
    from omegaconf import OmegaConf

    try:
        read = OmegaConf.create(f"- {text}")[0]
    except yaml.YAMLError:
        return False
    return type(read) is type(value) and bool(read == value or read != read)
