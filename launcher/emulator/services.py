"""Every REST service: its routes, by its host name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.emulator import (
    api_compute,
    api_iam,
    api_project,
    api_quota,
    api_rest_tpu,
    api_storage,
)
from launcher.emulator.http_status import COMPUTE_API
from launcher.emulator.rest import Route
from launcher.emulator.rpc import TPU_API

SERVICES: Mapping[str, Sequence[Route]] = {
    TPU_API: api_rest_tpu.ROUTES,
    COMPUTE_API: api_compute.ROUTES,
    "iam.googleapis.com": api_iam.ROUTES,
    "cloudresourcemanager.googleapis.com": api_project.RESOURCE_MANAGER,
    "serviceusage.googleapis.com": (*api_project.SERVICE_USAGE, *api_quota.ROUTES),
    "storage.googleapis.com": api_storage.ROUTES,
}
