"""Cloud TPU nodes and queued resources through google-cloud-tpu.

CreateNode has no request id, so a lost reply is resolved by a look: what has that name and the
labels of this very attempt is ours. A queued resource that was given up could still be granted
later, so that to give up is to delete it, and to see that it is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2

from launcher.errors import ProvisioningError, Reason, Refused, Unanswered
from launcher.providers import Deadlines, Listing, Pause, Resource, Watch, not_watched, refusals
from launcher.providers.calls import (
    CALL_SECONDS,
    PASSING,
    TRANSIENT,
    TryAgain,
    hint,
    read,
    read_if_there,
)
from launcher.providers.resources import from_node, from_queued_resource
from launcher.providers.states import State
from launcher.providers.waiting import Wait
from launcher.provisioning.requests import (
    LABEL_ATTEMPT,
    OWNERSHIP,
    Request,
    is_queued,
)

if TYPE_CHECKING:
    from launcher.providers.rest import RestTpu
    from launcher.providers.services import Services
    from launcher.spec import ProviderSpec

ENDPOINT = "tpu.googleapis.com:443"
DELETE_LEFTOVER_SECONDS = 300.0
FORBIDDEN = (exceptions.Forbidden, exceptions.Unauthorized)
"""A call with this answer has done nothing; where creates are forbidden, looks may be as well."""


class GoogleProvider:
    """Nodes and queued resources of one project; `endpoint` is the client's.

    `rest` makes what the client has no fields for, `admit` waits until another create call is
    within the project's rate, `console` gives the end of a host's console log.
    """

    def __init__(
        self,
        project: str,
        client: Any,
        endpoint: str,
        title: str,
        *,
        rest: Callable[[], RestTpu],
        admit: Callable[[Pause], None],
        console: Callable[[str, int], str],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.project = project
        self.client = client
        self.endpoint = endpoint
        self.title = title
        self.console = console
        self._rest = rest
        self._admit = admit
        self._on_close = on_close

    def create(
        self,
        request: Request,
        deadlines: Deadlines,
        pause: Pause,
        watch: Watch = not_watched,
        *,
        asked: bool = False,
    ) -> Sequence[Resource]:
        """Raises Refused with the server's own words, or naming a foreign owner."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=10),
            stop=tenacity.stop_after_delay(deadlines.provision),
            sleep=pause,
            reraise=True,
        )
        with refusals.told(request):
            try:
                operation = attempts(self._submit, request, pause, asked)
            except FORBIDDEN as error:
                first = attempts.statistics["attempt_number"] == 1
                raise refusals.refusal(request, error, outright=first) from error
            return Wait(self.get, request, operation, deadlines, pause, watch).nodes()

    def _submit(self, request: Request, pause: Pause, asked: bool) -> Any | None:
        """The operation of one create call; None when it is there already and ours."""
        if asked and self._is_there(request):
            return None
        self._admit(pause)
        try:
            return self._call(request)
        except exceptions.AlreadyExists:
            self._settle(request, self._existing(request), pause)
        except TRANSIENT as error:
            found = self.get(request.name)
            if found is None:
                raise TryAgain(error.message) from error
            self._settle(request, found, pause)
        return None

    def _call(self, request: Request) -> Any:
        if request.version != "v2":
            return self._rest().create_queued_resource(request, CALL_SECONDS)
        if request.queued:
            call = {"parent": request.parent, "queued_resource_id": request.id}
            call["queued_resource"] = tpu_v2.QueuedResource.from_json(json.dumps(request.body))
            return self.client.create_queued_resource(request=call, timeout=CALL_SECONDS)
        call = {"parent": request.parent, "node_id": request.id}
        call["node"] = tpu_v2.Node(request.body)
        return self.client.create_node(request=call, timeout=CALL_SECONDS)

    def _is_there(self, request: Request) -> bool:
        """Whether this very request was carried out: another create call could be refused, such as
        for a quota that counts what is there.
        """
        labels = {name: request.node["labels"][name] for name in (*OWNERSHIP, LABEL_ATTEMPT)}
        found = self._look_at(request.name, labels)
        return found is not None and found.state not in (State.DEAD, State.DELETING)

    def _existing(self, request: Request) -> Resource | None:
        """What stands in the way of a request: the same name, or a node of the same name."""
        return next((found for name in request.names if (found := self.get(name))), None)

    def _settle(self, request: Request, found: Resource | None, pause: Pause) -> None:
        """Decide on what has the wanted name already; returns when it is the very same."""
        if found is None:
            raise TryAgain("the name was taken and is free again")
        wanted = request.node["labels"]
        if not refusals.same(found.labels, wanted, OWNERSHIP):
            raise Refused(Reason.TAKEN, refusals.foreign(found, wanted))
        if found.state is State.DELETING:
            raise TryAgain(f"{found.name} is still being deleted")
        leftover = found.name != request.name or not refusals.same(
            found.labels, wanted, (LABEL_ATTEMPT,)
        )
        if leftover or found.state is State.DEAD:
            whose = {label: wanted[label] for label in OWNERSHIP}
            self.delete(found.name, whose, DELETE_LEFTOVER_SECONDS, pause)
            raise TryAgain(f"a leftover of this name was removed; it was {found.raw_state}")

    def get(self, name: str) -> Resource | None:
        if is_queued(name):
            queued = read_if_there(self.client.get_queued_resource, name=name)
            return from_queued_resource(queued) if queued else None
        node = read_if_there(self.client.get_node, name=name)
        return from_node(node) if node else None

    def list(self, labels: Mapping[str, str]) -> Listing:
        parent = f"projects/{self.project}/locations/-"
        calls = (self.client.list_nodes, self.client.list_queued_resources)
        pages = [page for call in calls for page in read(all_pages, call=call, parent=parent)]
        found = [from_node(node) for page in pages for node in getattr(page, "nodes", ())]
        found += [
            from_queued_resource(queued)
            for page in pages
            for queued in getattr(page, "queued_resources", ())
        ]
        return Listing(
            tuple(resource for resource in found if labels.items() <= resource.labels.items()),
            tuple(sorted({zone for page in pages for zone in page.unreachable})),
        )

    def delete(
        self, name: str, labels: Mapping[str, str], timeout: float, pause: Pause = time.sleep
    ) -> None:
        """Asks again until a look says NOT_FOUND. Raises ProvisioningError at the deadline."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=tenacity.wait_exponential(multiplier=0.02, max=5),
            stop=tenacity.stop_after_delay(timeout),
            sleep=pause,
            reraise=True,
        )
        try:
            attempts(self._delete_once, name, labels)
        except (TryAgain, exceptions.GoogleAPICallError, GoogleAuthError) as error:
            raise ProvisioningError(f"{name} could not be deleted: {error}{hint(error)}") from error

    def _delete_once(self, name: str, labels: Mapping[str, str]) -> None:
        found = self._look_at(name, labels)
        if found is None:
            return
        if found.state is not State.DELETING:
            try:
                self._call_delete(name)
            except exceptions.NotFound:
                return
            except (*PASSING, exceptions.FailedPrecondition) as error:
                raise TryAgain(error.message) from error
        raise TryAgain("still being deleted")

    def _look_at(self, name: str, labels: Mapping[str, str]) -> Resource | None:
        """What has the name and these labels; None when it is gone, or another's by now."""
        try:
            found = self.get(name)
        except Unanswered as error:
            raise TryAgain(str(error)) from error
        return found if found and labels.items() <= found.labels.items() else None

    def _call_delete(self, name: str) -> None:
        if is_queued(name):
            request = {"name": name, "force": True}
            self.client.delete_queued_resource(request=request, timeout=CALL_SECONDS)
        else:
            self.client.delete_node(name=name, timeout=CALL_SECONDS)

    def close(self) -> None:
        self.client.transport.close()
        self._on_close()


