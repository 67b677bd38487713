"""Cloud Storage over REST: that a bucket exists, and where.

https://cloud.google.com/storage/docs/json_api/v1/buckets
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from grpc import StatusCode

from launcher.emulator.api_errors import ApiError
from launcher.emulator.fields import invalid, take
from launcher.emulator.guest import project_number
from launcher.emulator.projects import Projects
from launcher.emulator.rest import Call, Route
from launcher.emulator.world import World

Json = dict[str, Any]
NAME = re.compile(r"[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9]")
MULTI_REGIONS = ("US", "EU", "ASIA")


def make_bucket(projects: Projects, project_id: str, name: str, location: str) -> Json:
    """A new bucket; ApiError 3 for a name that is none, 6 if there is one of that name."""
    if not NAME.fullmatch(name):
        raise invalid("name", name, "Invalid bucket name.")
    if name in projects.buckets:
        raise ApiError(
            StatusCode.ALREADY_EXISTS,
            "Your previous request to create the named bucket succeeded and you already own it.",
        )
    place = (location or "US").upper()
    projects.buckets[name] = {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
        "projectNumber": project_number(project_id),
        "location": place,
        "locationType": "multi-region" if place in MULTI_REGIONS else "region",
        "storageClass": "STANDARD",
        "timeCreated": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return projects.buckets[name]


def _insert(world: World, call: Call) -> Json:
    name, location = (take(call.body, key, str, "bucket") for key in ("name", "location"))
    return make_bucket(world.projects, call.query.get("project", ""), name, location)


def find_bucket(world: World, call: Call) -> Json:
    """The bucket that a path names; ApiError 5 if there is none."""
    name = call.params["bucket"]
    if name not in world.projects.buckets:
        raise ApiError(StatusCode.NOT_FOUND, "The specified bucket does not exist.")
    return world.projects.buckets[name]


ROUTES = (
    Route("POST", "/storage/v1/b", _insert, "buckets.insert"),
    Route("GET", "/storage/v1/b/{bucket}", find_bucket, "buckets.get", "bucket"),
)
