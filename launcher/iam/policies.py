"""IAM policies, changed by read-modify-write: who has which role on which resource.

A policy is replaced as a whole; its etag makes Google refuse one that was read before somebody
else's change, and then it is read and changed again.
https://cloud.google.com/iam/docs/allow-policies
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tenacity
from google.api_core import exceptions

from launcher.errors import ProvisioningError
from launcher.providers.calls import TRANSIENT
from launcher.providers.services import IAM, RESOURCE_MANAGER, STORAGE, Services

Policy = dict[str, Any]
VERSION = 3  # the one that shows conditions; an older one would lose them
AGAIN_SECONDS = 120.0  # an account that was just made is known everywhere after a minute at most
# https://cloud.google.com/iam/docs/service-accounts-create

# How services say that an etag is of old; Cloud Storage by HTTP status 412.
CHANGED_SINCE = (
    exceptions.Aborted,
    exceptions.PreconditionFailed,
    exceptions.FailedPrecondition,
)


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that has a policy. `gcloud` is the command that adds to it, up to its flags."""

    title: str
    gcloud: str
    read: Callable[[Services], Policy]
    write: Callable[[Services, Policy], Policy]


def of_project(project: str) -> Resource:
    path = f"/v1/projects/{project}"
    options = {"options": {"requestedPolicyVersion": VERSION}}
    return Resource(
        f"project {project}",
        f"gcloud projects add-iam-policy-binding {project}",
        lambda services: services.post(RESOURCE_MANAGER, f"{path}:getIamPolicy", options),
        lambda services, policy: services.post(
            RESOURCE_MANAGER, f"{path}:setIamPolicy", {"policy": policy}
        ),
    )


def of_account(project: str, email: str) -> Resource:
    path = f"/v1/projects/{project}/serviceAccounts/{email}"
    query = {"options.requestedPolicyVersion": VERSION}
    return Resource(
        f"service account {email}",
        f"gcloud iam service-accounts add-iam-policy-binding {email} --project={project}",
        lambda services: services.call("POST", IAM, f"{path}:getIamPolicy", params=query),
        lambda services, policy: services.post(IAM, f"{path}:setIamPolicy", {"policy": policy}),
    )


def of_bucket(name: str) -> Resource:
    path = f"/storage/v1/b/{name}/iam"
    query = {"optionsRequestedPolicyVersion": VERSION}
    return Resource(
        f"bucket gs://{name}",
        f"gcloud storage buckets add-iam-policy-binding gs://{name}",
        lambda services: services.get(STORAGE, path, **query),
        lambda services, policy: services.call("PUT", STORAGE, path, json=policy),
    )


def has(policy: Mapping[str, Any], role: str, member: str) -> bool:
    """Whether the member has the role without a condition."""
    return any(
        binding["role"] == role and not binding.get("condition") and member in binding["members"]
        for binding in policy.get("bindings", ())
    )


def lacking(policy: Mapping[str, Any], roles: Sequence[str], member: str) -> list[str]:
    return [role for role in roles if not has(policy, role, member)]


def with_roles(policy: Mapping[str, Any], roles: Sequence[str], member: str) -> Policy:
    """The policy with the roles given to the member; everything else in it stays as it is."""
    bindings = [dict(binding) for binding in policy.get("bindings", ())]
    for role in lacking(policy, roles, member):
        plain = (b for b in bindings if b["role"] == role and not b.get("condition"))
        binding = next(plain, None)
        if binding is None:
            bindings.append({"role": role, "members": [member]})
        else:
            binding["members"] = [*binding["members"], member]
    version = VERSION if any(b.get("condition") for b in bindings) else policy.get("version", 1)
    return {**policy, "version": version, "bindings": bindings}


def grant(
    services: Services,
    resource: Resource,
    roles: Sequence[str],
    member: str,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Give the roles; the ones that it had to give, none if the member had them all.

    Raises ProvisioningError in the server's words, with the command that an administrator can use.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=15),
        stop=tenacity.stop_after_delay(AGAIN_SECONDS),
        sleep=sleep,
        reraise=True,
    )

    def once() -> list[str]:
        policy = resource.read(services)
        absent = lacking(policy, roles, member)
        if absent:
            resource.write(services, with_roles(policy, absent, member))
        return absent

    try:
        return attempts(once)
    except exceptions.Forbidden as error:
        raise ProvisioningError(
            f"{resource.title}: {error.message}\nan administrator can give it with:"
            f" {resource.gcloud} --member={member} --role={roles[0]}"
        ) from error
    except exceptions.GoogleAPICallError as error:
        raise ProvisioningError(f"{resource.title}: {error.message}") from error


def missing(services: Services, resource: Resource, roles: Sequence[str], member: str) -> list[str]:
    """What `grant` would give. Raises ProvisioningError."""
    try:
        return lacking(resource.read(services), roles, member)
    except exceptions.GoogleAPICallError as error:
        raise ProvisioningError(f"{resource.title}: {error.message}") from error


def passes(error: BaseException) -> bool:
    """Whether it is somebody else's change in between, or an account that is not known yet."""
    if isinstance(error, exceptions.InvalidArgument):
        return "does not exist" in error.message and "account" in error.message.lower()
    return isinstance(error, (*CHANGED_SINCE, *TRANSIENT))
