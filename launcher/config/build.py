"""The Spec of a configuration in which no problem was found."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from launcher import accelerators
from launcher.config.draft import Draft
from launcher.config.notes import notes
from launcher.config.resolve import takes_environment
from launcher.config.target import Target, find_target
from launcher.config.values import NAME_LENGTH, as_list, as_name, is_time, seconds
from launcher.config.zones import chosen_zones
from launcher.provisioning.capacity import CURRENT
from launcher.spec import (
    Cluster,
    CoordinatorVm,
    Machine,
    Mode,
    Offer,
    ProviderSpec,
    Queue,
    Retry,
    Spec,
    Sweep,
    Workload,
)

# For types that the Cloud TPU API does not offer, and the emulator does.
_ANY_RUNTIME = "tpu-ubuntu2204-base"

Suffix = Callable[[], str]


def random_suffix() -> str:
    """Four hexadecimal digits, so that two runs without a name do not meet."""
    return secrets.token_hex(2)


def build(
    draft: Draft,
    *,
    overrides: Sequence[str],
    choices: Mapping[str, str],
    with_workload: bool,
    suffix: Suffix,
    multirun: bool = False,
) -> Spec:
    """The Spec; `suffix` ends the name of a run that was given none."""
    cluster = _cluster(draft)
    workload = _workload(draft, choices) if with_workload else None
    before = f"-{cluster.accelerator.accelerator_type}-{suffix()}"
    program = as_name(workload.name if workload else "up", NAME_LENGTH - len(before))
    return Spec(
        name=draft["name"] or f"{program}{before}",
        keep=draft["keep"],
        cluster=cluster,
        mode=_mode(draft["mode"], choices),
        workload=workload,
        provider=_provider(draft),
        retry=_retry(draft["retry"]),
        sweep=_sweep(draft["sweep"]),
        overrides=tuple(overrides),
        choices=MappingProxyType(dict(choices)),
        config=MappingProxyType(dict(draft.written)),
        notes=tuple(notes(draft)),
        multirun=multirun,
    )


def _cluster(draft: Draft) -> Cluster:
    values = draft["cluster"]
    return Cluster(
        offers=tuple(dict.fromkeys(_offers(draft))),
        queue=Queue(
            valid_after=_moment(values["valid_after"]),
            valid_until=_moment(values["valid_until"]),
            max_run_time=_seconds_or_none(values["max_run_time"]),
            reservation=values["reservation"],
        ),
        machine=_machine(values),
        coordinator=values["coordinator"],
        vm=CoordinatorVm(**values["vm"]),
        queue_timeout=seconds(values["queue_timeout"]),
        provision_timeout=_seconds_or_none(values["provision_timeout"]),
        join_timeout=seconds(values["join_timeout"]),
    )


def _offers(draft: Draft) -> Iterator[Offer]:
    """Every choice, in order: accelerator types, then capacities, then zones. An old name of a
    capacity and that of today make the same offer."""
    values, framework = draft["cluster"], draft["mode.framework"]
    for name in as_list(values["accelerator_type"]):
        accelerator = accelerators.lookup(name)
        default = accelerator.runtime_version(framework) or _ANY_RUNTIME
        for written in as_list(values["capacity"]):
            for zone in chosen_zones(values["zone"], accelerator):
                yield Offer(
                    accelerator,
                    CURRENT.get(written, written),
                    zone,
                    values["runtime_version"] or default,
                )


def _machine(values: Mapping[str, Any]) -> Machine:
    return Machine(
        labels=MappingProxyType({key: value or "" for key, value in values["labels"].items()}),
        tags=tuple(values["tags"]),
        network=values["network"],
        subnetwork=values["subnetwork"],
        external_ips=values["external_ips"],
        service_account=values["service_account"],
        scopes=tuple(values["scopes"]),
        data_disks=tuple(
            (disk["source"], disk.get("mode", "READ_WRITE")) for disk in values["data_disks"]
        ),
        secure_boot=values["secure_boot"],
        startup=tuple(values["startup"]),
        env=MappingProxyType({k: v for k, v in values["env"].items() if v is not None}),
    )


def _moment(text: str | None) -> float | str | None:
    """A duration in seconds; a time as it is written."""
    if text is None or is_time(text):
        return text
    return seconds(text)


def _mode(values: Mapping[str, Any], choices: Mapping[str, str]) -> Mode:
    return Mode(
        name=choices.get("mode", values["framework"]),
        framework=values["framework"],
        processes=values["processes"],
        sizes=tuple(sorted(set(as_list(values["slices"])), reverse=True)),
        probe_interval=seconds(values["probe_interval"]),
        resize_interval=seconds(values["resize_interval"]),
        requirements=tuple(values["requirements"]),
        standby=values["standby"],
    )


def _workload(draft: Draft, choices: Mapping[str, str]) -> Workload:
    target = find_target(draft)
    assert isinstance(target, Target)  # the checks have passed
    values = draft["workload"]
    env = {key: value for key, value in values["env"].items() if value is not None}
    return Workload(
        name=_program_name(draft, target, choices),
        kind=target.kind,
        target=_words(target),
        args=tuple((key, value) for key, value in values["args"].items() if value is not None),
        env=MappingProxyType(env),
        secret_env=frozenset(
            key for key in env if takes_environment(draft.written, ("workload", "env", key))
        ),
        working_dir=target.working_dir,
        include=tuple(values["include"]),
        exclude=tuple(values["exclude"]),
        requirements=tuple(values["requirements"]),
        checkpoint_dir=_anchored(values["checkpoint_dir"], draft.cwd),
    )


def _words(target: Target) -> tuple[str, ...]:
    if target.kind != "script":
        return target.words
    return (Path(target.words[0]).relative_to(target.working_dir).as_posix(),)


def _program_name(draft: Draft, target: Target, choices: Mapping[str, str]) -> str:
    """The option of the group if its file names the program, else the program's own name."""
    option = choices.get("workload", "")
    origin = draft.origins.get(target.key)
    if origin and origin.file and origin.file.stem == option:
        return option
    stem = PurePosixPath(target.words[0]).name
    return stem.rpartition(".")[2] if target.kind == "module" else PurePosixPath(stem).stem


