"""Calls in REST form: what an answer, or none, means."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import RefreshError, TransportError

from launcher.errors import ProvisioningError, Unanswered
from launcher.providers import calls
from launcher.providers.compute import instances_client
from launcher.providers.rest import call
from launcher.remote.operations import told

CUT = (requests.ConnectionError("cut"), TransportError("no token: cut"))


class Session:
    """Raises what it is given at every request."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def request(self, *_: Any, **__: Any) -> None:
        raise self._error


def attempt(error: Exception) -> None:
    session: Any = Session(error)
    call(session, "GET", "https://tpu.googleapis.com/v2/x")


@pytest.mark.parametrize("cut", CUT)
def test_a_network_that_is_away_passes_by_itself_whatever_it_kept_back(cut: Exception) -> None:
    with pytest.raises(exceptions.ServiceUnavailable, match="cut"):
        attempt(cut)


def test_a_login_that_has_ended_does_not() -> None:
    with pytest.raises(RefreshError):
        attempt(RefreshError("ended"))


def test_a_look_at_a_vm_while_the_network_is_away_is_tried_again_and_then_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "AWAY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        root = f"http://127.0.0.1:{closed.getsockname()[1]}"
    client = instances_client(root)
    with pytest.raises(Unanswered, match="Connection refused"):
        calls.read(client.get, project="p", zone="z", instance="i")


@pytest.mark.parametrize("cut", CUT)
def test_a_change_that_the_network_has_cut_says_what_was_to_be_changed(cut: Exception) -> None:
    with pytest.raises(ProvisioningError, match=r"^VM x: ServiceUnavailable: .*cut"), told("VM x"):
        raise cut
