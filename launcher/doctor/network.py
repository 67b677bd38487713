"""Checks of the way between TPU VMs, the coordinator and the outside."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.api_core import exceptions

from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, Skip, ok, problem, warning
from launcher.providers import KINDS
from launcher.providers.services import COMPUTE, Services
from launcher.provisioning.prices import region_of
from launcher.remote.vm import name_of, zone_of

Json = Mapping[str, Any]
PRODUCT = Path("/sys/class/dmi/id/product_name")  # of a VM of Google's: Google Compute Engine
DEFAULT = "default"
CONNECT_SECONDS = 5.0
PORTS = {"https": 443, "http": 80}  # of a Ray dashboard's URL
DASHBOARD = 8265


def private_access(context: Context) -> Iterator[Finding]:
    """Without external addresses, TPU VMs reach Google's APIs through Private Google Access, and
    package indexes through Cloud NAT.
    """
    machine, cloud = context.spec.cluster.machine, context.cloud
    if machine.external_ips:
        raise Skip("TPU VMs have external addresses")
    if cloud.emulated:
        raise Skip("emulated TPU VMs use this machine's network")
    for region in dict.fromkeys(map(region_of, context.zones)):
        yield from look_at_region(
            cloud.services, cloud.project, region, machine.network, machine.subnetwork
        )


def look_at_region(
    services: Services, project: str, region: str, network: str | None, subnetwork: str | None
) -> Iterator[Finding]:
    """`network` and `subnetwork` are names, or full ones that may lie in another project."""
    full = (subnetwork or "").split("/")
    owner = full[1] if full[0] == "projects" else project
    parent = f"/compute/v1/projects/{owner}/regions/{region}"
    subnets = list(services.items(COMPUTE, f"{parent}/subnetworks", "items", CALL_SECONDS))
    found = chosen(subnets, network, subnetwork)
    if found is None:
        text = f"no subnetwork {last(subnetwork) or f'of {last(network) or DEFAULT}'} in {region}"
        yield problem(text, f"gcloud compute networks subnets list --project={owner}")
        return
    name = found["name"]
    if found.get("privateIpGoogleAccess"):
        yield ok(f"subnetwork {name} in {region} has Private Google Access")
    else:
        yield problem(
            f"subnetwork {name} in {region} has no Private Google Access: no bucket can be read",
            f"gcloud compute networks subnets update {name} --region={region} --project={owner}"
            " --enable-private-ip-google-access",
        )
    routers = services.items(COMPUTE, f"{parent}/routers", "items", CALL_SECONDS)
    yield nat(list(routers), found, region, owner)


def chosen(subnets: Sequence[Json], network: str | None, subnetwork: str | None) -> Json | None:
    if subnetwork:
        return next((each for each in subnets if each["name"] == last(subnetwork)), None)
    wanted = last(network) or DEFAULT
    return next((each for each in subnets if last(each["network"]) == wanted), None)


def nat(routers: Sequence[Json], subnet: Json, region: str, project: str) -> Finding:
    network = last(subnet["network"])
    with_nat = [r["name"] for r in routers if r.get("nats") and last(r["network"]) == network]
    if with_nat:
        return ok(f"Cloud NAT in {region}: {', '.join(with_nat)}")
    return warning(
        f"no Cloud NAT in {region}: TPU VMs reach no package index",
        f"gcloud compute routers create launcher-{region} --network={network} --region={region}"
        f" --project={project}",
        f"gcloud compute routers nats create launcher --router=launcher-{region}"
        f" --region={region} --project={project} --auto-allocate-nat-external-ips"
        " --nat-all-subnet-ip-ranges",
    )


def last(name: str | None) -> str:
    return (name or "").rpartition("/")[2]


def coordinator(context: Context) -> Iterator[Finding]:
    """Whether the TPU VMs will reach the head of the Ray cluster."""
    place = context.spec.cluster.coordinator
    match place:
        case "here":
            yield here(context)
        case "vm":
            yield from vm(context)
        case "host0":
            yield ok("on the first TPU VM itself")
        case _:
            yield connect(place)


def here(context: Context) -> Finding:
    kind = KINDS[context.spec.provider.kind]
    address = kind.head_address()
    if not kind.billed or "Google Compute Engine" in product():
        return ok(f"on this machine, {address}")
    return warning(
        f"TPU VMs connect to this machine, {address}, which is no VM of Google's",
        "cluster.coordinator=vm has the head on a VM beside them",
    )


def product() -> str:
    return PRODUCT.read_text(errors="replace") if PRODUCT.is_file() else ""


def vm(context: Context) -> Iterator[Finding]:
    settings, project = context.spec.cluster.vm, context.cloud.project
    name, zone = name_of(context.spec, context.owner), zone_of(context.spec)
    path = f"/compute/v1/projects/{project}/zones/{zone}"
    services = context.cloud.services
    try:
        found = services.get(COMPUTE, f"{path}/instances/{name}", CALL_SECONDS)
    except exceptions.NotFound:
        services.get(COMPUTE, f"{path}/machineTypes/{settings.machine_type}", CALL_SECONDS)
        yield ok(f"VM {name} in {zone} will be made, type {settings.machine_type}")
    else:
        yield ok(f"VM {name} in {zone} is {found['status']}")


def connect(place: str) -> Finding:
    url = urlsplit(place if "//" in place else f"//{place}")
    port = url.port or PORTS.get(url.scheme, DASHBOARD)
    try:
        socket.create_connection((url.hostname or "", port), CONNECT_SECONDS).close()
    except OSError as error:
        return problem(
            f"nothing answers at {url.hostname}:{port}: {error}",
            "is the cluster up, and the port forwarded? cluster.coordinator=… is its dashboard",
        )
    return ok(f"{url.hostname}:{port} answers")
