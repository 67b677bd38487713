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
from google.cloud import tpu_v2

from launcher.errors import ProvisioningError
from launcher.providers import Node, NodeRequest, NodeState

if TYPE_CHECKING:
    from launcher.spec import ProviderSpec

CALL_SECONDS = 60.0
ENDPOINT = "tpu.googleapis.com:443"
OWNERSHIP = ("launcher-run", "launcher-owner")  # labels that tell whose a node is

# Errors that pass by themselves: the service is away, slow, or busy with this very node.
TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Aborted,
    exceptions.Cancelled,
)
STATES: Mapping[str, NodeState] = {
    "CREATING": NodeState.COMING,
    "STARTING": NodeState.COMING,
    "RESTARTING": NodeState.COMING,
    "REIMAGING": NodeState.COMING,
    "REPAIRING": NodeState.COMING,
    "UNHIDING": NodeState.COMING,
    "UNKNOWN": NodeState.COMING,
    "STATE_UNSPECIFIED": NodeState.COMING,
    "READY": NodeState.READY,
    "PREEMPTED": NodeState.LOST,
    "TERMINATED": NodeState.LOST,
    "STOPPED": NodeState.LOST,
    "STOPPING": NodeState.LOST,
    "HIDING": NodeState.LOST,
    "HIDDEN": NodeState.LOST,
    "DELETING": NodeState.GOING,
}


class Retry(Exception):
    """Something passing stood in the way; the same step may be taken again."""


class GoogleProvider:
    """Nodes of one project, through a `TpuClient`; `endpoint` is the client's."""

    def __init__(self, project: str, client: Any, endpoint: str, title: str) -> None:
        self.project = project
        self.client = client
        self.endpoint = endpoint
        self.title = title

    def create(self, request: NodeRequest, timeout: float, pause: Callable[[float], None]) -> Node:
        """Raises ProvisioningError with the server's own words, or naming a foreign owner."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Retry),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=10),
            stop=tenacity.stop_after_delay(timeout),
            sleep=pause,
            reraise=True,
        )
        deadline = time.monotonic() + timeout
        try:
            operation = attempts(self._submit, request)
            return self._await_ready(request, operation, deadline, pause)
        except Retry as error:
            raise ProvisioningError(
                f"{request.node_id}: gave up after {timeout:g} s: {error}"
            ) from error
        except exceptions.GoogleAPICallError as error:
            raise ProvisioningError(explain(request, error)) from error

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
                raise Retry(error.message) from error
            self._settle(request, node)
        return None

    def _settle(self, request: NodeRequest, node: Node | None) -> None:
        """Decide on a node that has the wanted name already."""
        if node is None:
            raise Retry("the name was taken and is free again")
        if not same_owner(node.labels, request.body["labels"]):
            owner = node.labels.get("launcher-owner", "somebody who does not use launcher")
            raise ProvisioningError(
                f"node {node.name} exists and belongs to {owner}"
                f" (run {node.labels.get('launcher-run', 'unknown')}); choose another name="
            )
        if node.state is NodeState.LOST:
            self.delete(node.name, CALL_SECONDS * 5)
            raise Retry(f"a {node.raw_state} node of this name was removed")
        if node.state is NodeState.GOING:
            raise Retry("a node of this name is still being deleted")
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
            if operation is not None and operation.done():
                operation.result(timeout=CALL_SECONDS)  # raises the error it ended in
                operation = None
            node = self.get(request.name)
            if node is not None and node.state is NodeState.READY:
                return node
            if operation is None and (node is None or node.state is not NodeState.COMING):
                state = node.raw_state if node else "gone"
                raise ProvisioningError(f"{request.name} was created and is {state} already")
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
            retry=tenacity.retry_if_exception_type(Retry),
            wait=tenacity.wait_exponential(multiplier=0.02, max=5),
            stop=tenacity.stop_after_delay(timeout),
            reraise=True,
        )
        try:
            attempts(self._delete_once, name)
        except (Retry, exceptions.GoogleAPICallError) as error:
            raise ProvisioningError(f"{name} could not be deleted: {error}") from error

    def _delete_once(self, name: str) -> None:
        node = self.get(name)
        if node is None:
            return
        if node.state is not NodeState.GOING:
            try:
                self.client.delete_node(name=name, timeout=CALL_SECONDS)
            except exceptions.NotFound:
                return
            except (*TRANSIENT, exceptions.FailedPrecondition) as error:
                raise Retry(error.message) from error
        if self.get(name) is not None:
            raise Retry("still being deleted")

    def console(self, name: str, worker: int) -> str:
        zone, node = name.split("/")[3], name.split("/")[-1]
        return (
            f"read it with: gcloud compute tpus tpu-vm ssh {node} --zone {zone} --worker {worker}"
            " --command 'tail -n 40 /var/log/syslog'"
        )

    def close(self) -> None:
        self.client.transport.close()

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        """An idempotent call, tried again for a minute while the service is away."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TRANSIENT),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=5),
            stop=tenacity.stop_after_delay(CALL_SECONDS),
            reraise=True,
        )
        try:
            return attempts(method, **arguments, timeout=CALL_SECONDS)
        except exceptions.NotFound:
            raise
        except exceptions.GoogleAPICallError as error:
            call = ", ".join(arguments.values())
            raise ProvisioningError(f"{call}: {type(error).__name__}: {error.message}") from error


def to_node(node: tpu_v2.Node) -> Node:
    return Node(
        name=node.name,
        state=STATES.get(node.state.name, NodeState.COMING),
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


def open_provider(spec: ProviderSpec) -> GoogleProvider:
    assert spec.project is not None  # required of this kind when the configuration was checked
    title = f"Cloud TPU, project {spec.project}"
    return GoogleProvider(spec.project, tpu_v2.TpuClient(), ENDPOINT, title)
