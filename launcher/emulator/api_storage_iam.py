"""Cloud Storage over REST: who may do what with a bucket.

https://cloud.google.com/storage/docs/json_api/v1/buckets#getIamPolicy and its neighbours
"""

from __future__ import annotations

from typing import Any, cast

from grpc import StatusCode
from multidict import MultiMapping

from launcher.emulator.api_errors import ApiError
from launcher.emulator.api_storage import find_bucket
from launcher.emulator.projects import Policy
from launcher.emulator.rest import Call, Route
from launcher.emulator.world import World

Json = dict[str, Any]


def _policy(world: World, call: Call) -> Policy:
    find_bucket(world, call)
    return world.projects.bucket_policies[call.params["bucket"]]


def _to_json(policy: Policy, call: Call) -> Json:
    name = f"projects/_/buckets/{call.params['bucket']}"
    return {"kind": "storage#policy", "resourceId": name, **policy.to_json()}


def _get(world: World, call: Call) -> Json:
    return _to_json(_policy(world, call), call)


def _set(world: World, call: Call) -> Json:
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
    find_bucket(world, call)
    asked = cast("MultiMapping[str]", call.query).getall("permissions", [])
    project = world.projects.get(call.query.get("userProject", ""))
    found = [permission for permission in asked if project.grants(permission)]
    kind = {"kind": "storage#testIamPermissionsResponse"}
    return {**kind, "permissions": found} if found else dict(kind)


_IAM = "/storage/v1/b/{bucket}/iam"

ROUTES = (
    Route("GET", _IAM, _get, "buckets.getIamPolicy", "bucket"),
    Route("PUT", _IAM, _set, "buckets.setIamPolicy", "bucket"),
    Route("GET", f"{_IAM}/testPermissions", _test, "buckets.testIamPermissions", "bucket"),
)
