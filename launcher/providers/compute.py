"""Clients of Compute Engine: of Google's, or of the emulator's REST front.

google-cloud-compute polls operations with a client of its own, which it makes on first use for
compute.googleapis.com whatever the host of its transport; so it gets one that goes the same way.
"""

from __future__ import annotations

from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google.cloud.compute_v1.services.firewalls.transports import FirewallsRestTransport
from google.cloud.compute_v1.services.global_operations.transports import (
    GlobalOperationsRestTransport,
)
from google.cloud.compute_v1.services.instances.transports import InstancesRestTransport
from google.cloud.compute_v1.services.zone_operations.transports import ZoneOperationsRestTransport


def instances_client(rest: str | None) -> compute_v1.InstancesClient:
    """`rest` is the URL of an emulator, `http://HOST:PORT`; None is Google.

    Raises google.auth's DefaultCredentialsError if there are no credentials for Google.
    """
    if rest is None:
        return compute_v1.InstancesClient()
    operations = compute_v1.ZoneOperationsClient(transport=_to(rest, ZoneOperationsRestTransport))
    transport = _to(rest, InstancesRestTransport)
    transport._extended_operations_services["zone_operations"] = operations
    return compute_v1.InstancesClient(transport=transport)


def firewalls_client(rest: str | None) -> compute_v1.FirewallsClient:
    """As `instances_client`."""
    if rest is None:
        return compute_v1.FirewallsClient()
    operations = compute_v1.GlobalOperationsClient(
        transport=_to(rest, GlobalOperationsRestTransport)
    )
    transport = _to(rest, FirewallsRestTransport)
    transport._extended_operations_services["global_operations"] = operations
    return compute_v1.FirewallsClient(transport=transport)


def _to(rest: str, transport: Any) -> Any:
    """A transport to that URL, without credentials and past any proxy."""
    made = transport(host=rest, credentials=AnonymousCredentials())
    made._session.trust_env = False
    return made
