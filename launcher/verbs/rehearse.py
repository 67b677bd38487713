"""`rehearse`: the same run on the emulator, first in peace, then under scripted faults."""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, Problem, WorkloadError
from launcher.record import runs_folder
from launcher.verbs import Arguments
from launcher.verbs.loading import load

if TYPE_CHECKING:
    from launcher.plan import Plan
    from launcher.rehearsal.scenarios import Scenario
    from launcher.rehearsal.series import Series
    from launcher.spec import Spec

# What a rehearsal decides itself: nothing of another place may be touched, nor of other runs.
FORCED = {
    "provider": "local",
    "provider.kind": "local",
    "provider.project": "null",
    "provider.state_dir": "null",
    "provider.rules": "[]",
    "cluster.coordinator": "here",
    "cluster.join_timeout": "2m",
    "workload.checkpoint_dir": "null",
    "keep": "false",
}
MANY_HOSTS = 8
STANDARD = "standard"
"""In place of a file: the scenarios that come with the launcher."""


def rehearse(arguments: Arguments) -> int:
    """0 if every scenario passed, else 5. Raises ConfigError before anything is begun."""
    from launcher import extras
    from launcher.rehearsal import table

    values = arguments.values
    seed = _whole(values, "--seed") if "--seed" in values else secrets.randbelow(10**6)
    scenarios, tolerance = scenarios_of(values, seed), _tolerance(values)
    words, dropped = own_words(arguments.overrides)
    forced = [*words, *(f"{key}={value}" for key, value in FORCED.items())]
    spec, plan = load(dataclasses.replace(arguments, overrides=forced))
    require_fitting(scenarios, plan)
    extras.require(spec)
    notes = list(notes_of(arguments, spec, plan, dropped))
    if "--random" in values:
        notes.append(f"seed {seed}: --random {values['--random']} --seed {seed} draws the same")
    series = prepared(arguments, spec, plan, forced)
    series.tolerance = tolerance
    series.terms = {"name": spec.name, "seed": seed, "notes": notes, **series.terms}
    series.screen.phase("rehearsal", f"{1 + len(scenarios)} runs in {series.folder}")
    for note in notes:
        series.screen.phase("note", note)
    try:
        passed = series.run(scenarios)
    finally:
        series.screen.wait("")
        series.interrupt.uninstall()
    rows = [finding.to_json() for finding in series.findings]
    table.show(rows)
    for remark in table.remarks(rows):
        print(remark)
    print(f"{'passed' if passed else 'FAILED'}: {series.folder / 'rehearsal.json'}")
    return 0 if passed else WorkloadError.exit_code


def prepared(arguments: Arguments, spec: Spec, plan: Plan, words: Sequence[str]) -> Series:
    """A series with a folder of its own. Raises ConfigError if there is one of that name."""
    from launcher.interrupt import Interrupt
    from launcher.rehearsal.conduct import Job
    from launcher.rehearsal.series import Series
    from launcher.screen import Screen

    folder = runs_folder() / spec.name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        hint = "a rehearsal begins in a new folder: choose another name="
        raise ConfigError(
            [Problem(f"the folder cannot be made: {error}", "name", "", hint)]
        ) from None
    own = [word for word in words if key_of(word) != "name"]
    dirs = [f"--config-dir={path}" for path in arguments.config_dirs]
    screen = Screen()
    interrupt = Interrupt(lambda name: screen.phase("stopping", f"{name}: ends the run first"))
    interrupt.install()
    return Series(
        folder,
        Job([*dirs, *own], plan.first.offer.accelerator.hosts),
        screen,
        interrupt,
        strict="--strict" in arguments.flags,
    )


def scenarios_of(values: Mapping[str, str], seed: int) -> tuple[Scenario, ...]:
    """Those of the files, and those drawn by chance; of all these `--only` chooses."""
    from launcher.rehearsal import draw
    from launcher.rehearsal.scenarios import STANDARD as SHIPPED
    from launcher.rehearsal.scenarios import choose, load_all

    drawn = draw.draw(_whole(values, "--random"), seed) if "--random" in values else ()
    default = "" if drawn and "--only" not in values else STANDARD
    names = [name for name in values.get("--faults", default).split(",") if name]
    found = load_all([SHIPPED if name == STANDARD else Path(name) for name in names])
    found = (*found, *drawn)
    return choose(found, values["--only"].split(",")) if "--only" in values else found


def require_fitting(scenarios: Sequence[Scenario], plan: Plan) -> None:
    """Raises ConfigError for what strikes a slice or a host that the run has not got."""
    from launcher.rehearsal.scenarios import misfits

    slices = max(len(choice.nodes) for choice in plan.choices)
    hosts = max(choice.offer.accelerator.hosts for choice in plan.choices)
    problems = [
        Problem(told, scenario.name)
        for scenario in scenarios
        for told in misfits(scenario, slices, hosts)
    ]
    if problems:
        raise ConfigError(problems)


def own_words(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides without those that a rehearsal decides itself, and those that were dropped."""
    dropped = [word for word in overrides if key_of(word).split(".")[0] == "provider"]
    dropped += [word for word in overrides if key_of(word) in FORCED and word not in dropped]
    return [word for word in overrides if word not in dropped], dropped


def key_of(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def notes_of(arguments: Arguments, spec: Spec, plan: Plan, dropped: Sequence[str]) -> Iterator[str]:
    """What is done otherwise than was asked for."""
    if dropped:
        yield f"not heeded: {' '.join(dropped)}: a rehearsal runs on this machine, by itself"
    elif kind := asked_provider(arguments):
        yield f"provider {kind} is not heeded: a rehearsal runs on this machine, by itself"
    if plan.first.hosts > MANY_HOSTS:
        yield f"{plan.first.hosts} hosts are emulated here: cluster=v4-16 is a lighter rehearsal"
    if spec.retry.max_preemptions < 2:
        yield f"retry.max_preemptions is {spec.retry.max_preemptions}: some scenarios need more"


def asked_provider(arguments: Arguments) -> str:
    """The provider that the files choose, if it is another."""
    try:
        spec, _ = load(arguments)
    except ConfigError:  # of a cloud that is not set up here, say; the forced one has been checked
        return ""
    return "" if spec.provider.kind == "local" else spec.provider.kind


def _whole(values: Mapping[str, str], flag: str) -> int:
    """Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,9}", values[flag]):
        raise ConfigError([Problem(f"must be a whole number, not {values[flag]!r}", flag)])
    return int(values[flag])


def _tolerance(values: Mapping[str, str]) -> float:
    """Raises ConfigError."""
    text = values.get("--tolerance", "0")
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        message = f"must be a number from 0 to 1, such as 1e-6, not {text!r}"
        raise ConfigError([Problem(message, "--tolerance")])
    return number
