"""What Compute Engine refuses at once in the body of a call, before any operation begins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.emulator.compute.machine_types import MACHINE_TYPES, MachineType
from launcher.emulator.compute.names import NAME, missing, path
from launcher.emulator.http.fields import invalid, rows, take
from launcher.emulator.tpu.checks import LABEL_KEY, LABEL_VALUE, MAX_LABELS, MAX_METADATA
from launcher.emulator.tpu.checks import MAX_METADATA_VALUE as MAX_VALUE

Json = Mapping[str, Any]
_IMAGE = re.compile(r"(projects/[^/]+/)?global/images/(family/)?[^/]+")
_PORTS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?")


def check_name(body: Json) -> str:
    """The name of a new resource."""
    name: str = take(body, "name", str)
    if not NAME.fullmatch(name):
        raise invalid("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
    return name


def check_instance(scope: str, body: Json) -> MachineType:
    """The machine type of an instance that may be made in `projects/P/zones/Z`."""
    check_labels(take(body, "labels", dict))
    check_metadata(take(body, "metadata", dict))
    take(take(body, "tags", dict), "items", list, "resource.tags")
    take(body, "scheduling", dict)
    for account in rows(body, "serviceAccounts"):
        take(account, "email", str, "resource.serviceAccounts")
        take(account, "scopes", list, "resource.serviceAccounts")
    _check_disks(body)
    _check_networks(body)
    return _machine_type(scope, take(body, "machineType", str))


def _machine_type(scope: str, given: str) -> MachineType:
    """`given` is `zones/Z/machineTypes/T`, with or without what may stand before it."""
    zone, found = scope.rpartition("/")[2], path(given)
    match = re.fullmatch(r"(?:projects/[^/]+/)?zones/([^/]+)/machineTypes/([^/]+)", found)
    if not match or match[1] != zone:
        hint = f"The URL is malformed or of another zone than {zone}."
        raise invalid("resource.machineType", given, hint)
    if match[2] not in MACHINE_TYPES:
        raise invalid("resource.machineType", given, "The referenced resource does not exist.")
    return MACHINE_TYPES[match[2]]


def _check_disks(body: Json) -> None:
    disks = rows(body, "disks")
    if sum(bool(disk.get("boot")) for disk in disks) != 1:
        raise invalid("resource.disks", len(disks), "Exactly one disk must be the boot disk.")
    for index, disk in enumerate(disks):
        where = f"resource.disks[{index}]"
        image = take(take(disk, "initializeParams", dict, where), "sourceImage", str, where)
        if disk.get("boot") and not image and not disk.get("source"):
            raise invalid(f"{where}.initializeParams.sourceImage", "", "No image and no source.")
        if image and not _IMAGE.fullmatch(path(image)):
            hint = "The URL is malformed."
            raise invalid(f"{where}.initializeParams.sourceImage", image, hint)


def _check_networks(body: Json) -> None:
    interfaces = rows(body, "networkInterfaces")
    if not interfaces:
        hint = "At least one network interface is required."
        raise invalid("resource.networkInterfaces", "", hint)
    for index, interface in enumerate(interfaces):
        where = f"resource.networkInterfaces[{index}]"
        take(interface, "network", str, where)
        rows(interface, "accessConfigs", where)


def check_labels(labels: Json) -> None:
    if len(labels) > MAX_LABELS:
        raise invalid("resource.labels", len(labels), f"More than {MAX_LABELS} labels.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise invalid("resource.labels", key, f"It does not match {LABEL_KEY.pattern}")
        if not LABEL_VALUE.fullmatch(str(value)):
            raise invalid("resource.labels", value, f"It does not match {LABEL_VALUE.pattern}")


def check_metadata(metadata: Json) -> None:
    items = rows(metadata, "items", "resource.metadata")
    keys = [take(item, "key", str, "resource.metadata.items") for item in items]
    sizes = [
        len(key.encode()) + len(take(item, "value", str, "resource.metadata.items").encode())
        for key, item in zip(keys, items, strict=True)
    ]
    for key in keys:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", key):
            raise invalid("resource.metadata.items", key, "It is no metadata key.")
    if len(set(keys)) < len(keys):
        raise invalid("resource.metadata.items", ", ".join(keys), "Duplicate metadata keys.")
    if sum(sizes) > MAX_METADATA or max(sizes, default=0) > MAX_VALUE:
        hint = f"Metadata is larger than {MAX_VALUE} bytes a value or {MAX_METADATA} in all."
        raise invalid("resource.metadata", sum(sizes), hint)


def check_firewall(body: Json) -> None:
    """A rule allows or denies something, to somebody."""
    allowed, denied = rows(body, "allowed"), rows(body, "denied")
    if bool(allowed) == bool(denied):
        raise invalid("resource.allowed", "", "Exactly one of allowed and denied must be set.")
    for rule in allowed or denied:
        if not take(rule, "IPProtocol", str):
            raise invalid("resource.allowed[0].IPProtocol", "", "It must be set.")
        for port in take(rule, "ports", list):
            if not _PORTS.fullmatch(str(port)):
                raise invalid("resource.allowed[0].ports", port, "It is no port or range.")
    for key in ("sourceRanges", "sourceTags", "targetTags"):
        take(body, key, list)


def check_machine_type(scope: str, name: str) -> MachineType:
    if name not in MACHINE_TYPES:
        raise missing(f"{scope}/machineTypes/{name}")
    return MACHINE_TYPES[name]
