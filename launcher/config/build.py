"""The Spec of a configuration in which no problem was found."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from launcher import accelerators
from launcher.config.draft import Draft
from launcher.config.resolve import takes_environment
from launcher.config.target import Target, find_target
from launcher.config.values import NAME_LENGTH, as_name, seconds
from launcher.spec import Cluster, Mode, ProviderSpec, Retry, Spec, Workload

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
        overrides=tuple(overrides),
        choices=MappingProxyType(dict(choices)),
        config=MappingProxyType(dict(draft.written)),
    )


def _cluster(draft: Draft) -> Cluster:
    values = draft["cluster"]
    accelerator = accelerators.lookup(values["accelerator_type"])
    zone = values["zone"]
    labels = {key: value or "" for key, value in values["labels"].items()}
    return Cluster(
        accelerator=accelerator,
        runtime_version=values["runtime_version"]
        or accelerator.runtime_version_jax
        or _ANY_RUNTIME,
        zones=(zone,) if isinstance(zone, str) else tuple(zone or accelerator.zones[:1]),
        coordinator=values["coordinator"],
        capacity=values["capacity"],
        labels=MappingProxyType(labels),
        provision_timeout=seconds(values["provision_timeout"]),
        join_timeout=seconds(values["join_timeout"]),
    )


def _mode(values: Mapping[str, Any], choices: Mapping[str, str]) -> Mode:
    return Mode(
        name=choices.get("mode", values["framework"]),
        framework=values["framework"],
        processes=values["processes"],
        slices=values["slices"],
        requirements=tuple(values["requirements"]),
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
        backoff=seconds(values["backoff"]),
        grace=seconds(values["grace"]),
        straggler_timeout=_seconds_or_none(values["straggler_timeout"]),
    )


def _seconds_or_none(text: str | None) -> float | None:
    return None if text is None else seconds(text)
