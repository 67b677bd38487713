"""One queued resource: what it asks for, when, and the message that the API shows."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from google.rpc import status_pb2

from launcher.accelerators import Accelerator
from launcher.emulator.changing import Changing
from launcher.emulator.faults import QUEUED_STATES
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.machine import guest
from launcher.emulator.tpu.checks import check_new_node
from launcher.emulator.tpu.errors import ApiError, bad_field, bad_request
from launcher.emulator.tpu.names import Place
from launcher.emulator.tpu.node import filled
from launcher.emulator.tpu.wire import Extras, QueuedState, v2

QUEUED_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")
RESERVATION = re.compile(r"projects/[^/]+/locations/[^/]+/reservations/[^/]+")
PROVISIONING_MODELS = ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")
Initiator: Any = v2.QueuedResourceState.StateInitiator
USER, SERVICE = Initiator.USER, Initiator.SERVICE

# The field of state_data that goes with each state; the waiting one has none.
_DATA: Mapping[int, str] = {
    QueuedState[name]: f"{name.lower()}_data"
    for name in QUEUED_STATES
    if name != "WAITING_FOR_RESOURCES"
}


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node that is asked for; `index` and `slices` are those of its multislice request."""

    node_id: str
    node: v2.Node
    accelerator: Accelerator
    extras: Extras
    index: int = 0
    slices: int = 1


@dataclass(frozen=True, slots=True)
class Window:
    """Times, in seconds since 1970, between which it may be granted; None if there is no limit."""

    after: float | None = None
    until: float | None = None


