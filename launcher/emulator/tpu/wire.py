"""The API's message types, without the rest of the client library."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

Extras: TypeAlias = Mapping[str, Any]
"""What a user set that v2 has no field for, in the JSON form of v2alpha1."""
NO_EXTRAS: Extras = MappingProxyType({})


def message_types(package_name: str) -> ModuleType:
    """The module of message types of a package of the client library, under its own name.

    Importing the package around it would load its clients, 0.4 s in which nobody can connect.
    """
    name = f"{package_name}.types.cloud_tpu"
    if loaded := sys.modules.get(name):
        return loaded
    package = importlib.util.find_spec(package_name)
    if package is None or not package.submodule_search_locations:
        raise ImportError("google-cloud-tpu is not installed")
    file = Path(package.submodule_search_locations[0], "types", "cloud_tpu.py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"google-cloud-tpu has no {file}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from google.cloud.tpu_v2.types import cloud_tpu as v2
else:
    v2 = message_types("google.cloud.tpu_v2")

__all__ = [
    "NO_EXTRAS",
    "AcceleratorKind",
    "Extras",
    "Health",
    "QueuedState",
    "State",
    "SymptomType",
    "message_types",
    "v2",
]

# Enums of the client library have no types of their own.
State: Any = v2.Node.State
QueuedState: Any = v2.QueuedResourceState.State
Health: Any = v2.Node.Health
SymptomType: Any = v2.Symptom.SymptomType
AcceleratorKind: Any = v2.AcceleratorConfig.Type
