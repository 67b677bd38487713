"""Frozen dataclasses as JSON and back; their annotations say how.

JSON and not pickle: an older or newer launcher may have written it, and then this one says so. What
has its default is left out; what is no field, or is missing and has no default, is an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from launcher.hosts.member import Member, member_text, parse_member

T = TypeVar("T")

# What is written as text: how, and how it is read.
TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    Path: (str, Path),
    Member: (member_text, parse_member),
}


def to_json(value: Any) -> Any:
    """Plain lists, dicts and scalars; a set is sorted, so that equal values give equal texts."""
    for kind, (write, _) in TEXTS.items():
        if isinstance(value, kind):
            return write(value)
    match value:
        case enum.Enum():
            return value.value
        case Mapping():
            return {key: to_json(inner) for key, inner in value.items()}
        case frozenset():
            return sorted(value)
        case tuple() | list():
            return [to_json(inner) for inner in value]
        case _ if dataclasses.is_dataclass(value):
            pairs = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
            return {f.name: to_json(inner) for f, inner in pairs if inner != _default(f)}
    return value


def from_json(kind: type[T], value: Any) -> T:
    """The value of that type. Raises ValueError, naming the field, when it does not fit."""
    found: T = _read(kind, value, kind.__name__)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _read_union(get_args(kind), value, where)
    if reader := _CONTAINERS.get(origin):
        return reader(get_args(kind), value, where)
    if kind in TEXTS:
        return _checked(TEXTS[kind][1], _of_type(str, value, where), where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if issubclass(kind, enum.Enum):
        return _checked(kind, value, where)
    return float(value) if kind is float and type(value) is int else _of_type(kind, value, where)


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        try:
            return _read(kind, value, where)
        except ValueError:
            continue
    return _read(last, value, where)


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = _of_type(dict, value, where).keys()
    if unknown := given - fields.keys():
        raise ValueError(f"{where}: {min(unknown)!r} is none of {', '.join(fields)}")
    needed = {name for name, field in fields.items() if _default(field) is dataclasses.MISSING}
    if missing := needed - given:
        raise ValueError(f"{where}: {min(missing)!r} is missing")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in value})


def _read_sequence(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    found = _of_type(list, value, where)
    if len(kinds) == 1 or kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(found)
    if len(kinds) != len(found):
        raise ValueError(f"{where}: expected {len(kinds)} values, got {len(found)}")
    items = enumerate(zip(kinds, found, strict=True))
    return tuple(_read(kind, inner, f"{where}[{i}]") for i, (kind, inner) in items)


def _read_set(kinds: tuple[Any, ...], value: Any, where: str) -> frozenset[Any]:
    return frozenset(_read_sequence(kinds, value, where))


def _read_mapping(kinds: tuple[Any, ...], value: Any, where: str) -> Mapping[Any, Any]:
    found = _of_type(dict, value, where).items()
    key, item = kinds
    return MappingProxyType(
        {_checked(key, k, where): _read(item, v, f"{where}.{k}") for k, v in found}
    )


# By the origin of an annotation.
_CONTAINERS: Mapping[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    tuple: _read_sequence,
    Sequence: _read_sequence,
    frozenset: _read_set,
    Mapping: _read_mapping,
}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _checked(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _of_type(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{where}: {value!r} is not of type {kind.__name__}")
    return value
