"""The HTTP status and the `reason` of an error, per gRPC code.

The statuses are those of https://cloud.google.com/apis/design/errors#http_mapping, the reasons
those of Google's older JSON APIs (https://cloud.google.com/storage/docs/json_api/v1/status-codes).
"""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

COMPUTE_API = "compute.googleapis.com"
STORAGE_API = "storage.googleapis.com"

HTTP: Mapping[StatusCode, tuple[int, str]] = {
    StatusCode.CANCELLED: (499, "cancelled"),
    StatusCode.UNKNOWN: (500, "backendError"),
    StatusCode.INVALID_ARGUMENT: (400, "invalid"),
    StatusCode.DEADLINE_EXCEEDED: (504, "backendError"),
    StatusCode.NOT_FOUND: (404, "notFound"),
    StatusCode.ALREADY_EXISTS: (409, "alreadyExists"),
    StatusCode.PERMISSION_DENIED: (403, "forbidden"),
    StatusCode.RESOURCE_EXHAUSTED: (429, "rateLimitExceeded"),
    StatusCode.FAILED_PRECONDITION: (400, "failedPrecondition"),
    StatusCode.ABORTED: (409, "aborted"),
    StatusCode.OUT_OF_RANGE: (400, "outOfRange"),
    StatusCode.UNIMPLEMENTED: (501, "notImplemented"),
    StatusCode.INTERNAL: (500, "backendError"),
    StatusCode.UNAVAILABLE: (503, "backendError"),
    StatusCode.DATA_LOSS: (500, "backendError"),
    StatusCode.UNAUTHENTICATED: (401, "authError"),
}
# https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-quotas and
# https://cloud.google.com/compute/docs/api/how-tos/fingerprints
OTHERWISE: Mapping[tuple[str, StatusCode], tuple[int, str]] = {
    (COMPUTE_API, StatusCode.RESOURCE_EXHAUSTED): (403, "quotaExceeded"),
    (COMPUTE_API, StatusCode.FAILED_PRECONDITION): (412, "conditionNotMet"),
    (STORAGE_API, StatusCode.FAILED_PRECONDITION): (412, "conditionNotMet"),
}


def http_of(code: StatusCode, service: str = "") -> tuple[int, str]:
    """The status and the reason, as that service gives them."""
    return OTHERWISE.get((service, code)) or HTTP[code]
