"""Waits for a long-running operation of Compute Engine."""

from __future__ import annotations

import time
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from requests import RequestException

from launcher.errors import ProvisioningError
from launcher.providers import Pause

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
