"""What a run is, as frozen data: the configuration after every check has passed.

`launcher.compose` makes a `Spec` out of YAML and overrides; everything later in the line reads
specs and never a config object. All durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class Cluster:
    """The slices to ask for, and where the Ray head lives."""

    accelerator: Accelerator
    runtime_version: str
    zones: tuple[str, ...]  # one, for now
    coordinator: str  # "here"
    capacity: str  # on-demand | spot | preemptible | reserved
    labels: Mapping[str, str]
    provision_timeout: float
    join_timeout: float


@dataclass(frozen=True, slots=True)
class Mode:
    """How the program is spread over the hosts."""

    name: str
    framework: str  # jax
    processes: str  # one a host: host
    slices: int
    requirements: tuple[str, ...]  # Python packages of the framework, for every host


@dataclass(frozen=True, slots=True)
class Workload:
    """The user's program.

    `target` is one path relative to `working_dir` (kind script), one dotted name (module), or the
    argv as written (command). `secret_env` names the variables of `env` whose values were taken
    from the launching environment: they are never to be shown or stored.
    """

    name: str
    kind: str  # script | module | command
    target: tuple[str, ...]
    args: tuple[tuple[str, str], ...]
    env: Mapping[str, str]
    secret_env: frozenset[str]
    working_dir: Path  # absolute; travels to every host
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    requirements: tuple[str, ...]
    checkpoint_dir: str | None

    def argv(self, python: str) -> tuple[str, ...]:
        """The argv of each process, run in `working_dir`; `python` is the host's interpreter.

        `args` follow the target as `--key=value`, in the order of the config. A key whose value is
        null never gets here: it leaves its argument out.
        """
        before = {"script": (python,), "module": (python, "-m"), "command": ()}[self.kind]
        return (*before, *self.target, *(f"--{key}={value}" for key, value in self.args))


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """Who gives the slices; `options` are the keys of the kind's own."""

    kind: str  # local | google
    project: str | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a run is started again."""

    max_preemptions: int
    max_failures: int
    backoff: float
    grace: float  # from SIGTERM to SIGKILL
    straggler_timeout: float | None  # from the first good end to the last; None: for ever


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `workload` is None for `up`, which brings slices up without a job.

    `config` is the composed configuration with its interpolations unresolved, safe to store.
    `choices` maps each config group to the option taken; `overrides` are those of the command line.
    """

    name: str
    keep: bool
    cluster: Cluster
    mode: Mode
    workload: Workload | None
    provider: ProviderSpec
    retry: Retry
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    config: Mapping[str, Any]
