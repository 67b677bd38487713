"""Checks of the provider: who asks, whether the project is there, and which APIs it has enabled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from launcher.doctor.answers import LOG_IN, enabling
from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, Skip, ok, problem, warning
from launcher.errors import LauncherError, ProvisioningError
from launcher.providers.services import (
    COMPUTE,
    IAM,
    RESOURCE_MANAGER,
    SERVICE_USAGE,
    STORAGE,
    TPU,
    Services,
)
from launcher.spec import Spec

MOST_SKEW = 60.0  # seconds; tokens are refused from 300 on


def provider(context: Context) -> Iterator[Finding]:
    """The emulator starts, or Google's client finds credentials."""
    try:
        yield ok(context.cloud.open().title)
    except LauncherError as error:
        if context.cloud.emulated:
            yield problem(str(error), "see its log; provider.state_dir=… chooses another folder")
        else:  # in the library's own words: what to do stands below
            yield problem(str(error.__cause__ or error), LOG_IN)


def credentials(context: Context) -> Iterator[Finding]:
    """Whose they are, and that Google gives a token for them."""
    if context.cloud.emulated:
        raise Skip("the emulator asks for none")
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    from launcher.providers.rest import find_credentials

    try:
        found = find_credentials()  # also those with which no provider can be opened
    except ProvisioningError:
        raise Skip("there are none, see above") from None
    try:
        found.refresh(Request())
    except GoogleAuthError as error:
        yield problem(f"{whose(found)}: no token: {error}", LOG_IN)
        return
    yield ok(whose(found))
    if is_user(found) and not found.quota_project_id:
        project = context.cloud.project
        yield warning(
            "a user's login without a quota project: some APIs refuse it",
            f"gcloud auth application-default set-quota-project {project}",
        )


def is_user(found: Any) -> bool:
    from google.oauth2.credentials import Credentials

    return isinstance(found, Credentials)


def whose(found: Any) -> str:
    email = getattr(found, "service_account_email", "") or getattr(found, "account", "")
    return email or "a user's own login"


def clock(context: Context) -> Iterator[Finding]:
    yield compare_clocks(context.cloud.services)


def compare_clocks(services: Services) -> Finding:
    """This machine's with the Date of an answer."""
    response = services.session.head(services.root(TPU), timeout=CALL_SECONDS)
    if "Date" not in response.headers:
        raise Skip("the answer tells no time")
    ahead = time.time() - parsedate_to_datetime(response.headers["Date"]).timestamp()
    text = f"this machine's clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
    if abs(ahead) > MOST_SKEW:
        return problem(f"{text}: tokens are refused", "sudo timedatectl set-ntp true")
    return ok(text)


def exists(context: Context) -> Iterator[Finding]:
    from google.api_core import exceptions

    project = context.cloud.project
    try:
        found = context.cloud.services.get(
            RESOURCE_MANAGER, f"/v1/projects/{project}", CALL_SECONDS
        )
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        if "it is disabled" in error.message:
            raise
        text = f"{project} does not exist, or you may not see it: {error.message}"
        yield problem(text, "gcloud projects list", "provider.project=… names another")
        return
    state = found.get("lifecycleState")
    if state == "ACTIVE":
        yield ok(f"{project}, number {found.get('projectNumber')}")
    else:
        yield problem(f"{project} is {state}", f"gcloud projects undelete {project}")


def apis(context: Context) -> Iterator[Finding]:
    project, wanted = context.cloud.project, needed_apis(context.spec, context.bucket)
    found = context.cloud.services.items(
        SERVICE_USAGE,
        f"/v1/projects/{project}/services",
        "services",
        CALL_SECONDS,
        filter="state:ENABLED",
    )
    enabled = {service["config"]["name"] for service in found}
    if missing := [name for name in wanted if name not in enabled]:
        yield problem(
            f"not enabled in {project}: {', '.join(missing)}", *enabling(missing, project)
        )
    else:
        yield ok(f"enabled: {', '.join(wanted)}")


def needed_apis(spec: Spec, bucket: str | None) -> list[str]:
    """By what this configuration asks for."""
    cluster = spec.cluster
    wanted = {
        TPU: True,
        COMPUTE: cluster.coordinator == "vm",
        IAM: bool(cluster.machine.service_account or cluster.vm.service_account),
        STORAGE: bucket is not None,
    }
    return [name for name, needed in wanted.items() if needed]
