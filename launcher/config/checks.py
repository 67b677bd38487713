"""What a JSON Schema cannot say about a configuration, as one table of checks.

Each check names the keys that it reads, and runs if none of them has a problem already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from launcher.config import machine_checks, offer_checks, time_checks
from launcher.config.draft import Check, Draft
from launcher.config.framework_checks import framework_problems
from launcher.config.resolve import takes_environment
from launcher.config.target import target_problems
from launcher.config.values import NAME_LENGTH, as_name, is_name
from launcher.errors import ConfigError, Problem

_ARGUMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FREE = (
    *(("workload", "args"), ("workload", "env"), ("workload", "command")),
    *(("cluster", "env"), ("cluster", "startup")),
)
_OWNED = ("LAUNCHER_", "MEGASCALE_", "RAY_")  # set by the launcher in every process
_TARGET = (
    *("workload.script", "workload.module", "workload.command", "workload.working_dir"),
    "mode.framework",  # which basic.yaml names its script by
)
_PROJECT = re.compile(r"[a-z][-a-z0-9.:]*[a-z0-9]")


def check(draft: Draft, faulty: frozenset[str], require_workload: bool) -> list[Problem]:
    """Every problem that the table finds; `faulty` are the dotted keys with one already."""
    problems = [problem for problem in _literals(draft) if problem.key not in faulty]
    faulty |= {problem.key for problem in problems}
    for keys, function in (*_CHECKS, *(_WORKLOAD_CHECKS if require_workload else ())):
        if not any(_touches(key, other) for key in keys for other in faulty):
            problems += function(draft)
    return problems


def _touches(key: str, other: str) -> bool:
    """Whether one key is the other, or lies in it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _name(draft: Draft) -> Iterator[Problem]:
    name = draft["name"]
    if name is None or is_name(name):
        return
    rule = f"a-z, then a-z, 0-9 and -, at most {NAME_LENGTH}"
    secret = takes_environment(draft.written, ("name",))
    hint = "" if secret else f"for instance name={as_name(name)}"
    yield draft.origins.problem(f"not a valid name for a run: {rule}", ("name",), hint)


def _provider(draft: Draft) -> Iterator[Problem]:
    provider = draft["provider"]
    if provider["kind"] == "google":
        if provider["project"] is None:
            hint = "give provider.project=… or export GOOGLE_CLOUD_PROJECT=…"
            yield draft.origins.problem("google needs a project", ("provider", "project"), hint)
        for key in sorted({"state_dir", "rules"} & set(provider)):
            yield draft.origins.problem("only the local provider has this", ("provider", key))
    if provider["project"] is not None and not _PROJECT.fullmatch(provider["project"]):
        yield draft.origins.problem("not a valid project id", ("provider", "project"))


def _literals(draft: Draft) -> Iterator[Problem]:
    """What the schemas let pass for the sake of unresolved files, and control characters."""
    for key, value in _leaves(dict(draft.plain), ()):
        literal = value.startswith("${") or value == "???" or not value.isprintable()
        if literal and key[:2] not in _FREE:
            yield draft.origins.problem("not a valid text", key)


def _leaves(value: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key, str(index)))


def _arguments(draft: Draft) -> Iterator[Problem]:
    for key in draft["workload.args"]:
        if not _ARGUMENT.fullmatch(key):
            hint = "letters, digits, _, . and -; the first a letter or a digit"
            yield draft.origins.problem("not a valid argument", ("workload", "args", key), hint)


def _variables(draft: Draft) -> Iterator[Problem]:
    for key in draft["workload.env"]:
        here = ("workload", "env", key)
        if not _VARIABLE.fullmatch(key):
            yield draft.origins.problem("not a valid name of a variable", here)
        elif key.startswith(_OWNED):
            yield draft.origins.problem("the launcher sets this variable itself", here)


