"""The REST form of the Cloud TPU API, v2alpha1: what the client library has no fields for.

https://cloud.google.com/tpu/docs/reference/rest/v2alpha1/projects.locations.queuedResources
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError
from grpc import StatusCode

from launcher.errors import ProvisioningError
from launcher.providers.calls import AWAY_SECONDS, CALL_SECONDS, not_logged_in, reached

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

    from launcher.provisioning.requests import Request

GOOGLE = "https://tpu.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def open_session() -> AuthorizedSession:
    """With the user's own credentials. Raises ProvisioningError when there are none."""
    return session_of(find_credentials())


def find_credentials() -> Any:
    """The user's own. Raises ProvisioningError when there are none."""
    import google.auth

    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise ProvisioningError(not_logged_in(error)) from error
    return credentials


def logged_in() -> Any:
    """The user's own credentials, with a token. Raises ProvisioningError as well when they have
    ended: calls would tell of that as of a service that is away, and be tried again and again
    (googleapis/google-cloud-python#18419). A network that is away is left for them to tell.
    """
    from google.auth.transport.requests import Request

    credentials = find_credentials()
    try:
        credentials.refresh(functools.partial(Request(), timeout=AWAY_SECONDS))
    except GoogleAuthError as error:
        if not (error.retryable or isinstance(error, TransportError)):
            raise ProvisioningError(not_logged_in(error)) from error
    return credentials


def session_of(credentials: Any) -> AuthorizedSession:
    from google.auth.transport.requests import AuthorizedSession

    return AuthorizedSession(credentials)


def anonymous_session() -> AuthorizedSession:
    """For the emulator."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(AnonymousCredentials())
    session.trust_env = False  # no proxy stands between two processes of one machine
    return session


def call(
    session: AuthorizedSession,
    method: str,
    url: str,
    timeout: float = CALL_SECONDS,
    **arguments: Any,
) -> dict[str, Any]:
    """The JSON of the answer; errors are those of `google.api_core`, as with gRPC."""
    with reached():
        response = session.request(method, url, timeout=timeout, **arguments)
    if response.ok:
        return dict(response.json())
    raise error_of(response.status_code, response.text, _json(response))


def _json(response: Any) -> Mapping[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def error_of(status: int, text: str, body: Mapping[str, Any]) -> exceptions.GoogleAPICallError:
    error = body.get("error") or {}
    message = str(error.get("message") or text)
    word = str(error.get("status") or "")
    known = StatusCode.__members__.get(word)
    made: exceptions.GoogleAPICallError = (
        exceptions.from_grpc_status(known, message)
        if known
        else exceptions.from_http_status(status, message)
    )
    return made


class RestTpu:
    """Creates queued resources; `client` polls their operations."""

    def __init__(self, session: AuthorizedSession, root: str, client: Any) -> None:
        self._session = session
        self._root = root
        self._client = client

    def create_queued_resource(self, request: Request, timeout: float) -> PolledOperation:
        found = call(
            self._session,
            "POST",
            f"{self._root}/v2alpha1/{request.parent}/queuedResources",
            timeout,
            params={"queuedResourceId": request.id},
            json=request.body,
        )
        return PolledOperation(self._client, found["name"])


class PolledOperation:
    """An operation begun by REST, in the manner of `google.api_core.operation.Operation`."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._found: Any = None

    def done(self, retry: Any = None) -> bool:
        self._found = self._client.get_operation({"name": self._name}, timeout=CALL_SECONDS)
        return bool(self._found.done)

    def result(self, timeout: float | None = None) -> None:
        """Raises the error that it ended in."""
        if self._found.HasField("error"):
            error = self._found.error
            raise exceptions.from_grpc_status(error.code, error.message)