class QueuedResource(Changing):
    """One queued resource. `message` is the truth of the API, but for what v2 lacks: `extras`.

    `life` is the task that brings it from state to state.
    """

    def __init__(
        self,
        place: Place,
        node_id: str,
        request: v2.QueuedResource,
        planned: tuple[PlannedNode, ...],
        ledger: Ledger,
        extras: Extras,
    ) -> None:
        super().__init__()
        self.place = place
        self.node_id = node_id
        self.planned = planned
        self.extras = extras
        self.life: asyncio.Task[None] | None = None
        self.message = _filled(place, node_id, request, planned)
        self._changed = asyncio.Event()
        self._ledger = ledger
        types = dict.fromkeys(each.accelerator.accelerator_type for each in planned)
        self._entry = ledger.open(self.name, place.zone, ",".join(types), "queued_resource")
        self.become(QueuedState.CREATING, USER)

    @property
    def name(self) -> str:
        return str(self.message.name)

    @property
    def state(self) -> str:
        """The API's name of the state."""
        return str(QueuedState(self.message.state.state).name)

    @property
    def ids(self) -> tuple[str, ...]:
        """What it may be called in a rule: its own id, and those of its nodes."""
        return (self.node_id, *(each.node_id for each in self.planned))

    @property
    def chips(self) -> int:
        return sum(each.accelerator.chips for each in self.planned)

    @property
    def run_seconds(self) -> float | None:
        """How long it may run from now on; None if without end."""
        return run_seconds(self.extras, time.time())

    def window(self) -> Window:
        return window(self.message.queueing_policy, time.time())

    def become(
        self, state: int, initiator: int = SERVICE, error: ApiError | None = None, why: str = ""
    ) -> None:
        """Changes the state that the API shows; `why` is for the ledger."""
        shown = v2.QueuedResourceState(state=state, state_initiator=initiator)
        if data := _DATA.get(state):
            setattr(shown, data, {})
        if error:
            shown.failed_data.error = status_pb2.Status(code=error.number, message=error.message)
        self.message.state = shown
        self._ledger.enter(self._entry, self.state, why)
        self.changed()

    def close(self, why: str) -> None:
        """It is gone."""
        self._ledger.enter(self._entry, GONE, why)

    def changed(self) -> None:
        """Wakes whoever waits for a change of it or of its nodes."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, true: Callable[[], object]) -> None:
        """Returns when that is so; it is asked at each change."""
        while not true():
            await self._changed.wait()


def plan(
    place: Place, queued_id: str, request: v2.QueuedResource, extras: Extras
) -> tuple[PlannedNode, ...]:
    """The nodes of a queued resource that may be created; ApiError 3 for any other."""
    if not QUEUED_ID.fullmatch(queued_id):
        raise bad_field("queued_resource_id", queued_id, f" It must match {QUEUED_ID.pattern}.")
    if request.reservation_name and not RESERVATION.fullmatch(request.reservation_name):
        raise bad_field("reservation_name", request.reservation_name)
    if not request.tpu.node_spec:
        raise bad_request("a queued resource needs a node_spec")
    _check_run_duration(extras)
    _check_window(window(request.queueing_policy, time.time()))
    planned = tuple(_planned(place, queued_id, request, extras))
    for node_id, count in Counter(each.node_id for each in planned).items():
        if count > 1:
            raise bad_request(f'the node id "{node_id}" is asked for {count} times')
    return planned


def _planned(
    place: Place, queued_id: str, request: v2.QueuedResource, extras: Extras
) -> Iterator[PlannedNode]:
    number = Place(guest.project_number(place.project), place.zone)
    specs = extras.get("tpu", {}).get("nodeSpec", ())
    for index, spec in enumerate(request.tpu.node_spec):
        if spec.parent not in (place.parent, number.parent):
            raise bad_field("parent", spec.parent, f" It must be {place.parent}.")
        node = v2.Node(spec.node)
        node.scheduling_config = _scheduling(request, node, extras)
        params = _multislice(spec)
        if params is not None and params.node_count < 2:
            raise bad_field("node_count", str(params.node_count), " It must be more than 1.")
        ids = node_ids(queued_id, spec)
        more = specs[index].get("node", {}) if index < len(specs) else {}
        for slice_index, node_id in enumerate(ids):
            accelerator = check_new_node(place.zone, node_id, node)
            yield PlannedNode(node_id, node, accelerator, more, slice_index, len(ids))


def node_ids(queued_id: str, spec: Any) -> list[str]:
    """The node ids of a node spec, of either version."""
    params = _multislice(spec)
    if params is None:
        return [spec.node_id]
    prefix = params.node_id_prefix or queued_id
    return [f"{prefix}-{index}" for index in range(params.node_count)]


def _multislice(spec: Any) -> Any:
    """The parameters of a multislice request; None for a single node."""
    for field in ("multislice_params", "multi_node_params"):
        if hasattr(spec, field) and field in spec:
            return getattr(spec, field)
    return None


def _scheduling(request: v2.QueuedResource, node: v2.Node, extras: Extras) -> v2.SchedulingConfig:
    """What the tier of the request makes of its nodes."""
    model = extras.get("provisioningModel")
    scheduling = v2.SchedulingConfig(node.scheduling_config)
    scheduling.spot |= "spot" in request or model == "SPOT"
    scheduling.preemptible |= "bestEffort" in extras
    scheduling.reserved |= (
        bool(request.reservation_name)
        or bool(extras.get("guaranteed", {}).get("reserved"))
        or model == "RESERVATION_BOUND"
    )
    return scheduling


def _check_run_duration(extras: Extras) -> None:
    model = extras.get("provisioningModel", "STANDARD")
    if model not in PROVISIONING_MODELS:
        raise bad_field("provisioning_model", str(model))
    seconds = run_seconds(extras, time.time())
    if model == "FLEX_START" and seconds is None:
        raise bad_request("run_duration must be set with provisioning_model FLEX_START")
    if seconds is not None and seconds <= 0:
        raise bad_request("run_duration ends before it begins")


def run_seconds(extras: Extras, now: float) -> float | None:
    """The seconds that a `runDuration` leaves; None if there is none. ApiError 3 if it is wrong."""
    given = extras.get("runDuration")
    if not given:
        return None
    try:
        if "maxRunDuration" in given:
            duration = duration_pb2.Duration()
            duration.FromJsonString(given["maxRunDuration"])
            return float(duration.ToTimedelta().total_seconds())
        end = timestamp_pb2.Timestamp()
        end.FromJsonString(given["terminationTime"])
        return float(end.ToDatetime(UTC).timestamp()) - now
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_field("run_duration", str(given)) from None


def window(policy: v2.QueuedResource.QueueingPolicy, now: float) -> Window:
    """When a queueing policy lets a queued resource be granted."""
    kind = type(policy).pb(policy).WhichOneof("start_timing_constraints")
    match kind:
        case "valid_until_duration" | "valid_after_duration":
            moment = now + getattr(policy, kind).total_seconds()
        case "valid_until_time" | "valid_after_time":
            moment = getattr(policy, kind).timestamp()
        case "valid_interval":
            interval = policy.valid_interval
            ends = (interval.start_time, interval.end_time)
            set_ = (interval.HasField("start_time"), interval.HasField("end_time"))
            return Window(
                *(_seconds(end) if there else None for end, there in zip(ends, set_, strict=True))
            )
        case _:
            return Window()
    return Window(until=moment) if "until" in kind else Window(after=moment)


def _seconds(moment: Any) -> float:
    return float(moment.ToDatetime(UTC).timestamp())


def _check_window(given: Window) -> None:
    if given.after is not None and given.until is not None and given.after >= given.until:
        raise bad_request("valid_interval ends before it begins")


def _filled(
    place: Place,
    queued_id: str,
    request: v2.QueuedResource,
    planned: tuple[PlannedNode, ...],
) -> v2.QueuedResource:
    """The request with all that the API adds, as in recorded answers.

    Those have the project's number in place of its id, and in each spec the node that is to be.
    """
    message = v2.QueuedResource(request)
    message.name = place.resource("queuedResources", queued_id)
    message.create_time = datetime.now(UTC)
    number = Place(guest.project_number(place.project), place.zone)
    first = {each.node_id: each for each in planned if each.index == 0}
    for spec in message.tpu.node_spec:
        one = first[node_ids(queued_id, spec)[0]]
        spec.parent = number.parent
        spec.node = filled(place, one.node_id, one.node, one.accelerator)
        for field in ("name", "id", "state", "api_version", "create_time"):
            v2.Node.pb(spec.node).ClearField(field)
        spec.node.queued_resource = number.resource("queuedResources", queued_id)
        spec.node.multislice_node = one.slices > 1
    return message
