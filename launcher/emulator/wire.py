"""The API's message types, without the rest of the client library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

MODULE = "google.cloud.tpu_v2.types.cloud_tpu"


def _message_types() -> ModuleType:
    """The module of message types, under its own name.

    Importing the package around it would load both clients, 0.4 s in which nobody can connect.
    """
    if loaded := sys.modules.get(MODULE):
        return loaded
    package = importlib.util.find_spec("google.cloud.tpu_v2")
    if package is None or not package.submodule_search_locations:
        raise ImportError("google-cloud-tpu is not installed")
    file = Path(package.submodule_search_locations[0], "types", "cloud_tpu.py")
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"google-cloud-tpu has no {file}")
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from google.cloud.tpu_v2.types import cloud_tpu as v2
else:
    v2 = _message_types()

__all__ = ["AcceleratorKind", "Health", "State", "v2"]

# Enums of the client library have no types of their own.
State: Any = v2.Node.State
Health: Any = v2.Node.Health
AcceleratorKind: Any = v2.AcceleratorConfig.Type
