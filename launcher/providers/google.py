"""Cloud TPU nodes through google-cloud-tpu.

Every call has a time limit, and only what can get better is tried again. The API gives CreateNode
no request id, so a lost reply is resolved by a look: a node of that name with our labels is ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2

from launcher.errors import ProvisioningError, SliceLost
from launcher.plan import LABEL_OWNER, LABEL_RUN, NodeRequest
from launcher.providers import Node, NodeState

if TYPE_CHECKING:
    from launcher.spec import ProviderSpec

CALL_SECONDS = 60.0
AWAY_SECONDS = 20.0  # how long a read waits for a service that is away
LOG_IN = "log in with `gcloud auth application-default login`"
ENDPOINT = "tpu.googleapis.com:443"
OWNERSHIP = (LABEL_RUN, LABEL_OWNER)  # labels that tell whose a node is

# Errors that pass by themselves: the service is away, slow, or busy with this very node.
TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Aborted,
    exceptions.Cancelled,
)
STATES: Mapping[str, NodeState] = {
    "CREATING": NodeState.PENDING,
    "STARTING": NodeState.PENDING,
    "RESTARTING": NodeState.PENDING,
    "REIMAGING": NodeState.PENDING,
    "REPAIRING": NodeState.PENDING,
    "UNHIDING": NodeState.PENDING,
    "UNKNOWN": NodeState.PENDING,
    "STATE_UNSPECIFIED": NodeState.PENDING,
    "READY": NodeState.READY,
    "PREEMPTED": NodeState.DEAD,
    "TERMINATED": NodeState.DEAD,
    "STOPPED": NodeState.DEAD,
    "STOPPING": NodeState.DEAD,
    "HIDING": NodeState.DEAD,
    "HIDDEN": NodeState.DEAD,
    "DELETING": NodeState.DELETING,
}


class TryAgain(Exception):
    """Something passing stood in the way; the same step may be taken again."""


class GoogleProvider:
    """Nodes of one project, through a `TpuClient`; `endpoint` is the client's.

    `console` gives the end of a host's console log, or says how to read it.
    """

    def __init__(
        self,
        project: str,
        client: Any,
        endpoint: str,
        title: str,
        *,
        console: Callable[[str, int], str],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.project = project
        self.client = client
        self.endpoint = endpoint
        self.title = title
        self.console = console
        self._on_close = on_close

    def create(self, request: NodeRequest, timeout: float, pause: Callable[[float], None]) -> Node:
        """Raises ProvisioningError with the server's own words, or naming a foreign owner."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=10),
            stop=tenacity.stop_after_delay(timeout),
            sleep=pause,
            reraise=True,
        )
        deadline = time.monotonic() + timeout
        try:
            operation = attempts(self._submit, request)
            return self._await_ready(request, operation, deadline, pause)
        except TryAgain as error:
            raise ProvisioningError(
                f"{request.node_id}: gave up after {timeout:g} s: {error}"
            ) from error
        except exceptions.GoogleAPICallError as error:
            raise ProvisioningError(explain(request, error)) from error
        except GoogleAuthError as error:
            raise ProvisioningError(f"{error}; {LOG_IN}") from error

    def _submit(self, request: NodeRequest) -> Any | None:
        """The operation of one CreateNode call; None when the node is there already and ours."""
        call = {"parent": request.parent, "node_id": request.node_id}
        call["node"] = tpu_v2.Node(request.body)
        try:
            return self.client.create_node(request=call, timeout=CALL_SECONDS)
        except exceptions.AlreadyExists:
            self._settle(request, self.get(request.name))
        except TRANSIENT as error:
            node = self.get(request.name)
            if node is None:
                raise TryAgain(error.message) from error
            self._settle(request, node)
        return None

    def _settle(self, request: NodeRequest, node: Node | None) -> None:
        """Decide on a node that has the wanted name already."""
        if node is None:
            raise TryAgain("the name was taken and is free again")
        if not same_owner(node.labels, request.body["labels"]):
            owner = node.labels.get(LABEL_OWNER, "somebody who does not use launcher")
            raise ProvisioningError(
                f"node {node.name} exists and belongs to {owner}"
                f" (run {node.labels.get(LABEL_RUN, 'unknown')}); choose another name="
            )
        if node.state is NodeState.DEAD:
            self.delete(node.name, CALL_SECONDS * 5)
            raise TryAgain(f"a {node.raw_state} node of this name was removed")
        if node.state is NodeState.DELETING:
            raise TryAgain("a node of this name is still being deleted")
        if node.accelerator_type != request.body["accelerator_type"]:
            raise ProvisioningError(
                f"node {node.name} is up as {node.accelerator_type}, not as"
                f" {request.body['accelerator_type']}: take it down first (`launcher down`)"
            )

    def _await_ready(
        self,
        request: NodeRequest,
        operation: Any | None,
        deadline: float,
        pause: Callable[[float], None],
    ) -> Node:
        """The operation tells of failure, the node of success: some operations never end."""
        delay = 0.1
        while True:
            if operation is not None and is_done(operation):
                operation.result(timeout=CALL_SECONDS)  # raises the error it ended in
                operation = None
            node = self.get(request.name)
            if node is not None and node.state is NodeState.READY:
                return node
            if operation is None and (node is None or node.state is not NodeState.PENDING):
                state = node.raw_state if node else "GONE"
                raise SliceLost(f"{request.name} was created and is {state} already")
            if time.monotonic() > deadline:
                state = node.raw_state if node else "not there"
                raise ProvisioningError(
                    f"{request.name} is still {state} at the deadline (cluster.provision_timeout)"
                )
            pause(delay)
            delay = min(delay * 1.5, 5.0)

    def get(self, name: str) -> Node | None:
        try:
            return to_node(self._call(self.client.get_node, name=name))
        except exceptions.NotFound:
            return None

    def list(self, labels: Mapping[str, str]) -> Sequence[Node]:
        parent = f"projects/{self.project}/locations/-"
        nodes = map(to_node, self._call(self.client.list_nodes, parent=parent))
        return [node for node in nodes if labels.items() <= node.labels.items()]

    def delete(self, name: str, timeout: float) -> None:
        """Asks again until GetNode says NOT_FOUND. Raises ProvisioningError at the deadline."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=tenacity.wait_exponential(multiplier=0.02, max=5),
            stop=tenacity.stop_after_delay(timeout),
            reraise=True,
        )
        try:
            attempts(self._delete_once, name)
        except (TryAgain, exceptions.GoogleAPICallError, GoogleAuthError) as error:
            raise ProvisioningError(f"{name} could not be deleted: {error}") from error

    def _delete_once(self, name: str) -> None:
        node = self.get(name)
        if node is None:
            return
        if node.state is not NodeState.DELETING:
            try:
                self.client.delete_node(name=name, timeout=CALL_SECONDS)
            except exceptions.NotFound:
                return
            except (*TRANSIENT, exceptions.FailedPrecondition) as error:
                raise TryAgain(error.message) from error
        if self.get(name) is not None:
            raise TryAgain("still being deleted")

    def close(self) -> None:
        self.client.transport.close()
        self._on_close()

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        """An idempotent call, tried again for a while when the service is away."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TRANSIENT),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=5),
            stop=tenacity.stop_after_delay(AWAY_SECONDS),
            reraise=True,
        )
        try:
            return attempts(method, **arguments, timeout=CALL_SECONDS)
        except exceptions.NotFound:
            raise
        except exceptions.GoogleAPICallError as error:
            call = ", ".join(arguments.values())
            raise ProvisioningError(f"{call}: {type(error).__name__}: {error.message}") from error
        except GoogleAuthError as error:
            raise ProvisioningError(f"{error}; {LOG_IN}") from error


