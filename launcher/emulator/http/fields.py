"""The fields of a JSON body, read with a check of their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpc import StatusCode

from launcher.emulator.tpu.errors import ApiError

Json = Mapping[str, Any]


def invalid(field: str, value: object, hint: str) -> ApiError:
    return ApiError(
        StatusCode.INVALID_ARGUMENT, f"Invalid value for field '{field}': '{value}'. {hint}"
    )


def take(body: Json, key: str, kind: type, where: str = "resource") -> Any:
    """The value of a key, or the empty one; ApiError 3 if it is of another type."""
    value = body.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise invalid(f"{where}.{key}", value, f"It is no {kind.__name__}.")
    return value


def rows(body: Json, key: str, where: str = "resource") -> list[Json]:
    """A list of objects."""
    found: list[Json] = take(body, key, list, where)
    for index, row in enumerate(found):
        if not isinstance(row, dict):
            raise invalid(f"{where}.{key}[{index}]", row, "It is no dict.")
    return found
