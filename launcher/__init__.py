"""Launches machine-learning jobs on Cloud TPU slices with Ray, from YAML.

In the order of the data: `compose` (YAML and overrides to a `Spec`), `plan` (a `Spec` to literal
requests and processes), `providers` (slices), `coordinator` and `cluster` (Ray on them), `fanout`
(one gang of processes), `verdict` (how it ended), `supervise` (again, or not), `record` (what is
left to read). `provision` acquires and releases all of it; `verbs` is what the command line does.
"""

from launcher.errors import (
    ClusterError,
    ConfigError,
    Interrupted,
    LauncherError,
    PreemptionBudgetSpent,
    Problem,
    ProvisioningError,
    WorkloadError,
)

__all__ = [
    "ClusterError",
    "ConfigError",
    "Interrupted",
    "LauncherError",
    "PreemptionBudgetSpent",
    "Problem",
    "ProvisioningError",
    "WorkloadError",
]