def is_done(operation: Any) -> bool:
    """Whether a long-running operation has ended; not known, hence no, while the API is away."""
    try:
        return bool(operation.done(retry=None))
    except TRANSIENT:
        return False


def to_node(node: tpu_v2.Node) -> Node:
    return Node(
        name=node.name,
        state=STATES.get(node.state.name, NodeState.PENDING),
        raw_state=node.state.name,
        accelerator_type=node.accelerator_type,
        labels=dict(node.labels),
        addresses=tuple(endpoint.ip_address for endpoint in node.network_endpoints),
        created=node.create_time.isoformat() if node.create_time else "",
    )


def same_owner(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(found.get(label) == wanted[label] for label in OWNERSHIP)


def explain(request: NodeRequest, error: exceptions.GoogleAPICallError) -> str:
    """The server's words, after what was asked for and where."""
    wanted = f"{request.body['accelerator_type']} in {request.parent.split('/')[-1]}"
    return f"{request.node_id} ({wanted}): {type(error).__name__}: {error.message}"


def how_to_read_the_console(name: str, worker: int) -> str:
    """The Cloud TPU API has no call for it."""
    zone, node = name.split("/")[3], name.split("/")[-1]
    return (
        f"read it with: gcloud compute tpus tpu-vm ssh {node} --zone {zone} --worker {worker}"
        " --command 'tail -n 40 /var/log/syslog'"
    )


def open_provider(spec: ProviderSpec, _nodes: Sequence[str]) -> GoogleProvider:
    assert spec.project is not None  # required of this kind when the configuration was checked
    title = f"Cloud TPU, project {spec.project}"
    try:
        client = tpu_v2.TpuClient()
    except GoogleAuthError as error:
        raise ProvisioningError(f"{error}; {LOG_IN}") from error
    return GoogleProvider(spec.project, client, ENDPOINT, title, console=how_to_read_the_console)


def is_running(_spec: ProviderSpec) -> bool:
    return True
