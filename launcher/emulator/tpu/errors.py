"""The errors of the Cloud TPU API: codes and texts as the service gives them.

Texts were recorded in public reports, named at each; a text of ours is marked so.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from grpc import StatusCode

SERVICE_TITLES: Mapping[str, str] = {
    "tpu.googleapis.com": "Cloud TPU API",
    "compute.googleapis.com": "Compute Engine API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "serviceusage.googleapis.com": "Service Usage API",
    "storage.googleapis.com": "Cloud Storage API",
}


class ApiError(Exception):
    """An answer other than OK: of a call, or in the `error` of an operation.

    `details` are messages of google/rpc/error_details.proto in their JSON form, with `@type`.
    """

    def __init__(
        self, code: StatusCode, message: str, details: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    @property
    def number(self) -> int:
        """The code as `google.rpc.Status` holds it."""
        return int(self.code.value[0])


def bad_request(text: str) -> ApiError:
    """The form of terraform-provider-google#21243 and its like."""
    return ApiError(
        StatusCode.INVALID_ARGUMENT, f"Cloud TPU received a bad request. {text} {error_id()}"
    )


def bad_field(field: str, value: str, hint: str = "") -> ApiError:
    """The form of tensorflow/tpu#877; the hint is ours."""
    text = f'Cloud TPU received an invalid argument. The field "{field}" cannot be "{value}".{hint}'
    return ApiError(StatusCode.INVALID_ARGUMENT, f"{text} {error_id()}")


def not_in_zone(accelerator_type: str, zone: str) -> ApiError:
    """As recorded for v6e-1 in asia-east1-a."""
    return bad_request(
        f'The requested accelerator configuration for accelerator type, "{accelerator_type}", '
        f'could not be found in the zonal accelerator configurations for "{zone}".; the '
        f"accelerator {accelerator_type} was not found in zone {zone}"
    )


def wrong_state(verb: str, state: str) -> ApiError:
    """As recorded for an update of a preempted node."""
    return bad_request(f"{verb} is not supported while in state {state}")


def bad_label(text: str) -> ApiError:
    """As recorded for a value with a dot."""
    return ApiError(StatusCode.INVALID_ARGUMENT, f"resource labels are invalid: {text}")


def no_such_location(zone: str) -> ApiError:
    """As recorded for us-central2-b in a project without access."""
    return ApiError(
        StatusCode.PERMISSION_DENIED,
        f"Permission denied on 'locations/{zone}' (or it may not exist).",
    )


def already_exists(name: str) -> ApiError:
    """Code recorded, text ours."""
    return ApiError(StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")


def not_found(name: str) -> ApiError:
    """Code recorded, text ours."""
    return ApiError(StatusCode.NOT_FOUND, f"Resource '{name}' was not found")


def busy(name: str) -> ApiError:
    """Text recorded (HTTP 409); the gRPC code is a guess."""
    return ApiError(StatusCode.ABORTED, f"unable to queue the operation: '{name}' is being deleted")


def stockout(zone: str) -> ApiError:
    """As recorded in terraform-provider-google#21243."""
    return ApiError(
        StatusCode.RESOURCE_EXHAUSTED,
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud '
        "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) "
        f"{error_id()}",
    )


def service_disabled(service: str, project: str) -> ApiError:
    """The text of all Google APIs, which put the number of the project where we put its id."""
    title = SERVICE_TITLES[service]
    where = f"https://console.developers.google.com/apis/api/{service}/overview?project={project}"
    return ApiError(
        StatusCode.PERMISSION_DENIED,
        f"{title} has not been used in project {project} before or it is disabled. Enable it by "
        f"visiting {where} then retry. If you enabled this API recently, wait a few minutes for "
        "the action to propagate to our systems and retry.",
        [error_info("SERVICE_DISABLED", service=service, consumer=f"projects/{project}")],
    )


def error_info(reason: str, **metadata: str) -> Mapping[str, Any]:
    """A google.rpc.ErrorInfo."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }


def expired(name: str) -> ApiError:
    """Code and text ours: a queued resource whose time to be granted has passed."""
    return ApiError(
        StatusCode.DEADLINE_EXCEEDED,
        f"Resource '{name}' was not provisioned before its valid_until time",
    )


def not_deletable(name: str, state: str) -> ApiError:
    """Code ours as well as text: a delete without `force`."""
    return ApiError(
        StatusCode.FAILED_PRECONDITION,
        f"Resource '{name}' has nodes and is in state {state}; delete these first, or set force",
    )


def quota_exceeded(quota: str, limit: int, zone: str) -> ApiError:
    """Text and detail as in marin-community/marin#1612 and its like."""
    violation = {
        "subject": quota,
        "description": f"Quota '{quota}' exhausted. Limit {limit} in zone {zone}",
    }
    return ApiError(
        StatusCode.RESOURCE_EXHAUSTED,
        f"Quota limit '{quota}' has been exceeded. Limit: {limit} in zone {zone}.",
        [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}],
    )


def rate_exceeded(project: str) -> ApiError:
    """The beginning as in marin-community/marin#6198, the rest ours."""
    return ApiError(
        StatusCode.RESOURCE_EXHAUSTED,
        f"Maximum number of CreateNode requests per minute of project {project} has been reached.",
    )


def injected(code: str, message: str) -> ApiError:
    """What a rule asks for; `code` is the name of a gRPC code."""
    return ApiError(StatusCode[code], message)


def error_id() -> str:
    return f"[EID: 0x{secrets.token_hex(8)}]"
