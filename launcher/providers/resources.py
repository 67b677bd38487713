"""Messages of google-cloud-tpu → `Resource`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.providers import Resource
from launcher.providers.states import NODE_STATES, QUEUED_STATES, meaning

if TYPE_CHECKING:
    from google.cloud import tpu_v2


def from_node(node: tpu_v2.Node) -> Resource:
    return Resource(
        name=node.name,
        state=meaning(NODE_STATES, node.state.name),
        raw_state=node.state.name,
        accelerator_type=node.accelerator_type,
        labels=dict(node.labels),
        addresses=tuple(endpoint.ip_address for endpoint in node.network_endpoints),
        created=node.create_time.isoformat() if node.create_time else "",
        queued_resource=node.queued_resource,
        health=node.health.name if node.health else "",
        symptoms=tuple(
            (symptom.symptom_type.name, symptom.worker_id, symptom.details)
            for symptom in node.symptoms
        ),
    )


def from_queued_resource(queued: tpu_v2.QueuedResource) -> Resource:
    """Its labels are those of the node that it asks for."""
    specs = queued.tpu.node_spec
    node = specs[0].node if specs else None
    word = queued.state.state.name
    failed = queued.state.failed_data.error if "failed_data" in queued.state else None
    return Resource(
        name=queued.name,
        state=meaning(QUEUED_STATES, word),
        raw_state=word,
        accelerator_type=node.accelerator_type if node else "",
        labels=dict(node.labels) if node else {},
        created=queued.create_time.isoformat() if queued.create_time else "",
        error=(failed.code, failed.message) if failed and word == "FAILED" else None,
    )
