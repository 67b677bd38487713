"""The errors of the Cloud TPU API: codes and texts as the service gives them.

Texts were recorded in public reports, named at each; a text of ours is marked so.
"""

from __future__ import annotations

import secrets

from grpc import StatusCode


class ApiError(Exception):
    """An answer other than OK: of a call, or in the `error` of an operation."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

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


def injected(code: str, message: str) -> ApiError:
    """What a rule asks for; `code` is the name of a gRPC code."""
    return ApiError(StatusCode[code], message)


def error_id() -> str:
    return f"[EID: 0x{secrets.token_hex(8)}]"
