"""Resource names: `projects/P/locations/Z/nodes/N` and their parts."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from launcher.accelerators import all_types, lookup
from launcher.emulator.tpu.errors import bad_field, no_such_location

T = TypeVar("T")

ALL_ZONES = "-"
DEFAULT_PAGE = 500
_PARENT = re.compile(r"projects/([^/]+)/locations/([^/]+)")
_RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/(\w+)/([^/]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A project and a zone; the zone `-` stands for all of them."""

    project: str
    zone: str

    @classmethod
    def parse(cls, parent: str, *, wildcard: bool = False) -> Place:
        """The place that a `parent` names.

        Raises ApiError: 3 for a malformed name, 7 for a zone that does not exist.
        """
        match = _PARENT.fullmatch(parent)
        if not match:
            raise bad_field("parent", parent)
        place = cls(*match.groups())
        if place.zone not in zones() and not (wildcard and place.zone == ALL_ZONES):
            raise no_such_location(place.zone)
        return place

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    def resource(self, collection: str, identifier: str) -> str:
        return f"{self.parent}/{collection}/{identifier}"

    def holds(self, name: str) -> bool:
        """Whether the resource of that full name lies here."""
        _, project, _, zone, *_ = name.split("/")
        return project == self.project and self.zone in (zone, ALL_ZONES)


def split(name: str, collection: str) -> tuple[Place, str]:
    """The place and the id of a full resource name; ApiError 3 or 7 if it is none."""
    match = _RESOURCE.fullmatch(name)
    if not match or match[3] != collection:
        raise bad_field("name", name)
    return Place.parse(name.partition(f"/{collection}/")[0]), match[4]


@cache
def zones() -> frozenset[str]:
    """Every zone that offers some accelerator type."""
    return frozenset(zone for name in all_types() for zone in lookup(name).zones)


def page(
    items: Sequence[T], name_of: Callable[[T], str], size: int, token: str
) -> tuple[list[T], str]:
    """One page of items in the order of their names, and the token of the next ("" at the end).

    A token holds the last name given, so that items that come and go meanwhile do no harm.
    """
    if size < 0:
        raise bad_field("page_size", str(size))
    after = _read_token(token)
    rest = sorted((item for item in items if name_of(item) > after), key=name_of)
    now = rest[: size or DEFAULT_PAGE]
    more = len(rest) > len(now)
    return now, base64.urlsafe_b64encode(name_of(now[-1]).encode()).decode() if more else ""


def _read_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:  # no base64, or no text in it
        raise bad_field("page_token", token) from None
