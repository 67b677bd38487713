"""v2alpha1, the API's other version, as a view of the state that v2 has.

Its JSON form is the meeting point: a message of v2 becomes JSON, fields are renamed, what v2 has no
field for (`Extras`) is laid over it, and the outcome is what REST answers, or is read into the
message of v2alpha1 for gRPC. The other way round, the same. Client 1.28 lacks some fields of the
REST API (`runDuration`, `provisioningModel`), which live in the extras alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf import json_format
from grpc import StatusCode

from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.operations import Operation, Version
from launcher.emulator.tpu.wire import Extras, message_types

Json = dict[str, Any]

PACKAGE = "google.cloud.tpu.v2alpha1"
# Fields that have another name in v2, by the message of v2 that holds them.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "QueuedResource.Tpu.NodeSpec": {"multiNodeParams": "multisliceParams"},
}
# Values that have another name in v2.
_VALUES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("Node", "apiVersion"): {"V2_ALPHA1": "V2"},
}
# Fields that v2 lacks: those of the client's messages, and those that only REST has
# (https://docs.cloud.google.com/tpu/docs/reference/rest/v2alpha1).
_EXTRA: Mapping[str, frozenset[str]] = {
    "QueuedResource": frozenset({"bestEffort", "provisioningModel", "runDuration"}),
    "QueuedResource.Guaranteed": frozenset({"reserved"}),
    "QueuedResource.Tpu.NodeSpec.MultisliceParams": frozenset({"workloadType"}),
    "Node": frozenset(
        {"autocheckpointEnabled", "bootDiskConfig", "bootDisk", "upcomingMaintenance"}
    ),
    "SchedulingConfig": frozenset({"provisioningModel", "reservationName", "terminationTimestamp"}),
    "AttachedDisk": frozenset({"workerIds"}),
}
_VALUE_MESSAGES = ("google.protobuf.", "google.type.", "google.rpc.")


@cache
def types() -> Any:
    """The message types of v2alpha1; loaded by the first call that needs them."""
    return message_types("google.cloud.tpu_v2alpha1")


def read(kind: Any, given: Mapping[str, Any]) -> tuple[Any, Json]:
    """The message of v2, and its extras, of a message of v2alpha1 in JSON.

    Raises ApiError 3 for a field that there is not, or a wrong value.
    """
    message = kind()
    known, extras = _split(given, kind.pb(message).DESCRIPTOR, "")
    try:
        json_format.ParseDict(known, kind.pb(message))
    except json_format.ParseError as error:
        raise _bad_payload(str(error)) from None
    return message, extras


def show(message: Any, extras: Extras) -> Json:
    """The JSON of v2alpha1 of a message of v2 and its extras."""
    pb = type(message).pb(message)
    shown = _renamed(json_format.MessageToDict(pb), pb.DESCRIPTOR)
    return dict(_merged(shown, extras))


def to_json(message: Any) -> Json:
    """The JSON of a message of v2alpha1."""
    return dict(json_format.MessageToDict(type(message).pb(message)))


def to_message(message: Any, extras: Extras) -> Any:
    """The message of v2alpha1, a plain protobuf, of a message of v2 and its extras."""
    shown = getattr(types(), type(message).__name__).pb()()
    json_format.ParseDict(show(message, extras), shown, ignore_unknown_fields=True)
    return shown


V2ALPHA1 = Version("v2alpha1", to_message, gone_is_empty=False)


def operation_json(operation: Operation) -> Json:
    """An operation as REST shows it."""
    shown: Json = {
        "name": operation.name,
        "metadata": _typed("OperationMetadata", show(operation.metadata, {})),
    }
    if operation.ended.is_set():
        shown["done"] = True
        if operation.error:
            shown["error"] = {"code": operation.error.number, "message": operation.error.message}
        elif operation.is_empty:
            shown["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
        else:
            response = operation.response
            shown["response"] = _typed(type(response).__name__, show(response, operation.extras))
    return shown


def _typed(name: str, shown: Json) -> Json:
    return {"@type": f"type.googleapis.com/{PACKAGE}.{name}", **shown}


def _split(given: Any, descriptor: Any, path: str) -> tuple[Json, Json]:
    """What v2 has fields for, under its names, and the rest."""
    if not isinstance(given, Mapping):
        raise _bad_payload(f"{path or 'The body'} is no object.")
    known: Json = {}
    extras: Json = {}
    own = _short(descriptor)
    for name, value in given.items():
        key = _RENAMED.get(own, {}).get(name, name)
        where = f"{path}.{name}".lstrip(".")
        field = _field(descriptor, key)
        if field is None:
            if name not in _EXTRA.get(own, ()):
                raise _bad_payload(f'Unknown name "{name}" at "{path}": Cannot find field.')
            extras[name] = value
        elif value is None:
            continue
        elif _is_nested(field):
            known[key], more = _split_nested(value, field, where)
            if more:
                extras[name] = more
        else:
            known[key] = _VALUES.get((own, key), {}).get(value, value) if _is_text(value) else value
    return known, extras


def _split_nested(value: Any, field: Any, where: str) -> tuple[Any, Any]:
    if not field.is_repeated:
        return _split(value, field.message_type, where)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _bad_payload(f"{where} is no list.")
    pairs = [_split(one, field.message_type, f"{where}[{n}]") for n, one in enumerate(value)]
    extras = [more for _, more in pairs]
    return [known for known, _ in pairs], extras if any(extras) else None


def _renamed(shown: Json, descriptor: Any) -> Json:
    """A message of v2 in JSON, under the names of v2alpha1."""
    own = _short(descriptor)
    names = {new: old for old, new in _RENAMED.get(own, {}).items()}
    return {
        names.get(key, key): _value(own, key, value, descriptor) for key, value in shown.items()
    }


def _value(own: str, key: str, value: Any, descriptor: Any) -> Any:
    field = _field(descriptor, key)
    if field is not None and _is_nested(field):
        if field.is_repeated:
            return [_renamed(one, field.message_type) for one in value]
        return _renamed(value, field.message_type)
    old = {new: old for old, new in _VALUES.get((own, key), {}).items()}
    return old.get(value, value) if _is_text(value) else value


def _merged(shown: Any, extras: Any) -> Any:
    """Extras laid over JSON; lists go element by element."""
    if isinstance(shown, Mapping) and isinstance(extras, Mapping):
        both = {key: _merged(shown[key], extras[key]) for key in shown.keys() & extras.keys()}
        return {**shown, **extras, **both}
    if isinstance(shown, list) and isinstance(extras, list):
        return [_merged(*pair) for pair in zip(shown, extras, strict=True)]
    return extras


def _field(descriptor: Any, key: str) -> Any:
    return _fields(descriptor).get(key)


@cache
def _fields(descriptor: Any) -> Mapping[str, Any]:
    """The fields of a message by both names that JSON may use."""
    return {name: field for field in descriptor.fields for name in _names(field)}


def _names(field: Any) -> Iterator[str]:
    yield field.name
    yield field.json_name


def _is_nested(field: Any) -> bool:
    """Whether it holds messages of this API: no scalars, maps, times or the like."""
    kind = field.message_type
    return bool(kind) and not (
        kind.GetOptions().map_entry or kind.full_name.startswith(_VALUE_MESSAGES)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _short(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("google.cloud.tpu.v2.")


def _bad_payload(text: str) -> ApiError:
    """As all of Google's JSON APIs say it."""
    return ApiError(StatusCode.INVALID_ARGUMENT, f"Invalid JSON payload received. {text}")
