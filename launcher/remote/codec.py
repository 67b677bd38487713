"""A Spec, or any frozen dataclass of its kind, as JSON and back.

The annotations say how: dataclasses, tuples, sets, mappings, paths and plain values. JSON and not
pickle: the coordinator may run a job that an older or newer launcher has packed, and then says so.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Plain lists, dicts and scalars; a set is sorted, so that equal values give equal texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [to_json(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def from_json(kind: type[T], value: Any) -> T:
    """The value of that type. Raises ValueError, naming the field, when it does not fit."""
    found: T = _read(kind, value, kind.__name__)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), value, where)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if reader := _CONTAINERS.get(origin):
        return reader(get_args(kind), value, where)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is kind:
        return value
    raise ValueError(f"{where}: {value!r} is not of type {getattr(kind, '__name__', kind)}")


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _read(kind, value, where)
        except ValueError:
            continue
    raise ValueError(f"{where}: {value!r} fits none of its types")


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or set(value) != names:
        given = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"{where}: has {given} where {sorted(names)} are wanted")
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in value})


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: no list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], inner, f"{where}[{i}]") for i, inner in enumerate(value))
    if len(kinds) != len(value):
        raise ValueError(f"{where}: {len(value)} values where {len(kinds)} are wanted")
    return tuple(
        _read(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )


def _read_set(kinds: tuple[Any, ...], value: Any, where: str) -> frozenset[Any]:
    return frozenset(_read_tuple((kinds[0], Ellipsis), value, where))


def _read_mapping(kinds: tuple[Any, ...], value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: no object")
    return MappingProxyType(
        {key: _read(kinds[1], inner, f"{where}.{key}") for key, inner in value.items()}
    )


_CONTAINERS: Mapping[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    tuple: _read_tuple,
    frozenset: _read_set,
    Mapping: _read_mapping,
}
