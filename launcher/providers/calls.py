"""Calls of Google's clients: a time limit on each, another try for what passes by itself.

google-cloud-tpu has no default time-out and no default retry on any method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import requests
import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError

from launcher.errors import ProvisioningError, Reason, Unanswered
from launcher.providers.reasons import POLICIES

CALL_SECONDS = 60.0
AWAY_SECONDS = 20.0  # how long a read waits for a service that is away
LOG_IN = "log in with `gcloud auth application-default login`"

# Errors that pass by themselves: the service is away, slow, or busy with this very resource.
TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.Unknown,
)
# Of a read, so does a quota, which is counted by the minute.
PASSING = (*TRANSIENT, exceptions.TooManyRequests)


class TryAgain(Exception):
    """Something passing stood in the way; the same step may be taken again."""


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """A network that is away as ServiceUnavailable, as with gRPC; clients of REST services have
    other errors for it, also where it is a token that cannot be had.
    """
    try:
        yield
    except (requests.RequestException, TransportError) as error:
        raise exceptions.ServiceUnavailable(str(error)) from error


def read(method: Callable[..., Any], **arguments: Any) -> Any:
    """An idempotent call, tried again for a while when the service is away.

    Every error is a ProvisioningError in the server's words, Unanswered if it passes by itself.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(PASSING),
        wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=5),
        stop=tenacity.stop_after_delay(AWAY_SECONDS),
        reraise=True,
    )
    try:
        return attempts(reached()(method), **arguments, timeout=CALL_SECONDS)
    except exceptions.GoogleAPICallError as error:
        call = ", ".join(value for value in arguments.values() if isinstance(value, str))
        words = f"{call}: {type(error).__name__}: {error.message}{hint(error)}"
        kind = Unanswered if isinstance(error, PASSING) else ProvisioningError
        raise kind(words) from error
    except GoogleAuthError as error:
        raise ProvisioningError(not_logged_in(error)) from error


def not_logged_in(error: GoogleAuthError) -> str:
    """The library's words, which may be a sentence, and what to do."""
    return f"{str(error).rstrip('.')}; {LOG_IN}"


def hint(error: Exception) -> str:
    """What to do about an error beside trying again; empty where there is nothing."""
    forbidden = isinstance(error, exceptions.Forbidden)
    return f"; {POLICIES[Reason.PERMISSION].hint}" if forbidden else ""


def read_if_there(method: Callable[..., Any], **arguments: Any) -> Any:
    """What `read` answers, or None where the server says that there is no such thing."""
    try:
        return read(method, **arguments)
    except ProvisioningError as error:
        if isinstance(error.__cause__, exceptions.NotFound):
            return None
        raise


def code_of(error: exceptions.GoogleAPICallError) -> int:
    """The gRPC status code; that of an HTTP error by its class."""
    status = getattr(error, "grpc_status_code", None)
    return int(status.value[0]) if status is not None else 13


def is_done(operation: Any) -> bool:
    """Whether a long-running operation has ended; no while that cannot be read.

    An error of the poll says nothing of what is being created.
    """
    try:
        return bool(operation.done(retry=None))
    except exceptions.GoogleAPICallError:
        return False
