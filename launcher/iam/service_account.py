"""The service account that a coordinator runs as, and the roles that it needs, no wider than that.

Which roles are needed is pure; making the account and giving the roles can be done any number of
times. https://github.com/tensorflow/tpu/tree/master/tools/ray_tpu had a script for this, which gave
everything on the whole project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions

from launcher.errors import ConfigError, Problem, ProvisioningError
from launcher.iam.policies import Resource, of_account, of_bucket, of_project
from launcher.providers import calls
from launcher.providers.services import IAM, Services
from launcher.spec import Spec

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])")
LENGTHS = range(6, 31)
DEFAULT_NAME = "tpu-admin"
TITLE = "TPU Admin"
DESCRIPTION = "Makes and deletes Cloud TPU slices for launcher's coordinator"


@dataclass(frozen=True, slots=True)
class Grant:
    """Roles on one resource, and what they are for."""

    resource: Resource
    roles: Sequence[str]
    why: str


def check_name(name: str) -> str:
    """The same name. Raises ConfigError unless it is the id of an account by Google's rule."""
    if NAME.fullmatch(name) and len(name) in LENGTHS:
        return name
    hint = "6 to 30 characters: a-z first, then a-z, 0-9 and -, no - at the end"
    raise ConfigError([Problem(f"no name of a service account: {name!r}", "--name", hint=hint)])


def email_of(name: str, project: str) -> str:
    """A project of a domain is `example.com:p`, and its accounts are at `p.example.com`."""
    domain, _, own = project.rpartition(":")
    return f"{name}@{own}{'.' if domain else ''}{domain}.iam.gserviceaccount.com"


def grants_for(spec: Spec, project: str, bucket: str | None) -> list[Grant]:
    """What a coordinator needs for this configuration."""
    on_project = of_project(project)
    nodes = spec.cluster.machine.service_account
    acted_as = of_account(project, nodes) if nodes else on_project
    found = [
        Grant(on_project, ("roles/tpu.admin",), "makes and deletes slices"),
        Grant(acted_as, ("roles/iam.serviceAccountUser",), "gives TPU VMs their account"),
        Grant(on_project, ("roles/logging.logWriter",), "writes its log"),
    ]
    if bucket:
        found.append(Grant(of_bucket(bucket), ("roles/storage.objectAdmin",), "keeps checkpoints"))
    return found


def find(services: Services, project: str, email: str) -> Mapping[str, Any] | None:
    """The account as the API shows it. Raises ProvisioningError."""
    path = f"/v1/projects/{project}/serviceAccounts/{email}"
    found: Mapping[str, Any] | None = calls.read_if_there(services.get, service=IAM, path=path)
    return found


def create(services: Services, project: str, name: str) -> bool:
    """Whether it had to be made. Raises ProvisioningError in the server's words."""
    body = {
        "accountId": name,
        "serviceAccount": {"displayName": TITLE, "description": DESCRIPTION},
    }
    try:
        services.post(IAM, f"/v1/projects/{project}/serviceAccounts", body)
    except exceptions.AlreadyExists:
        return False
    except exceptions.GoogleAPICallError as error:
        role = f"--role=roles/iam.serviceAccountAdmin, on project {project}"
        raise ProvisioningError(
            f"{name}: {error.message}\nmaking an account takes {role}"
        ) from error
    return True