def all_pages(call: Callable[..., Any], **arguments: Any) -> list[Any]:
    return list(call(**arguments).pages)


def how_to_read_the_console(name: str, worker: int) -> str:
    """The Cloud TPU API has no call for it."""
    zone, node = name.split("/")[3], name.split("/")[-1]
    return (
        f"read it with: gcloud compute tpus tpu-vm ssh {node} --zone {zone} --worker {worker}"
        " --command 'tail -n 40 /var/log/syslog'"
    )


def open_provider(spec: ProviderSpec, _nodes: Sequence[str]) -> GoogleProvider:
    from launcher.providers import rest, throttle

    assert spec.project is not None  # required of this kind when the configuration was checked
    title = f"Cloud TPU, project {spec.project}"
    client = tpu_v2.TpuClient(credentials=rest.logged_in())
    return GoogleProvider(
        spec.project,
        client,
        ENDPOINT,
        title,
        rest=lambda: rest.RestTpu(rest.open_session(), rest.GOOGLE, client),
        admit=throttle.Throttle(spec.project).admit,
        console=how_to_read_the_console,
    )


def compute_root(_spec: ProviderSpec) -> str | None:
    """The URL of Compute Engine; None: that of its client library."""
    return None


def is_running(_spec: ProviderSpec) -> bool:
    return True


def open_services(_spec: ProviderSpec) -> Services:
    from launcher.providers import rest, services

    credentials = rest.open_session().credentials  # raises when there are none
    return services.Services(lambda: rest.session_of(credentials))
