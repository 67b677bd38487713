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
class Offer:
    """One way to get the slices, with the software version of their VMs."""

    accelerator: Accelerator
    capacity: str  # a key of launcher.provisioning.capacity.CAPACITIES
    zone: str
    runtime_version: str


@dataclass(frozen=True, slots=True)
class Queue:
    """When a queued resource may be granted, and what is asked for beside its capacity.

    `valid_after` and `valid_until` are seconds from the request, or RFC 3339 times as written.
    """

    valid_after: float | str | None
    valid_until: float | str | None
    max_run_time: float | None  # of flex-start, which needs one
    reservation: str | None  # of reserved capacity: its name, in the zone of the offer


@dataclass(frozen=True, slots=True)
class Machine:
    """What every TPU VM is to be, beside its accelerator.

    `data_disks` are pairs of a disk's resource name and its mode, READ_WRITE or READ_ONLY.
    `startup` are lines of shell, and `env` variables, that take effect before the launcher's own.
    """

    labels: Mapping[str, str]
    tags: tuple[str, ...]
    network: str | None
    subnetwork: str | None
    external_ips: bool
    service_account: str | None
    scopes: tuple[str, ...]
    data_disks: tuple[tuple[str, str], ...]
    secure_boot: bool
    startup: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CoordinatorVm:
    """The VM of `coordinator: vm`; one of the same name is used again."""

    name: str | None  # launcher-OWNER if None
    zone: str | None  # the zone of the first offer if None
    machine_type: str
    disk_gb: int
    image: str
    service_account: str | None
    external_ip: bool
    on_down: str  # delete | stop


@dataclass(frozen=True, slots=True)
class Cluster:
    """The slices to ask for, and where the Ray head lives.

    `offers` are in the order in which they are tried: accelerator types, then capacities, then
    zones, the last varying fastest.
    """

    offers: tuple[Offer, ...]
    queue: Queue
    machine: Machine
    coordinator: str  # here | vm | host0 | the address of a cluster that exists
    vm: CoordinatorVm
    queue_timeout: float  # how long to wait for capacity, in the queue or by asking again
    provision_timeout: float | None  # from the grant until every slice is ready; None: by size
    join_timeout: float

    @property
    def accelerator(self) -> Accelerator:
        """Of the first choice."""
        return self.offers[0].accelerator


@dataclass(frozen=True, slots=True)
class Mode:
    """How the program is spread over the hosts.

    `sizes` are the numbers of slices that will do, the largest first: an elastic run has several.
    """

    name: str
    framework: str  # jax | torch_xla
    processes: str  # one a host, or one a chip: host | chip
    sizes: tuple[int, ...]
    probe_interval: float  # between attempts to get the slices that an elastic run lacks
    resize_interval: float  # from a change of size to the next one that the launcher wants
    requirements: tuple[str, ...]  # Python packages of the framework, for every host
    standby: bool  # beside each process one that has made the program's first imports

    @property
    def slices(self) -> int:
        """The most that are asked for."""
        return self.sizes[0]

    @property
    def is_elastic(self) -> bool:
        return len(self.sizes) > 1


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
    same_step_limit: int | None  # failures at one and the same step that stop the run
    restart_exit_codes: frozenset[int]  # start again, and cost nothing
    stop_exit_codes: frozenset[int]
    backoff: float
    grace: float  # from SIGTERM to SIGKILL
    straggler_timeout: float | None  # from the first good end to the last; None: for ever
    hang_timeout: float | None  # without a step or a line of output; None: for ever
    reattach_timeout: float  # how long processes go on without their supervisor


@dataclass(frozen=True, slots=True)
class Sweep:
    """How the trials of `-m` share a cluster; of no meaning to a single run.

    `per_trial` is a unit, `slices`, `hosts` or `chips`, and how many of it a trial has; None: the
    whole cluster. `budget_seconds` and `budget_chip_hours` count from the start of the sweep. The
    last five are for a sweeper that suggests trials: `scheduler` has its `kind`, and options.
    """

    name: str | None
    per_trial: tuple[str, int] | None
    metric: str | None
    mode: str | None  # min | max
    max_concurrent: int | None
    budget_seconds: float | None
    budget_chip_hours: float | None
    fail_fast: bool
    retry_failed: bool
    params: Mapping[str, str]
    samples: int
    search: str  # grid | random | tpe
    seed: int
    scheduler: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `workload` is None for `up`, which brings slices up without a job.

    `config` is the composed configuration with its interpolations unresolved, safe to store.
    `choices` maps each config group to the option taken; `overrides` are those of the command line.
    `notes` are what a user should know, without being wrong. `multirun` is whether a file says that
    the overrides are those of a sweep (`hydra.mode`).
    """

    name: str
    keep: bool
    cluster: Cluster
    mode: Mode
    workload: Workload | None
    provider: ProviderSpec
    retry: Retry
    sweep: Sweep
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    config: Mapping[str, Any]
    notes: tuple[str, ...]
    multirun: bool = False
