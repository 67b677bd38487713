"""Checks that the caller may do what this very configuration takes, by testIamPermissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.api_core import exceptions

from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, Skip, ok, problem, warning
from launcher.doctor.project import is_user, whose
from launcher.providers.services import IAM, RESOURCE_MANAGER, STORAGE
from launcher.spec import Spec

ACT_AS = "iam.serviceAccounts.actAs"
# https://cloud.google.com/iam/docs/roles-permissions/tpu; queued resources go by tpu.nodes.*
TPU_ADMIN = (
    "tpu.nodes.create",
    "tpu.nodes.get",
    "tpu.nodes.list",
    "tpu.nodes.delete",
    "tpu.operations.get",
)
# https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert#iam-permissions
INSTANCE_ADMIN = (
    "compute.instances.create",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.delete",
    "compute.instances.start",
    "compute.instances.stop",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.disks.create",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
)
FIREWALLS = ("compute.firewalls.get", "compute.firewalls.create", "compute.networks.updatePolicy")
# https://cloud.google.com/iap/docs/using-tcp-forwarding#grant-permission
TUNNEL = ("iap.tunnelInstances.accessViaIAP",)
OBJECT_ADMIN = (
    "storage.objects.create",
    "storage.objects.get",
    "storage.objects.list",
    "storage.objects.delete",
)


@dataclass(frozen=True, slots=True)
class Need:
    """Permissions of one role, on the project."""

    role: str
    permissions: Sequence[str]


def needs(spec: Spec) -> list[Need]:
    found = [Need("roles/tpu.admin", TPU_ADMIN)]
    if spec.cluster.coordinator == "vm":
        external = ("compute.subnetworks.useExternalIp",) if spec.cluster.vm.external_ip else ()
        found.append(Need("roles/compute.instanceAdmin.v1", (*INSTANCE_ADMIN, *external)))
        found.append(Need("roles/compute.securityAdmin", FIREWALLS))
        found.append(Need("roles/iap.tunnelResourceAccessor", TUNNEL))
    return found


def on_project(context: Context) -> Iterator[Finding]:
    project, wanted = context.cloud.project, needs(context.spec)
    asked = [permission for need in wanted for permission in need.permissions]
    missing = refused(context, RESOURCE_MANAGER, f"/v1/projects/{project}", asked)
    for need in wanted:
        if lacking := [name for name in need.permissions if name in missing]:
            command = f"gcloud projects add-iam-policy-binding {project}"
            mend = f"{command} --member={member(context)} --role={need.role}"
            yield problem(f"not given on {project}: {', '.join(lacking)}", mend)
    if not missing:
        yield ok(f"{len(asked)} permissions on {project}: {', '.join(n.role for n in wanted)}")


def on_accounts(context: Context) -> Iterator[Finding]:
    """Whoever makes a VM must be allowed to act as its account."""
    cluster = context.spec.cluster
    vm = [cluster.vm.service_account] if cluster.coordinator == "vm" else []
    for account in dict.fromkeys((cluster.machine.service_account, *vm)):
        if account is None:
            yield from on_default_account(context)
            continue
        yield on_account(context, account)


def on_account(context: Context, account: str) -> Finding:
    project = context.cloud.project
    path = f"/v1/projects/{project}/serviceAccounts/{account}"
    try:
        missing = refused(context, IAM, path, (ACT_AS,))
    except exceptions.NotFound:
        create = f"gcloud iam service-accounts create {account.partition('@')[0]}"
        return problem(f"no service account {account}", f"{create} --project={project}")
    if not missing:
        return ok(f"allowed to act as {account}")
    command = f"gcloud iam service-accounts add-iam-policy-binding {account}"
    role = f"--member={member(context)} --role=roles/iam.serviceAccountUser"
    return problem(f"not allowed to act as {account}", f"{command} {role} --project={project}")


def on_default_account(context: Context) -> Iterator[Finding]:
    """Its name is not asked for: a right on the project holds for it as well."""
    project = context.cloud.project
    if refused(context, RESOURCE_MANAGER, f"/v1/projects/{project}", (ACT_AS,)):
        yield warning(
            "perhaps not allowed to act as the default account of Compute Engine, which VMs get",
            "cluster.service_account=… names one that you may act as",
        )
    else:
        yield ok("allowed to act as the default account of Compute Engine")


def on_bucket(context: Context) -> Iterator[Finding]:
    """The caller's; programs on TPU VMs write as the account of these."""
    bucket = context.bucket
    if bucket is None:
        raise Skip("no bucket is asked for")
    path = f"/storage/v1/b/{bucket}/iam/testPermissions"
    try:
        found = context.cloud.services.get(
            STORAGE, path, CALL_SECONDS, permissions=list(OBJECT_ADMIN)
        )
    except exceptions.NotFound:
        raise Skip(f"there is no gs://{bucket}") from None
    missing = [name for name in OBJECT_ADMIN if name not in found.get("permissions", ())]
    if missing:
        role = f"--member={member(context)} --role=roles/storage.objectAdmin"
        yield warning(
            f"you may not, in gs://{bucket}: {', '.join(missing)}; the account of the TPU VMs must",
            f"gcloud storage buckets add-iam-policy-binding gs://{bucket} {role}",
        )
    else:
        yield ok(f"objects of gs://{bucket} can be written, read and deleted")


def refused(context: Context, service: str, path: str, asked: Sequence[str]) -> list[str]:
    """Which permissions the caller does not have on a resource."""
    body: Mapping[str, Sequence[str]] = {"permissions": asked}
    answer = context.cloud.services.post(service, f"{path}:testIamPermissions", body, CALL_SECONDS)
    return [name for name in asked if name not in answer.get("permissions", ())]


def member(context: Context) -> str:
    """The caller, as policies call them."""
    if context.cloud.emulated:
        return "user:YOU"
    found = context.cloud.services.session.credentials
    if is_user(found):
        return f"user:{found.account or 'YOU'}"
    return f"serviceAccount:{whose(found)}"
