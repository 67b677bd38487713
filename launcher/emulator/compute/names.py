"""Names of Compute Engine: `projects/P/zones/Z/instances/N`, links, zones, and what is refused."""

from __future__ import annotations

import re
from functools import cache

from grpc import StatusCode

from launcher.emulator.http.fields import invalid
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.names import zones

ROOT = "https://www.googleapis.com/compute/v1/"
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def link(name: str) -> str:
    """The `selfLink` of a resource."""
    return ROOT + name


def path(given: str) -> str:
    """The part of a link or of a partial one that names the resource."""
    return re.sub(r"^https?://[^/]+/compute/v1/", "", given)


def zone_scope(project: str, zone: str) -> str:
    """`projects/P/zones/Z`; ApiError 3 for a zone that does not exist."""
    if zone not in compute_zones():
        raise invalid("zone", zone, "Unknown zone.")
    return f"projects/{project}/zones/{zone}"


def global_scope(project: str) -> str:
    return f"projects/{project}/global"


@cache
def compute_zones() -> frozenset[str]:
    """The zones that have TPUs, and their neighbours `a` to `f` in the same regions."""
    regions = {zone.rpartition("-")[0] for zone in zones()}
    return zones() | {f"{region}-{letter}" for region in regions for letter in "abcdef"}


def missing(name: str) -> ApiError:
    return ApiError(StatusCode.NOT_FOUND, f"The resource '{name}' was not found")


def taken(name: str) -> ApiError:
    return ApiError(StatusCode.ALREADY_EXISTS, f"The resource '{name}' already exists")


def not_ready(name: str) -> ApiError:
    return ApiError(StatusCode.INVALID_ARGUMENT, f"The resource '{name}' is not ready")


def changed(what: str) -> ApiError:
    """For a change that was made to something older than what is there now."""
    return ApiError(
        StatusCode.FAILED_PRECONDITION,
        f"Supplied fingerprint does not match current {what} fingerprint.",
    )