def _anchored(path: str | None, cwd: Path) -> str | None:
    """A relative folder is one of where the user stands; a bucket's address stays as it is."""
    if path is None or "://" in path:
        return path
    return str(cwd / Path(path).expanduser())


def _provider(draft: Draft) -> ProviderSpec:
    own = {key: value for key, value in draft["provider"].items() if key not in ("kind", "project")}
    return ProviderSpec(draft["provider.kind"], draft["provider.project"], MappingProxyType(own))


def _retry(values: Mapping[str, Any]) -> Retry:
    return Retry(
        max_preemptions=values["max_preemptions"],
        max_failures=values["max_failures"],
        same_step_limit=values["same_step_limit"],
        restart_exit_codes=frozenset(values["restart_exit_codes"]),
        stop_exit_codes=frozenset(values["stop_exit_codes"]),
        backoff=seconds(values["backoff"]),
        grace=seconds(values["grace"]),
        straggler_timeout=_seconds_or_none(values["straggler_timeout"]),
        hang_timeout=_seconds_or_none(values["hang_timeout"]),
        reattach_timeout=seconds(values["reattach_timeout"]),
    )


def _sweep(values: Mapping[str, Any]) -> Sweep:
    budget, scheduler = values["budget"], values["scheduler"]
    return Sweep(
        name=values["name"],
        per_trial=next(iter((values["per_trial"] or {}).items()), None),
        metric=values["metric"],
        mode=values["mode"],
        max_concurrent=values["max_concurrent"],
        budget_seconds=_seconds_or_none(budget["time"]),
        budget_chip_hours=budget["chip_hours"],
        fail_fast=values["fail_fast"],
        retry_failed=values["retry_failed"],
        params=MappingProxyType(dict(values["params"])),
        samples=values["samples"],
        search=values["search"],
        seed=values["seed"],
        scheduler=MappingProxyType(dict(scheduler)) if scheduler else None,
    )


def _seconds_or_none(text: str | None) -> float | None:
    return None if text is None else seconds(text)
