"""`coordinator create-service-account`: the account that a coordinator's VM runs as."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from launcher.doctor.context import Cloud, bucket_of
from launcher.errors import ConfigError, Problem
from launcher.iam import policies, service_account
from launcher.iam.service_account import Grant
from launcher.providers.services import Services, open_services
from launcher.verbs import Arguments
from launcher.verbs.loading import load

CREATE = "create-service-account"
DRY_RUN, NAME = "--dry-run", "--name"


def coordinator(arguments: Arguments) -> int:
    """Raises ConfigError for anything but create-service-account."""
    action, *overrides = arguments.overrides or ("",)
    if action != CREATE:
        raise ConfigError([Problem(f"coordinator takes {CREATE}, not {action!r}")])
    name = service_account.check_name(arguments.values.get(NAME, service_account.DEFAULT_NAME))
    spec, _ = load(replace(arguments, overrides=overrides))
    cloud = Cloud(spec.provider)
    with contextlib.closing(cloud):
        cloud.open()
        services, project = open_services(spec.provider), cloud.project
        email = service_account.email_of(name, project)
        grants = service_account.grants_for(spec, project, bucket_of(spec))
        if DRY_RUN in arguments.flags:
            dry_run(services, project, email, grants)
        else:
            make(services, project, name, email, grants)
    if cloud.emulated:
        print("note: emulated accounts are forgotten when the emulator ends")
    if spec.cluster.machine.service_account is None:
        print(
            "note: cluster.service_account is not set, so it may act as any account of the project"
        )
    print(f"use it: cluster.coordinator=vm cluster.vm.service_account={email}")
    return 0


def make(services: Services, project: str, name: str, email: str, grants: list[Grant]) -> None:
    made = service_account.create(services, project, name)
    print(f"{email}: {'created' if made else 'there already'}")
    for grant in grants:
        given = policies.grant(services, grant.resource, grant.roles, f"serviceAccount:{email}")
        print(line(grant, "given" if given else "given already"))


def dry_run(services: Services, project: str, email: str, grants: list[Grant]) -> None:
    """Reads alone."""
    found = service_account.find(services, project, email)
    print(f"{email}: {'there already' if found else 'would be created'}")
    for grant in grants:
        missing = policies.missing(services, grant.resource, grant.roles, f"serviceAccount:{email}")
        print(line(grant, "would be given" if missing else "given already"))
    print("nothing was changed")


def line(grant: Grant, done: str) -> str:
    return f"  {', '.join(grant.roles)} on {grant.resource.title}: {done} ({grant.why})"
