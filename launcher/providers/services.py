"""Google's services beside Cloud TPU, in their REST form: IAM, quotas, APIs, buckets, networks.

Each has the root URL `https://HOST`; the emulator serves all of them at one URL.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.providers import KINDS
from launcher.providers.calls import CALL_SECONDS
from launcher.providers.rest import call

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

    from launcher.spec import ProviderSpec

TPU = "tpu.googleapis.com"
COMPUTE = "compute.googleapis.com"
IAM = "iam.googleapis.com"
RESOURCE_MANAGER = "cloudresourcemanager.googleapis.com"
SERVICE_USAGE = "serviceusage.googleapis.com"
STORAGE = "storage.googleapis.com"

Json = dict[str, Any]


class Services:
    """Calls of one user, from any thread. `root` is the one URL of all services, Google's if empty.

    Errors are those of `google.api_core`; nothing is tried again here.
    """

    def __init__(self, open_session: Callable[[], AuthorizedSession], root: str = "") -> None:
        self._open_session = open_session
        self._root = root
        self._own = threading.local()  # sessions of requests are not for several threads

    def root(self, service: str) -> str:
        return self._root or f"https://{service}"

    @property
    def session(self) -> AuthorizedSession:
        """This thread's."""
        if not hasattr(self._own, "session"):
            self._own.session = self._open_session()
        found: AuthorizedSession = self._own.session
        return found

    def call(
        self, method: str, service: str, path: str, timeout: float = CALL_SECONDS, **arguments: Any
    ) -> Json:
        """`path` follows the root; `params` (query) and `json` (body) as requests takes them."""
        return call(self.session, method, f"{self.root(service)}{path}", timeout, **arguments)

    def get(self, service: str, path: str, timeout: float = CALL_SECONDS, **params: Any) -> Json:
        return self.call("GET", service, path, timeout, params=params)

    def post(
        self, service: str, path: str, body: Mapping[str, Any], timeout: float = CALL_SECONDS
    ) -> Json:
        return self.call("POST", service, path, timeout, json=body)

    def items(
        self, service: str, path: str, key: str, timeout: float = CALL_SECONDS, **params: Any
    ) -> Iterator[Json]:
        """What a list call holds under `key`, from all pages."""
        token = ""
        while True:
            more = {"pageToken": token} if token else {}
            page = self.get(service, path, timeout, **params, **more)
            yield from page.get(key, ())
            token = page.get("nextPageToken", "")
            if not token:
                return


def open_services(spec: ProviderSpec) -> Services:
    """Those of the project of `spec`; of an emulator only while its provider is open.

    Raises ProvisioningError when there are no credentials, or no emulator runs.
    """
    module = importlib.import_module(KINDS[spec.kind].module)
    opened: Services = module.open_services(spec)
    return opened
