"""What the API refuses at once, before any operation begins.

Limits of names and labels are Compute Engine's (the VMs behind a node carry them); those of
metadata are https://cloud.google.com/compute/docs/metadata/setting-custom-metadata.
"""

from __future__ import annotations

import re

from launcher.accelerators import Accelerator, all_types, lookup
from launcher.emulator.tpu.errors import ApiError, bad_field, bad_label, bad_request, not_in_zone
from launcher.emulator.tpu.node import accelerator_kind
from launcher.emulator.tpu.wire import AcceleratorKind, v2

NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
MAX_LABELS = 64
MAX_DESCRIPTION = 512
MAX_METADATA_VALUE, MAX_METADATA = 256 * 1024, 512 * 1024  # bytes
# Versions that exist without being the default of any accelerator type.
OTHER_VERSIONS = ("tpu-vm-base", "tpu-vm-v4-base", "v2-alpha-tpuv5-lite-cos", "v2-alpha-tpuv6")


def runtime_versions() -> list[str]:
    """Every runtime version that the emulator knows, in order."""
    types = map(lookup, all_types())
    defaults = {name for t in types for name in (t.runtime_version_jax, t.runtime_version_torch)}
    return sorted({name for name in defaults if name} | set(OTHER_VERSIONS))


def check_new_node(zone: str, node_id: str, node: v2.Node) -> Accelerator:
    """The accelerator type of a node that may be created; ApiError for any other."""
    if not NODE_ID.fullmatch(node_id):
        raise bad_field("node_id", node_id, f" It must match {NODE_ID.pattern}.")
    if node.runtime_version not in runtime_versions():
        raise bad_field("runtime_version", node.runtime_version)
    if "network_config" in node and node.network_configs:
        raise bad_request("network_config and network_configs cannot both be set")
    check_fields(node)
    return _accelerator(zone, node)


def check_fields(node: v2.Node) -> None:
    """The rules of the fields that an update may change as well."""
    if len(node.description) > MAX_DESCRIPTION:
        raise bad_request(f"description is longer than {MAX_DESCRIPTION} characters")
    _check_labels(node)
    sizes = [len(key.encode()) + len(value.encode()) for key, value in node.metadata.items()]
    if sum(sizes) > MAX_METADATA or max(sizes, default=0) > MAX_METADATA_VALUE:
        raise bad_request(
            f"metadata is larger than {MAX_METADATA_VALUE} bytes a value or {MAX_METADATA} in all"
        )


def _check_labels(node: v2.Node) -> None:
    if len(node.labels) > MAX_LABELS:
        raise bad_label(f"more than {MAX_LABELS} labels")
    for key, value in node.labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise bad_label(f'key "{key}" does not match {LABEL_KEY.pattern}')
        if not LABEL_VALUE.fullmatch(value):
            raise _bad_label_value(key, value)


def _bad_label_value(key: str, value: str) -> ApiError:
    for index, character in enumerate(value):
        if not LABEL_VALUE.fullmatch(character):
            where = f"contains invalid character '{character}' at index {index}"
            return bad_label(f'value "{value}" {where} for key "{key}"')
    return bad_label(f'value "{value}" for key "{key}" is longer than 63 characters')


def _accelerator(zone: str, node: v2.Node) -> Accelerator:
    if bool(node.accelerator_type) == ("accelerator_config" in node):
        raise bad_request("exactly one of accelerator_type and accelerator_config must be set")
    name = node.accelerator_type or _type_of(node.accelerator_config)
    if name not in all_types() or zone not in lookup(name).zones:
        raise not_in_zone(name, zone)
    return lookup(name)


def _type_of(config: v2.AcceleratorConfig) -> str:
    """The accelerator type of a generation and a topology."""
    for known in map(lookup, all_types()):
        if (accelerator_kind(known.generation), known.topology) == (config.type_, config.topology):
            return known.accelerator_type
    return f"{AcceleratorKind(config.type_).name} {config.topology}"
