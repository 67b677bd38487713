"""Rules: which fault strikes whom, when, and how often."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from grpc import StatusCode

from launcher.emulator.api_errors import ApiError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(slots=True)
class Rule:
    """One fault, whom it strikes, and how often.

    `node`, `zone` and `method` are shell patterns; `worker` None means any; `count` None means
    without end. Durations are in seconds; what `seconds` measures is for the fault to say.
    """

    fault: str
    node: str = "*"
    zone: str = "*"
    method: str = "*"
    worker: int | None = None
    count: int | None = None
    seconds: float = 0.0
    notice: float = 0.0
    after: float = 0.0
    lasts: float | None = None
    code: StatusCode = StatusCode.INTERNAL
    message: str = "an internal error has occurred"
    armed: float = field(default_factory=time.monotonic)

    def matches(self, fault: str, node: str, zone: str, method: str, worker: int | None) -> bool:
        return (
            self.fault == fault
            and self.count != 0
            and fnmatchcase(node, self.node)
            and fnmatchcase(zone, self.zone)
            and fnmatchcase(method, self.method)
            and self.worker in (None, worker)
            and (self.lasts is None or time.monotonic() < self.armed + self.lasts)
        )

    def error(self) -> ApiError:
        return ApiError(self.code, self.message)


class Rules:
    """The armed rules, in the order in which they were armed."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def arm(self, rule: Rule) -> None:
        self._rules.append(rule)

    def strike(
        self, fault: str, *, node: str, zone: str, method: str = "", worker: int | None = None
    ) -> Rule | None:
        """The first rule that matches, one strike of it used up; None if nothing is to happen."""
        for rule in self._rules:
            if rule.matches(fault, node, zone, method, worker):
                if rule.count is not None:
                    rule.count -= 1
                return rule
        return None


def duration(value: object) -> float:
    """Seconds of `30s`, `500ms`, `10m`, `1h`, or of a number; ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(value).strip())
    if not match:
        raise ValueError(f"{value!r} is no duration such as 30s or 500ms")
    return float(match[1]) * _UNITS[match[2]]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        raise ValueError(f"{value!r} is no whole number")
    return int(str(value))


def _code(value: object) -> StatusCode:
    if str(value) not in StatusCode.__members__:
        names = ", ".join(StatusCode.__members__)
        raise ValueError(f"{value!r} is no gRPC code; there are {names}")
    return StatusCode[str(value)]


@dataclass(frozen=True, slots=True)
class Option:
    """How the value of one field of a rule is read, and a line of help."""

    read: Callable[[Any], Any]
    help: str


OPTIONS: Mapping[str, Option] = {
    "node": Option(str, "pattern of node ids (default: any)"),
    "zone": Option(str, "pattern of zones (default: any)"),
    "method": Option(str, "pattern of API methods, such as CreateNode or Get*"),
    "worker": Option(_whole, "worker id of one host (default: any)"),
    "count": Option(_whole, "how many times it strikes"),
    "seconds": Option(duration, "how long it takes, such as 30s or 500ms"),
    "lasts": Option(duration, "how long it strikes, from now on"),
    "notice": Option(duration, "time between the notice and the deed"),
    "after": Option(duration, "strike so long after a node is READY, instead of at once"),
    "code": Option(_code, "gRPC code by name, such as RESOURCE_EXHAUSTED"),
    "message": Option(str, "text of the error"),
}
