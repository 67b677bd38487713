"""From the overrides of each trial to trials that are known to be right, in groups that share a
cluster.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.compose import compose
from launcher.config.build import Suffix
from launcher.config.composition import Known
from launcher.config.overrides import settled
from launcher.config.values import NAME_LENGTH, as_name, is_name
from launcher.errors import ConfigError, Problem
from launcher.plan import Plan, make_plan
from launcher.provisioning.requests import Identity
from launcher.spec import Spec
from launcher.sweep import identity

LONGEST_PROGRAM = 24  # characters, in a name
MADE_UP = "0000"  # ends the made-up name of a single run; that of a trial is its identity


@dataclass(frozen=True, slots=True)
class Trial:
    """One point of a sweep. `params` are the keys by which it differs from others, as typed."""

    id: str
    spec: Spec
    overrides: tuple[str, ...]
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that ask for the very same slices; `spec` and `plan` ask for them under one name."""

    spec: Spec
    plan: Plan
    trials: tuple[Trial, ...]


class Composer:
    """Makes trials, and reads each set of files once."""

    def __init__(
        self, config_dirs: Sequence[Path], cwd: Path, suffix: Suffix = lambda: MADE_UP
    ) -> None:
        self._config_dirs = config_dirs
        self._cwd = cwd
        self._suffix = suffix
        self._known: Known = {}
        self._lock = threading.Lock()  # around it: no file is read twice

    def spec(self, overrides: Sequence[str]) -> Spec:
        """As that of a single run with these overrides. Raises ConfigError."""
        dirs, cwd = self._config_dirs, self._cwd
        suffix, known = self._suffix, self._known
        with self._lock:
            return compose(overrides, config_dirs=dirs, cwd=cwd, suffix=suffix, known=known)

    def grid(self, points: Sequence[Sequence[str]]) -> tuple[Trial, ...]:
        """A trial for each different point. Raises ConfigError with the problems of all."""
        keys = varying(points)
        check_keys(points)
        trials: dict[str, Trial] = {}
        problems: list[Problem] = []
        for point in points:
            try:
                made = self.trial(point, keys)
                trials.setdefault(made.id, made)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))
        return tuple(trials.values())

    def trial(self, overrides: Sequence[str], keys: Iterable[str]) -> Trial:
        own, params = identity.trial_id(overrides), params_of(overrides, keys)
        return Trial(own, self.spec(overrides), tuple(overrides), params)


def texts(overrides: Iterable[str]) -> dict[str, str]:
    """The value of each key as one would type it."""
    return {key: shown(value) for key, value in identity.values(overrides).items()}


def params_of(overrides: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """The values of these keys alone."""
    wanted = {*keys}
    return {key: text for key, text in texts(overrides).items() if key in wanted}


def shown(value: Any) -> str:
    """A value in a table: texts as they are, the rest as JSON, so that `null` is not empty."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def varying(points: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The keys that do not have the same value in every point, in the order of the command."""
    found = [texts(point) for point in points]
    keys = dict.fromkeys(key for each in found for key in each)
    return tuple(key for key in keys if len({each.get(key) for each in found}) > 1)


def check_keys(points: Sequence[Sequence[str]]) -> None:
    """What says how trials are run does not tell them apart. Raises ConfigError."""
    found = [dict(settled(typed) for typed in point) for point in points]
    keys = dict.fromkeys(key for each in found for key in each if identity.is_means(key))
    refuse_means([key for key in keys if len({str(each.get(key)) for each in found}) > 1])


def refuse_means(swept: Sequence[str]) -> None:
    """Raises ConfigError, if there are any."""
    if swept:
        hint = "hydra/launcher=basic makes each trial a run of its own"
        message = "it says how trials are run, and does not tell one from another"
        raise ConfigError([Problem(message, key, hint=hint) for key in swept])


def name_of(specs: Sequence[Spec], overrides: Iterable[str], cwd: Path) -> str:
    """The sweep's: `sweep.name`, else `name`, else one that the same command has again.

    `overrides` are those of any trial. Raises ConfigError.
    """
    spec = specs[0]
    for key, given in (("sweep.name", spec.sweep.name), ("name", spec.config["name"])):
        if given is None:
            continue
        if not is_name(str(given)):
            hint = f"for instance {key}={as_name(str(given))}"
            rule = f"a-z, then a-z, 0-9 and -, at most {NAME_LENGTH}"
            raise ConfigError([Problem(f"not a valid name for a sweep: {rule}", key, hint=hint)])
        return str(given)
    programs = {each.workload.name for each in specs if each.workload}
    program = as_name(programs.pop(), LONGEST_PROGRAM) if len(programs) == 1 else "trials"
    return identity.sweep_name(program, identity.values(overrides), str(cwd))


def groups(
    name: str, trials: Sequence[Trial], asker: Callable[[Spec], Identity]
) -> tuple[Group, ...]:
    """By what is provisioned for them and how it is shared out, in the order of the trials."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(asks_for(trial.spec, asker), []).append(trial)
    made = []
    for members in found.values():
        spec = replace(members[0].spec, name=name)
        made.append(Group(spec, make_plan(spec, asker(spec)), tuple(members)))
    return tuple(made)


def asks_for(spec: Spec, asker: Callable[[Spec], Identity]) -> str:
    """The same for trials that can share a cluster."""
    plan = make_plan(replace(spec, name="any"), asker(spec))
    requests = [[request.to_json() for request in choice.requests] for choice in plan.choices]
    cluster, provider = spec.cluster, spec.provider
    how = [provider.kind, dict(provider.options), cluster.coordinator, spec.sweep.per_trial]
    return json.dumps([requests, how, spec.mode.slices], sort_keys=True, default=str)
