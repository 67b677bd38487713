"""Checks of the bucket that checkpoints go into: that it exists, and lies near the slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.api_core import exceptions

from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, Skip, ok, problem, warning
from launcher.providers import KINDS
from launcher.providers.services import STORAGE
from launcher.provisioning.prices import region_of

# https://cloud.google.com/storage/docs/locations#location-mr
CONTINENTS: Mapping[str, str] = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}


def bucket(context: Context) -> Iterator[Finding]:
    name = context.bucket
    if name is None:
        yield from without_bucket(context)
        return
    regions = list(dict.fromkeys(map(region_of, context.zones)))
    try:
        found = context.cloud.services.get(STORAGE, f"/storage/v1/b/{name}", CALL_SECONDS)
    except exceptions.NotFound:
        yield problem(f"no bucket gs://{name}", creation(name, regions[0], context))
        return
    location = str(found["location"])
    far = [region for region in regions if not is_near(found, region)]
    if far:
        yield warning(
            f"gs://{name} is in {location}, slices may be in {', '.join(far)}: each checkpoint that"
            " crosses regions takes longer, and is charged for",
            f"gcloud storage buckets create gs://{name}-{far[0]} --location={far[0]}",
            "https://cloud.google.com/storage/pricing#network-buckets",
        )
    else:
        yield ok(f"gs://{name} is in {location}, near the slices")


def creation(name: str, region: str, context: Context) -> str:
    """The command that makes a bucket; the emulator forgets its buckets when it ends."""
    if context.cloud.emulated:
        return f"while an emulator runs: python -m launcher.emulator bucket {name} {region}"
    return (
        f"gcloud storage buckets create gs://{name} --project={context.cloud.project}"
        f" --location={region}"
    )


def is_near(bucket: Mapping[str, Any], region: str) -> bool:
    """Whether a region is one of those that a bucket's objects are in."""
    location = str(bucket["location"]).upper()
    placed = bucket.get("customPlacementConfig", {}).get("dataLocations", ())
    if region.upper() in (location, *placed):
        return True
    return location in CONTINENTS and region.startswith(CONTINENTS[location])


def without_bucket(context: Context) -> Iterator[Finding]:
    workload = context.spec.workload
    if workload is None or KINDS[context.spec.provider.kind].shares_disk:
        raise Skip("no bucket is asked for")
    where = workload.checkpoint_dir or "the hosts' own disks"
    yield warning(
        f"checkpoints would be in {where}, and lost with the slice",
        "workload.checkpoint_dir=gs://…, if the program saves any",
    )
