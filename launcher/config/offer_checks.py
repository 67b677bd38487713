"""What a JSON Schema cannot say about `cluster`: which slices are asked for, and when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import inf

from launcher.accelerators import Accelerator, all_types, lookup
from launcher.config.draft import Check, Draft
from launcher.config.nearest import nearest_hint
from launcher.config.origins import Key
from launcher.config.resolve import takes_environment
from launcher.config.values import as_list, is_time, seconds
from launcher.config.zones import ANY, chosen_zones
from launcher.errors import ConfigError, Problem
from launcher.provisioning.capacity import CAPACITIES, CURRENT, FLEX_START, QUEUED_RESERVED

ZONE = re.compile(r"([a-z]+-)+[a-z]+[0-9]+-([a-z]+[0-9]+)?[a-z]")  # also us-central1-ai1a
LONGEST_RUN = 168.0 * 3600  # of flex-start: https://cloud.google.com/tpu/docs/plan-tpus
_TYPE, _ZONE, _RESERVATION = (
    ("cluster", name) for name in ("accelerator_type", "zone", "reservation")
)
_AFTER, _UNTIL, _RUN = (
    ("cluster", name) for name in ("valid_after", "valid_until", "max_run_time")
)
_ZONES = "cluster.zone"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def known_types(draft: Draft) -> list[Accelerator]:
    """The accelerator types asked for, without those that do not exist."""
    names = as_list(draft["cluster.accelerator_type"])
    return [lookup(name) for name in names if name in all_types()]


def all_zones(draft: Draft) -> set[str]:
    """Every zone that is tried; none if one of them is not valid."""
    given = draft["cluster.zone"]
    zones = {zone for kind in known_types(draft) for zone in chosen_zones(given, kind)}
    return zones if all(map(ZONE.fullmatch, zones)) else set()


def _elements(draft: Draft, key: Key) -> Iterator[tuple[Key, str]]:
    """The values of a key that takes one or a list, each with its own key; none for null."""
    given = draft[".".join(key)]
    if isinstance(given, list):
        yield from (((*key, str(index)), value) for index, value in enumerate(given))
    elif given is not None:
        yield key, given


def _accelerators(draft: Draft) -> Iterator[Problem]:
    for key, name in _elements(draft, _TYPE):
        try:
            accelerator = lookup(name)
        except ConfigError as error:
            message = f"no accelerator type {draft.show(key, name)!r}"
            yield draft.origins.problem(message, key, error.problems[0].hint)
            continue
        offered = accelerator.runtime_version_jax or draft["cluster.runtime_version"]
        if draft["provider.kind"] == "google" and offered is None:
            hint = "if your project has it, give cluster.runtime_version=…"
            yield draft.origins.problem(f"the Cloud TPU API does not offer {name}", key, hint)


def _zones(draft: Draft) -> Iterator[Problem]:
    for key, zone in _elements(draft, _ZONE):
        if zone != ANY and not ZONE.fullmatch(zone):
            hint = _near(draft, key, zone, _every_zone())
            yield draft.origins.problem("must be a zone such as us-east5-b, or any", key, hint)


def _every_zone() -> Iterator[str]:
    return (zone for name in all_types() for zone in lookup(name).zones)


def _near(draft: Draft, key: Key, zone: str, known: Iterable[str]) -> str:
    """`did you mean …?`, if one is near and the value is no secret."""
    return "" if takes_environment(draft.written, key) else nearest_hint(zone, known)


def _offered_zones(draft: Draft) -> Iterator[Problem]:
    """The emulator offers what the table says; Google may offer more by now, and says so itself.

    One wrong zone of a list is no problem: it is refused, and the next is tried.
    """
    if draft["provider.kind"] != "local" or list(_zones(draft)):
        return
    for accelerator in known_types(draft):
        if not set(chosen_zones(draft["cluster.zone"], accelerator)) & set(accelerator.zones):
            message = f"{accelerator.accelerator_type} is not offered there"
            near = (_near(draft, *each, accelerator.zones) for each in _elements(draft, _ZONE))
            hint = f"it is in {', '.join(accelerator.zones)}"
            yield draft.origins.problem(message, _ZONE, " ".join([*filter(None, near), hint]))


def _capacities(draft: Draft) -> list[str]:
    """By their names of today."""
    return [CURRENT.get(name, name) for name in as_list(draft["cluster.capacity"])]


def _max_run_time(draft: Draft) -> Iterator[Problem]:
    given, flexible = draft["cluster.max_run_time"], FLEX_START in _capacities(draft)
    if given is None:
        if flexible:
            hint = "give cluster.max_run_time=…, at most 168h"
            yield draft.origins.problem("flex-start needs to know how long", _RUN, hint)
    elif not flexible:
        yield draft.origins.problem("only capacity flex-start ends by itself", _RUN)
    elif not 0 < seconds(given) <= LONGEST_RUN:
        yield draft.origins.problem("must be more than 0s, and at most 168h", _RUN)


def _queued_only(draft: Draft) -> Iterator[Problem]:
    if any(CAPACITIES[name].queued for name in _capacities(draft)):
        return
    queued = ", ".join(name for name, capacity in CAPACITIES.items() if capacity.queued)
    for key in (_AFTER, _UNTIL):
        if draft[".".join(key)] is not None:
            yield draft.origins.problem("only for capacity that is queued", key, queued)


def _interval(draft: Draft) -> Iterator[Problem]:
    """Both are durations from the request, or times; of a mixture the API is the judge."""
    after, until = draft["cluster.valid_after"], draft["cluster.valid_until"]
    given = {key: text for key, text in ((_AFTER, after), (_UNTIL, until)) if text is not None}
    if wrong := [key for key, text in given.items() if "T" in text and not is_time(text)]:
        yield from (draft.origins.problem("no such date or time", key) for key in wrong)
    elif until is not None and _is_over(until):
        yield draft.origins.problem("is over already", _UNTIL)
    elif len(given) == 2 and is_time(after) == is_time(until) and not _follows(after, until):
        yield draft.origins.problem("must be later than valid_after", _UNTIL)


def _is_over(until: str) -> bool:
    if is_time(until):
        return datetime.fromisoformat(until) <= datetime.now(UTC)
    return seconds(until) == 0


def _follows(after: str, until: str) -> bool:
    if is_time(after):
        return datetime.fromisoformat(until) > datetime.fromisoformat(after)
    return seconds(until) > seconds(after)


def _given_up_too_soon(draft: Draft) -> Iterator[Problem]:
    """The queued choices of a chain share the time there is for capacity: see
    `launcher.provisioning.slices.queue_seconds`.
    """
    after, count = draft["cluster.valid_after"], max(1, _queued_choices(draft))
    if after is not None and seconds(draft["cluster.queue_timeout"]) / count <= _from_now(after):
        shared = f", which {count} queued choices share," if count > 1 else ""
        hint = "give cluster.queue_timeout a longer time"
        yield draft.origins.problem(f"queue_timeout{shared} is over before", _AFTER, hint)


def _queued_choices(draft: Draft) -> int:
    queued = {name for name in _capacities(draft) if CAPACITIES[name].queued}
    places = [zone for kind in known_types(draft) for zone in chosen_zones(draft[_ZONES], kind)]
    return len(queued) * len(places) * len(as_list(draft["mode.slices"]))


def _from_now(moment: str) -> float:
    """In seconds; what is no time is told by another check."""
    if not is_time(moment):
        return -inf if "T" in moment else seconds(moment)
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


def _reservation(draft: Draft) -> Iterator[Problem]:
    given, capacities = draft["cluster.reservation"], _capacities(draft)
    if given is None:
        return
    if QUEUED_RESERVED not in capacities:
        why = "a node that is created at once cannot name one: " if "reserved" in capacities else ""
        hint = f"{why}use cluster.capacity={QUEUED_RESERVED}"
        yield draft.origins.problem(f"only capacity {QUEUED_RESERVED} has this", _RESERVATION, hint)
    elif not _NAME.fullmatch(given):
        hint = "its name alone; project and zone are those of the request"
        hidden = takes_environment(draft.written, _RESERVATION)
        last = given.rpartition("/")[2]
        shown = f"such as {last}, " if _NAME.fullmatch(last) and not hidden else ""
        yield draft.origins.problem("not the name of a reservation", _RESERVATION, shown + hint)


_CHAIN = ("cluster.accelerator_type", "cluster.capacity", _ZONES, "mode.slices")
_TIMES = ("cluster.valid_after", "cluster.valid_until")
CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("cluster.accelerator_type", "cluster.runtime_version", "provider.kind"), _accelerators),
    (("cluster.zone",), _zones),
    (("cluster.zone", "cluster.accelerator_type", "provider.kind"), _offered_zones),
    (("cluster.max_run_time", "cluster.capacity"), _max_run_time),
    ((*_TIMES, "cluster.capacity"), _queued_only),
    (_TIMES, _interval),
    ((*_TIMES, "cluster.queue_timeout", *_CHAIN), _given_up_too_soon),
    (("cluster.reservation", "cluster.capacity"), _reservation),
)
