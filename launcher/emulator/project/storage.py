"""Cloud Storage over REST: that a bucket exists, where, and who may do what with it.

https://cloud.google.com/storage/docs/json_api/v1/buckets
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from grpc import StatusCode

from launcher.emulator.http.fields import invalid, take
from launcher.emulator.http.routes import Call, Route
from launcher.emulator.machine.guest import project_number
from launcher.emulator.project.projects import Policy, Projects
from launcher.emulator.tpu.errors import ApiError
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


def _find(world: World, call: Call) -> Json:
    """The bucket that a path names; ApiError 5 if there is none."""
    name = call.params["bucket"]
    if name not in world.projects.buckets:
        raise ApiError(StatusCode.NOT_FOUND, "The specified bucket does not exist.")
    return world.projects.buckets[name]


def _policy(world: World, call: Call) -> Policy:
    _find(world, call)
    return world.projects.bucket_policies[call.params["bucket"]]


def _to_json(policy: Policy, call: Call) -> Json:
    name = f"projects/_/buckets/{call.params['bucket']}"
    return {"kind": "storage#policy", "resourceId": name, **policy.to_json()}


def _get_policy(world: World, call: Call) -> Json:
    return _to_json(_policy(world, call), call)


def _set_policy(world: World, call: Call) -> Json:
    """412 for an etag of old, where other services say 409."""
    policy = _policy(world, call)
    try:
        world.projects.get(call.query.get("userProject", "")).set_policy(policy, call.body)
    except ApiError as error:
        if error.code is not StatusCode.ABORTED:
            raise
        message = "At least one of the pre-conditions you specified did not hold."
        raise ApiError(StatusCode.FAILED_PRECONDITION, message) from None
    return _to_json(policy, call)


def _test(world: World, call: Call) -> Json:
    """Which of the permissions in the query, one parameter each, the caller has."""
    _find(world, call)
    asked = call.query.every("permissions")
    project = world.projects.get(call.query.get("userProject", ""))
    found = [permission for permission in asked if project.grants(permission)]
    kind = {"kind": "storage#testIamPermissionsResponse"}
    return {**kind, "permissions": found} if found else dict(kind)


_BUCKET = "/storage/v1/b/{bucket}"

ROUTES = (
    Route("POST", "/storage/v1/b", _insert, "buckets.insert"),
    Route("GET", _BUCKET, _find, "buckets.get", "bucket"),
    Route("GET", f"{_BUCKET}/iam", _get_policy, "buckets.getIamPolicy", "bucket"),
    Route("PUT", f"{_BUCKET}/iam", _set_policy, "buckets.setIamPolicy", "bucket"),
    Route("GET", f"{_BUCKET}/iam/testPermissions", _test, "buckets.testIamPermissions", "bucket"),
)
