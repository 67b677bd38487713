"""Calls in REST form: what an answer, or none, means."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from launcher.errors import ProvisioningError, Unanswered
from launcher.providers import calls, open_provider
from launcher.providers.compute import instances_client
from launcher.providers.rest import call, logged_in
from launcher.remote.operations import told
from launcher.spec import ProviderSpec

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


class Login:
    """Credentials that meet this when they ask for a token."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def refresh(self, _request: Any) -> None:
        if self._error:
            raise self._error


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (None, False),
        (RefreshError("Reauthentication is needed."), True),
        (RefreshError("internal_failure", retryable=True), False),
        (TransportError("cut"), False),
    ],
)
def test_a_login_that_has_ended_is_told_before_anything_is_asked_for(
    error: Exception | None, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create call would go on for its whole deadline: gRPC calls it a service that is away."""
    login = Login(error)
    monkeypatch.setattr("google.auth.default", lambda **_: (login, "my-project"))
    if is_over:
        with pytest.raises(ProvisioningError, match="is needed; log in with `gcloud"):
            logged_in()
    else:
        assert logged_in() is login


def test_without_a_login_the_message_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found(**_: Any) -> None:
        raise DefaultCredentialsError("Not found. See the page for more information.")

    monkeypatch.setattr("google.auth.default", none_found)
    with pytest.raises(ProvisioningError, match="more information; log in with `gcloud"):
        open_provider(ProviderSpec("google", "my-project", {}))


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
