"""Calls in REST form: what an answer, or none, means."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import RefreshError, TransportError

from launcher.providers.rest import call


class Session:
    """Raises what it is given at every request."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def request(self, *_: Any, **__: Any) -> None:
        raise self._error


def attempt(error: Exception) -> None:
    session: Any = Session(error)
    call(session, "GET", "https://tpu.googleapis.com/v2/x")


@pytest.mark.parametrize("cut", [requests.ConnectionError("cut"), TransportError("no token: cut")])
def test_a_network_that_is_away_passes_by_itself_whatever_it_kept_back(cut: Exception) -> None:
    with pytest.raises(exceptions.ServiceUnavailable, match="cut"):
        attempt(cut)


def test_a_login_that_has_ended_does_not() -> None:
    with pytest.raises(RefreshError):
        attempt(RefreshError("ended"))
