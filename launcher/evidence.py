"""All that is known when an attempt has ended: plain data, exact as JSON both ways.

Times are seconds since the epoch. Those of processes and notices come from the hosts' clocks, which
differ by up to a second or two; the rest is from this machine's.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import Reason
from launcher.member import Ending, Member, Place, describe

GONE = "GONE"  # the state word of a node or queued resource that the API knows no more


class Told(enum.StrEnum):
    """Who gave notice that a host will go, in the words of the metadata server."""

    PREEMPTED = "preempted"  # instance/preempted is TRUE
    MAINTENANCE = "maintenance-event"  # anything but NONE
    SHUTDOWN = "SIGTERM"  # the host's own init ends its processes


@dataclass(frozen=True, slots=True)
class Notice:
    """A host was told that it will go. `word` is the metadata server's value."""

    place: Place
    told: Told
    time: float
    word: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of a host besides its processes.

    `alive`: it answered after the attempt's end (None: nobody asked). `oom_kills`: by how much the
    kernel's count of processes killed for memory (memory.events, /proc/vmstat) rose meanwhile.
    """

    place: Place
    alive: bool | None = None
    silent_since: float | None = None
    broke_at: float | None = None
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Symptom:
    """One of a node's `symptoms`, of this attempt's time. `kind` is the API's SymptomType."""

    slice: int
    kind: str
    worker: int | None = None
    details: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued resource: its state word, the slices that are its nodes, what it failed with."""

    state: str
    slices: tuple[int, ...]
    code: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing moved: since when, which processes had fallen silent, and the last step seen."""

    since: float
    members: tuple[Member, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user stopped the run, by a signal or by the verb `cancel`."""

    by: str
    time: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Slices were not to be had, so that nothing was started."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier attempt in short. `created` tells the machine from one that took its place."""

    attempt: int
    outcome: str
    place: Place | None = None
    created: str = ""
    code: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known when an attempt has ended.

    `node_states` maps a slice to the API's word for the state of its node, `GONE` when it is no
    more; a slice that nobody could ask after is absent. `health` holds the API's health words,
    `created` the nodes' times of creation. `stopped_at`: when the launcher ordered the processes
    to stop; `window`: how many seconds it then waited for news.
    """

    endings: Sequence[Ending] = ()
    node_states: Mapping[int, str] = dataclasses.field(default_factory=dict)
    health: Mapping[int, str] = dataclasses.field(default_factory=dict)
    created: Mapping[int, str] = dataclasses.field(default_factory=dict)
    symptoms: Sequence[Symptom] = ()
    queued: Sequence[Queued] = ()
    hosts: Sequence[Host] = ()
    notices: Sequence[Notice] = ()
    hang: Hang | None = None
    cancelled: Cancelled | None = None
    refused: Refusal | None = None
    stopped_at: float | None = None
    window: float = 0.0
    step: int | None = None
    earlier: Sequence[Earlier] = ()

    def __post_init__(self) -> None:
        for field in ("endings", "symptoms", "queued", "hosts", "notices", "earlier"):
            object.__setattr__(self, field, tuple(getattr(self, field)))


def to_json(evidence: Evidence) -> dict[str, Any]:
    """Plain JSON values; a process is written as on screen, what is not known is left out."""
    value = _encode(evidence)
    assert isinstance(value, dict)
    return value


def from_json(value: object) -> Evidence:
    """The same evidence again. Raises ValueError that names the place of what does not fit."""
    decoded = _decode(Evidence, value, "evidence")
    assert isinstance(decoded, Evidence)
    return decoded


def member_text(member: Member) -> str:
    """As on screen, but never ambiguous: a process with an index always shows it."""
    shown = dataclasses.replace(member, single=member.single and not member.index)
    return str(shown)


def parse_member(text: str) -> Member:
    """`s0 h2`, or `s0 h2 p1` where a host has several. Raises ValueError."""
    found = re.fullmatch(r"s(\d+) h(\d+)(?: p(\d+))?", text)
    if not found:
        raise ValueError(f"{text!r} is no process: expected `s0 h2` or `s0 h2 p1`")
    slice_, host, index = found.groups()
    return Member(int(slice_), int(host), int(index or 0), single=index is None)


def _encode(value: object) -> object:
    match value:
        case Member():
            return member_text(value)
        case enum.Enum():
            return value.value
        case tuple() | list():
            return [_encode(item) for item in value]
        case Mapping():
            return {str(key): _encode(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value):
            pairs = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
            return {f.name: _encode(item) for f, item in pairs if item != _default(f)}
    return value


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` as a `kind`: a data class, an enum, a container of them, or a plain value."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        optional = next(a for a in arguments if a is not type(None))
        return None if value is None else _decode(optional, value, where)
    if kind is Member:
        return _checked(parse_member, value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _checked(kind, value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_mapping(arguments, _of_type(dict, value, where), where)
    if origin is not None and issubclass(origin, Sequence):
        return _decode_sequence(arguments, _of_type(list, value, where), where)
    return float(value) if kind is float and type(value) is int else _of_type(kind, value, where)


def _decode_fields(kind: Any, value: Any, where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    value = _filled(value) if kind is Ending and isinstance(value, dict) else value
    known = _of_type(dict, value, where)
    if unknown := known.keys() - fields.keys():
        raise ValueError(f"{where}: {sorted(unknown)[0]!r} is none of {', '.join(fields)}")
    needed = {n for n, f in fields.items() if _default(f) is dataclasses.MISSING}
    if missing := needed - known.keys():
        raise ValueError(f"{where}: {sorted(missing)[0]!r} is missing")
    return kind(**{n: _decode(_hints(kind)[n], v, f"{where}.{n}") for n, v in known.items()})


def _filled(ending: dict[str, Any]) -> dict[str, Any]:
    """An ending's reason may be left out where the code says it all."""
    code = ending.get("code")
    words = {"reason": describe(code)} if isinstance(code, int) else {}
    return words | ending


def _decode_mapping(arguments: tuple[Any, ...], value: dict[str, Any], where: str) -> Any:
    key, item = arguments
    return {_checked(key, k, where): _decode(item, v, f"{where}.{k}") for k, v in value.items()}


def _decode_sequence(arguments: tuple[Any, ...], value: list[Any], where: str) -> Any:
    if len(arguments) > 1 and arguments[1] is not Ellipsis and len(value) != len(arguments):
        raise ValueError(f"{where}: expected {len(arguments)} values, got {len(value)}")
    return tuple(_decode(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))


def _checked(parse: Any, value: Any, where: str) -> Any:
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _of_type(kind: Any, value: Any, where: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value
