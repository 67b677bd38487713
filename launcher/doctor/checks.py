"""The table of all checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.doctor import (
    machine,
    network,
    offers,
    packages,
    permissions,
    project,
    quota,
    storage,
)
from launcher.doctor.context import CONFIG, MACHINE, PROVIDER, Check, Context
from launcher.doctor.findings import Finding, ok, problem


def configuration(context: Context) -> Iterator[Finding]:
    if context.error is not None:
        for each in context.error.problems:
            text = str(each).partition("\n")[0]
            yield problem(text, *([each.hint] if each.hint else []))
    else:
        yield ok(f"{context.plan.first.title}{context.plan.and_more}")


CHECKS = (
    Check("configuration", CONFIG, configuration),
    Check("system", MACHINE, machine.system),
    Check("python", MACHINE, packages.python),
    Check("packages", MACHINE, packages.packages),
    Check("git", MACHINE, machine.git),
    Check("gcloud", MACHINE, machine.gcloud),
    Check("open files", MACHINE, machine.open_files),
    Check("disk", MACHINE, machine.disk),
    Check("temp path", MACHINE, machine.temp_path),
    Check("shared memory", MACHINE, machine.shared_memory),
    Check("ports", MACHINE, machine.ports),
    Check("records", MACHINE, machine.records),
    Check("run folders", MACHINE, machine.run_folders),
    Check("leftovers", MACHINE, machine.leftovers),
    Check("provider", PROVIDER, project.provider),
    Check("credentials", PROVIDER, project.credentials),
    Check("clock", PROVIDER, project.clock),
    Check("project", PROVIDER, project.exists),
    Check("APIs", PROVIDER, project.apis),
    Check("permissions", PROVIDER, permissions.on_project),
    Check("accounts", PROVIDER, permissions.on_accounts),
    Check("types", PROVIDER, offers.types),
    Check("runtime", PROVIDER, offers.runtime_versions),
    Check("quota", PROVIDER, quota.quotas),
    Check("bucket", PROVIDER, storage.bucket),
    Check("objects", PROVIDER, permissions.on_bucket),
    Check("network", PROVIDER, network.private_access),
    Check("coordinator", PROVIDER, network.coordinator),
)
