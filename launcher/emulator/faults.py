"""The named faults as tables: what each strikes, and which options its rules take.

`rules` reads rules by these tables, `fleet` does the deeds, and `rule_schema` and the command line
show both to users. Nothing here needs gRPC, so that a configuration is checked quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.config.values import seconds

# https://grpc.github.io/grpc/core/md_doc_statuscodes.html, without OK
CODES = (
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


def read_count(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", str(value)):
        raise ValueError(f"{value!r} is no whole number")
    return int(str(value))


def read_duration(value: object) -> float:
    return seconds(str(value))


def read_code(value: object) -> str:
    if value not in CODES:
        raise ValueError(f"{value!r} is no gRPC code; there are {', '.join(CODES)}")
    return str(value)


@dataclass(frozen=True, slots=True)
class Option:
    """How the value of one key of a rule is read (ValueError if it is wrong), and what it means."""

    read: Callable[[object], Any]
    help: str


OPTIONS: Mapping[str, Option] = {
    "node": Option(
        read_text, "pattern of node ids (default: any; in the rules of a run, its own nodes)"
    ),
    "zone": Option(read_text, "pattern of zones (default: any)"),
    "method": Option(read_text, "pattern of API methods, such as CreateNode or Get*"),
    "worker": Option(read_count, "worker id of one host"),
    "count": Option(read_count, "how many times it strikes"),
    "seconds": Option(read_duration, "how long it takes, such as 30s or 500ms"),
    "lasts": Option(read_duration, "how long it strikes, from now on"),
    "notice": Option(read_duration, "time between the notice and the deed"),
    "after": Option(read_duration, "strike so long after a node is READY, instead of at once"),
    "code": Option(read_code, "gRPC code by name, such as RESOURCE_EXHAUSTED"),
    "message": Option(read_text, "text of the error"),
}


class Target(Enum):
    """What a fault strikes; the value holds the options that come with it.

    A node or one host of it: at once when commanded, or as a rule `after` READY. Anything else, a
    call, an operation or a boot, is met by a rule that waits for it.
    """

    NODE = ("after", "count")
    HOST = ("worker", "after", "count")
    EVENT = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: a line of help, what it strikes, and the options of its rules."""

    help: str
    target: Target
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """Everything that a rule of this fault may hold."""
        return ("node", "zone", *self.options, *self.target.value)

    @property
    def required(self) -> tuple[str, ...]:
        return ("worker",) if self.target is Target.HOST else ()


_ONCE = {"count": 1}
_ONE_CREATE = {"count": 1, "method": "CreateNode"}

FAULTS: Mapping[str, Fault] = {
    "preempt": Fault(
        "take a node back: its metadata says so; after a notice its hosts end",
        Target.NODE,
        ("notice",),
        _ONCE,
    ),
    "maintenance-event": Fault(
        "announce maintenance; after a notice the hosts end and the node is TERMINATED",
        Target.NODE,
        ("notice",),
        _ONCE,
    ),
    "repair": Fault(
        "a node ends its hosts, is REPAIRING for some seconds, and boots again",
        Target.NODE,
        ("seconds",),
        _ONCE,
    ),
    "kill-host": Fault("end one host, while the API goes on saying READY", Target.HOST, (), _ONCE),
    "freeze-host": Fault("stop every process of one host, as if it hung", Target.HOST, (), _ONCE),
    "thaw-host": Fault("let a frozen host go on", Target.HOST, (), _ONCE),
    "slow-boot": Fault(
        "the startup script starts some seconds late",
        Target.EVENT,
        ("worker", "seconds", "count"),
    ),
    "never-boots": Fault("the startup script never starts", Target.EVENT, ("worker", "count")),
    "slow-create": Fault("a create takes some seconds", Target.EVENT, ("seconds", "count")),
    "slow-delete": Fault("a delete takes some seconds", Target.EVENT, ("seconds", "count")),
    "stockout": Fault(
        "a create finds no capacity: code 8 in its operation", Target.EVENT, ("count",)
    ),
    "operation-error": Fault(
        "an operation ends in a code and a message",
        Target.EVENT,
        ("method", "code", "message", "count"),
        _ONE_CREATE,
    ),
    "operation-hangs": Fault(
        "an operation is never done, though its node gets there",
        Target.EVENT,
        ("method", "count"),
        _ONE_CREATE,
    ),
    "call-error": Fault(
        "a call is refused with a code and a message: quota, permission, …",
        Target.EVENT,
        ("method", "code", "message", "count"),
        _ONE_CREATE,
    ),
    "lost-reply": Fault(
        "a call is carried out, but its caller gets UNAVAILABLE",
        Target.EVENT,
        ("method", "count"),
        _ONE_CREATE,
    ),
    "unavailable": Fault("calls get UNAVAILABLE", Target.EVENT, ("method", "lasts", "count")),
}
