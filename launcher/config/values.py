"""Durations and names: the texts of a config that have a form of their own."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

# The API allows 63 characters; slices and attempts add their suffixes.
NAME_LENGTH = 40

_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str) -> float:
    """`90s`, `1.5h` or `500ms` in seconds; ValueError for anything else."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration such as 30s or 500ms")
    return float(match[1]) * _SECONDS[match[2]]


def is_name(text: str) -> bool:
    """Whether a run may have this name: node ids, labels and folders are made of it."""
    return len(text) <= NAME_LENGTH and _NAME.fullmatch(text) is not None


def as_name(text: str, length: int = NAME_LENGTH) -> str:
    """The valid name nearest to `text`, at most `length` characters; `run` if nothing is left."""
    dashed = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    lettered = dashed if dashed[:1].isalpha() else f"run-{dashed}"
    return lettered[:length].strip("-")


def as_list(value: Any) -> list[Any]:
    """One value as a list of it; a list as it is."""
    return list(value) if isinstance(value, list | tuple) else [value]


def is_time(text: str) -> bool:
    """Whether a text is a time with its zone, as RFC 3339 writes it: 2026-12-01T08:00:00Z."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
