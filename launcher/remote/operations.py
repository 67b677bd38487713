"""Changes of Compute Engine: the wait for a long-running operation, and what its errors are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from requests import RequestException

from launcher.errors import ProvisioningError
from launcher.providers import Pause
from launcher.providers.calls import hint, not_logged_in, reached

POLL_SECONDS = 0.2
# Of a poll, these tell nothing of what is being changed.
PASSING = (exceptions.GoogleAPICallError, GoogleAuthError, RequestException)


def await_operation(operation: Any, seconds: float, pause: Pause) -> None:
    """Until it has ended. Raises the operation's own error, and ProvisioningError, with what the
    last poll met, when it has not ended in time.
    """
    deadline = time.monotonic() + seconds
    trouble: Exception | None = None
    while True:
        try:
            if operation.done(retry=None):
                break
            trouble = None
        except PASSING as error:
            trouble = error
        if time.monotonic() >= deadline:
            why = f": {trouble}" if trouble else ""
            raise ProvisioningError(f"no end in {seconds:g} s{why}") from trouble
        pause(POLL_SECONDS)
    if failure := operation.exception():
        raise failure


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Every error of a change as ProvisioningError, which says what was to be changed."""
    try:
        with reached():
            yield
    except ProvisioningError as error:
        raise ProvisioningError(f"{what}: {error}") from error
    except exceptions.GoogleAPICallError as error:
        words = f"{what}: {type(error).__name__}: {error.message}{hint(error)}"
        raise ProvisioningError(words) from error
    except GoogleAuthError as error:
        raise ProvisioningError(f"{what}: {not_logged_in(error)}") from error
