"""The named faults as tables: what each strikes, and which options its rules take.

`rules` reads rules by these tables, `fleet` does the deeds, and `rule_schema` and the command line
show both to users. Nothing here needs gRPC, so that a configuration is checked quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
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

# Without the unspecified ones: https://docs.cloud.google.com/tpu/docs/reference/rpc
NODE_STATES = (
    "CREATING",
    "READY",
    "RESTARTING",
    "REIMAGING",
    "DELETING",
    "REPAIRING",
    "STOPPED",
    "STOPPING",
    "STARTING",
    "PREEMPTED",
    "TERMINATED",
    "HIDING",
    "HIDDEN",
    "UNHIDING",
    "UNKNOWN",
)
QUEUED_STATES = (
    "CREATING",
    "ACCEPTED",
    "PROVISIONING",
    "FAILED",
    "DELETING",
    "ACTIVE",
    "SUSPENDING",
    "SUSPENDED",
    "WAITING_FOR_RESOURCES",
)
STATES = tuple(dict.fromkeys((*NODE_STATES, *QUEUED_STATES)))
HEALTHS = ("HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE")
SYMPTOMS = (
    "LOW_MEMORY",
    "OUT_OF_MEMORY",
    "EXECUTE_TIMED_OUT",
    "MESH_BUILD_FAIL",
    "HBM_OUT_OF_MEMORY",
    "PROJECT_ABUSE",
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


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of the names of an enum; `kind` says of which."""

    kind: str
    names: tuple[str, ...]

    def __call__(self, value: object) -> str:
        if value not in self.names:
            raise ValueError(f"{value!r} is no {self.kind}; there are {', '.join(self.names)}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Option:
    """How the value of one key of a rule is read (ValueError if it is wrong), and what it means."""

    read: Callable[[object], Any]
    help: str
    example: str = "0"


OPTIONS: Mapping[str, Option] = {
    "node": Option(
        read_text,
        "pattern of ids, of nodes, queued resources or VMs (default: any; in the rules of a run,"
        " its own)",
    ),
    "zone": Option(read_text, "pattern of zones (default: any)"),
    "method": Option(read_text, "pattern of API methods, such as CreateNode or Get*"),
    "worker": Option(read_count, "worker id of one host"),
    "count": Option(read_count, "how many times it strikes"),
    "seconds": Option(read_duration, "how long it takes, such as 30s or 500ms"),
    "lasts": Option(read_duration, "how long it strikes, from now on"),
    "notice": Option(read_duration, "time between the notice and the deed"),
    "after": Option(read_duration, "strike so long after it is READY or ACTIVE, not at once"),
    "code": Option(OneOf("gRPC code", CODES), "gRPC code by name", "RESOURCE_EXHAUSTED"),
    "message": Option(read_text, "text of the error"),
    "limit": Option(read_count, "how many there may be", "32"),
    "slices": Option(read_count, "how many slices the metadata speaks of", "3"),
    "key": Option(read_text, "name of a key of tpu-env, or of an attribute", "NODE_ID"),
    "value": Option(read_text, "what it says"),
    "endpoints": Option(read_count, "how many network endpoints the node shows", "3"),
    "state": Option(OneOf("state", STATES), "state of the API", "REPAIRING"),
    "health": Option(OneOf("health", HEALTHS), "health of the API", "TIMEOUT"),
    "symptom": Option(OneOf("symptom", SYMPTOMS), "symptom of the API", "HBM_OUT_OF_MEMORY"),
}


class Target(Enum):
    """What a fault strikes.

    A node, one host of it, a queued resource, either of node and queued resource, or a VM of
    Compute Engine: at once when commanded, or as a rule `after` it is READY, ACTIVE or RUNNING. An
    event, such as a call, an operation or a boot, is met by a rule that
    waits for it. What is said of the project holds for as long as the rule is armed.
    """

    NODE = auto()
    HOST = auto()
    QUEUED = auto()
    EITHER = auto()
    VM = auto()
    EVENT = auto()
    PROJECT = auto()


_COMMON: Mapping[Target, tuple[str, ...]] = {
    Target.NODE: ("after", "count"),
    Target.HOST: ("worker", "after", "count"),
    Target.QUEUED: ("after", "count"),
    Target.EITHER: ("after", "count"),
    Target.VM: ("after", "count"),
    Target.EVENT: (),
    Target.PROJECT: (),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: a line of help, what it strikes, and the options of its rules."""

    help: str
    target: Target
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Everything that a rule of this fault may hold."""
        whose = () if self.target is Target.PROJECT else ("node", "zone")
        return (*whose, *self.options, *_COMMON[self.target])

    @property
    def required(self) -> tuple[str, ...]:
        return ("worker", *self.needs) if self.target is Target.HOST else self.needs


_ONCE = {"count": 1}
_ONE_CREATE = {"count": 1, "method": "Create[NQ]*"}  # CreateNode and CreateQueuedResource

OVERTAKEN = "another change came between"
"""Said of a deed that had begun, such as a preemption whose node was deleted at once."""

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
    "kill-vm": Fault(
        "a VM of Compute Engine crashes; it is repaired in some seconds, or TERMINATED if it has no"
        " automatic restart",
        Target.VM,
        ("seconds",),
        _ONCE,
    ),
    "freeze-host": Fault("stop every process of one host, as if it hung", Target.HOST, (), _ONCE),
    "thaw-host": Fault("let a frozen host go on", Target.HOST, (), _ONCE),
    "slow-boot": Fault(
        "the startup script starts some seconds late",
        Target.EVENT,
        ("worker", "seconds", "count"),
    ),
    "never-boots": Fault("the startup script never starts", Target.EVENT, ("worker", "count")),
    "stale-multislice": Fault(
        "the metadata of a host that boots speaks of another job of several slices",
        Target.EVENT,
        ("worker", "slices", "count"),
    ),
    "wrong-metadata": Fault(
        "the metadata of a host that boots has another value for a key of tpu-env, or an attribute",
        Target.EVENT,
        ("worker", "key", "value", "count"),
        needs=("key", "value"),
    ),
    "slow-create": Fault("a create takes some seconds", Target.EVENT, ("seconds", "count")),
    "slow-delete": Fault("a delete takes some seconds", Target.EVENT, ("seconds", "count")),
    "stockout": Fault(
        "no capacity: code 8 in the operation of a create, while a queued resource waits on (count:"
        " how often it asks in vain)",
        Target.EVENT,
        ("lasts", "count"),
    ),
    "queue-wait": Fault(
        "a queued resource is WAITING_FOR_RESOURCES for some seconds",
        Target.EVENT,
        ("seconds", "count"),
    ),
    "queue-fail": Fault(
        "a queued resource that is PROVISIONING becomes FAILED, with a code and a message",
        Target.EVENT,
        ("code", "message", "count"),
        _ONCE,
    ),
    "suspend": Fault(
        "a queued resource loses its nodes: SUSPENDING, then SUSPENDED", Target.QUEUED, (), _ONCE
    ),
    "set-state": Fault(
        "the API shows a node or a queued resource in some state; its hosts go on",
        Target.EITHER,
        ("state",),
        _ONCE,
        needs=("state",),
    ),
    "set-health": Fault(
        "the API shows a node in some health", Target.NODE, ("health",), _ONCE, needs=("health",)
    ),
    "symptom": Fault(
        "the API shows a symptom of one worker of a node",
        Target.HOST,
        ("symptom", "message"),
        _ONCE,
        needs=("symptom",),
    ),
    "wrong-endpoints": Fault(
        "a node that becomes READY shows another number of endpoints than it has hosts",
        Target.EVENT,
        ("endpoints", "count"),
        _ONCE,
        needs=("endpoints",),
    ),
    "quota": Fault(
        "creates beyond some number of chips, of all that exists, are refused with code 8",
        Target.EVENT,
        ("limit",),
        needs=("limit",),
    ),
    "create-rate": Fault(
        "more than some number of CreateNode calls a minute are refused with code 8",
        Target.EVENT,
        ("limit",),
        needs=("limit",),
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
    "api-disabled": Fault(
        "an API is disabled, until it is enabled: its calls get code 7 (method: its name, such as"
        " tpu.googleapis.com)",
        Target.PROJECT,
        ("method",),
    ),
    "permission-missing": Fault(
        "testIamPermissions does not give a permission (method: its name, such as tpu.nodes.*)",
        Target.PROJECT,
        ("method",),
    ),
}