def _processes(draft: Draft) -> Iterator[Problem]:
    if draft["mode.framework"] == "jax" and draft["mode.processes"] == "chip":
        hint = "mode=torch_xla has one a chip"
        yield draft.origins.problem("JAX has one process a host", ("mode", "processes"), hint)


def _platform(draft: Draft) -> Iterator[Problem]:
    for name in ("JAX_PLATFORMS", "PJRT_DEVICE"):
        platforms = draft["workload.env"].get(name) or ""
        if draft["provider.kind"] == "local" and "tpu" in platforms.lower().split(","):
            hint = "leave it out: emulated chips are seen as CPU devices, and TPUs on google"
            key = ("workload", "env", name)
            yield draft.origins.problem("the local provider has no TPUs", key, hint)


def _argv_secrets(draft: Draft) -> Iterator[Problem]:
    """An argv is seen by everyone on a host, and by the plan and the run folder."""
    keys = [("workload", "args", name) for name in draft["workload.args"]]
    keys += [("workload", "command", str(i)) for i in range(len(draft["workload.command"] or ()))]
    for key in keys:
        if takes_environment(draft.written, key):
            hint = "give it to the program under workload.env, which is never shown"
            yield draft.origins.problem("takes a variable's value into an argv", key, hint)


def _exit_codes(draft: Draft) -> Iterator[Problem]:
    both = {*draft["retry.restart_exit_codes"]} & {*draft["retry.stop_exit_codes"]}
    if both:
        codes = ", ".join(map(str, sorted(both)))
        message = f"{codes} cannot both start the run again and end it"
        hint = "leave it out here, or in retry.restart_exit_codes"
        yield draft.origins.problem(message, ("retry", "stop_exit_codes"), hint)


def _rules(draft: Draft) -> Iterator[Problem]:
    rules = draft["provider"].get("rules")
    if not rules:
        return
    from launcher.emulator.rules import check_rule

    for index, rule in enumerate(rules):
        try:
            check_rule(rule)
        except ConfigError as error:
            for fault in error.problems:
                key = ("provider", "rules", str(index), *filter(None, [fault.key]))
                secret = takes_environment(draft.written, key)
                message = "not valid here" if secret else fault.message
                yield draft.origins.problem(message, key, fault.hint)


def _mode_requirements(draft: Draft) -> Iterator[Problem]:
    yield from _requirements(draft, "mode")


def _workload_requirements(draft: Draft) -> Iterator[Problem]:
    yield from _requirements(draft, "workload")


def _requirements(draft: Draft, group: str) -> Iterator[Problem]:
    for index, text in enumerate(draft[f"{group}.requirements"]):
        key = (group, "requirements", str(index))
        if fault := _requirement_fault(text):
            yield draft.origins.problem(fault, key)
        elif takes_environment(draft.written, key):
            hint = "write it out; a package index that needs a password cannot be used so"
            message = "takes a variable's value into the metadata of the TPU VMs"
            yield draft.origins.problem(message, key, hint)


def _requirement_fault(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        name = Requirement(text).name
    except InvalidRequirement:
        return "not a valid requirement, such as optax>=0.2"
    return "the hosts must have the launcher's own Ray" if name.lower() == "ray" else ""


_CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("name",), _name),
    *offer_checks.CHECKS,
    *machine_checks.CHECKS,
    *time_checks.CHECKS,
    (("retry.restart_exit_codes", "retry.stop_exit_codes"), _exit_codes),
    (("provider",), _provider),
    (("provider.rules",), _rules),
    (("mode.framework", "mode.processes"), _processes),
    (("mode.requirements",), _mode_requirements),
)

_WORKLOAD_CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("workload.args",), _arguments),
    (("workload.env",), _variables),
    (("workload.env", "provider.kind"), _platform),
    (("workload.args", "workload.command"), _argv_secrets),
    (("workload.requirements",), _workload_requirements),
    (_TARGET, target_problems),
    ((*_TARGET, "mode.requirements", "workload.requirements"), framework_problems),
)
