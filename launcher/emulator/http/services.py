"""Every REST service: its routes, by its host name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.emulator.compute import api as api_compute
from launcher.emulator.http.routes import Route
from launcher.emulator.http.status import COMPUTE_API
from launcher.emulator.project import api as api_project
from launcher.emulator.project import iam as api_iam
from launcher.emulator.project import quotas as api_quota
from launcher.emulator.project import storage as api_storage
from launcher.emulator.rpc import TPU_API
from launcher.emulator.tpu import api_rest as api_rest_tpu

SERVICES: Mapping[str, Sequence[Route]] = {
    TPU_API: api_rest_tpu.ROUTES,
    COMPUTE_API: api_compute.ROUTES,
    "iam.googleapis.com": api_iam.ROUTES,
    "cloudresourcemanager.googleapis.com": api_project.RESOURCE_MANAGER,
    "serviceusage.googleapis.com": (*api_project.SERVICE_USAGE, *api_quota.ROUTES),
    "storage.googleapis.com": api_storage.ROUTES,
}
