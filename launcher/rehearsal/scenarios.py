"""What is to happen in a rehearsal: scenarios as data, read from YAML.

A file is a list of scenarios, checked against `schemas/rehearsal.json`; what a fault may be given
is known to the emulator. Every problem is told with its file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.compose import SCHEMAS
from launcher.config.files import read, syntax_problem
from launcher.config.nearest import nearest_hint
from launcher.config.schema import validator_of
from launcher.config.values import is_name, seconds
from launcher.emulator.faults import FAULTS
from launcher.emulator.rules import check_rule
from launcher.errors import ConfigError, Problem

STANDARD = Path(__file__).with_name("standard.yaml")
CLEAN = "clean"
"""The name of the run that nothing happens to."""

DELETE_NODE, KILL_LAUNCHER = "delete-node", "kill-launcher"
KILL_HEAD, FREEZE_HEAD = "kill-head", "freeze-head"
OWN_DEEDS: Mapping[str, str] = {
    DELETE_NODE: "delete the node of a slice with a client that knows nothing of the launcher",
    KILL_LAUNCHER: "SIGKILL to the launcher, then the same command again",
    KILL_HEAD: "SIGKILL to every process of the run's Ray head",
    FREEZE_HEAD: "SIGSTOP to every process of the run's Ray head",
}
LAST = "last"
"""As a worker: the host of the highest worker id."""
DRAWN = "random-"
"""Begins the names of scenarios drawn by chance."""

_OF_DEEDS = ("when", "do", "slice")  # all other keys are those of the fault
_TYPES = {"object": "a map of keys", "array": "a list", "string": "text"}

Path_ = tuple[str | int, ...]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class When:
    """What a deed waits for, one after the other, from the moment of the deed before it.

    First an event of that kind in the run folder, then a step (`share` is a part of all steps of
    the clean run), then a change below the checkpoint folder; then `after` seconds pass.
    """

    event: str | None = None
    step: int | None = None
    share: float | None = None
    checkpoint: bool = False
    after: float = 0.0

    def __str__(self) -> str:
        share = None if self.share is None else f"step {self.share:.0%}"
        words = (
            self.event and f"event {self.event}",
            share if self.step is None else f"step {self.step}",
            self.checkpoint and "a change of the checkpoints",
            self.after and f"{self.after:g} s",
        )
        return ", then ".join(word for word in words if word) or "at once"


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that is done: a fault of the emulator with its options, or one of OWN_DEEDS.

    Without `when` it is done at once; the first of a scenario before the launcher starts.
    """

    do: str
    when: When | None = None
    slice: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.do}{f' ({options})' if options else ''}"


@dataclass(frozen=True, slots=True)
class Expect:
    """How a scenario is to end; ranges are the least and the most."""

    preemptions: Range
    failures: Range = (0, 0)
    status: str = "succeeded"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`limit` is in seconds; None: by the time of the clean run. `source` is as written.

    `by_chance`: deeds may come too late, since nobody knows what the earlier ones do to the run.
    """

    name: str
    deeds: tuple[Deed, ...]
    expect: Expect
    about: str = ""
    limit: float | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    by_chance: bool = False


def load(path: Path) -> tuple[Scenario, ...]:
    """The scenarios of a file. Raises ConfigError with every problem in it."""
    try:
        node = read(path)
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([syntax_problem(error, str(path))]) from error
    except OSError as error:
        raise ConfigError(f"{path}: no file of scenarios: {error.strerror or error}") from error
    if problems := [
        Problem(text, _dotted(key), f"{path}:{_line(node, key)}", hint)
        for key, text, hint in _problems(rows)
    ]:
        raise ConfigError(problems)
    return tuple(map(make, rows))


def load_all(paths: Sequence[Path]) -> tuple[Scenario, ...]:
    """The scenarios of several files. Raises ConfigError, also if two have the same name."""
    found: dict[str, Scenario] = {}
    for path in paths:
        for scenario in load(path):
            if scenario.name in found:
                raise ConfigError(f"another scenario is named {scenario.name} ({path})")
            found[scenario.name] = scenario
    return tuple(found.values())


def choose(scenarios: Sequence[Scenario], names: Sequence[str]) -> tuple[Scenario, ...]:
    """Those of these names, in the order of the files. Raises ConfigError for one that is none."""
    known = [scenario.name for scenario in scenarios]
    if unknown := [name for name in names if name not in known]:
        every = f"there are {', '.join(known)}"
        raise ConfigError(
            [
                Problem(
                    f"no scenario {name!r}",
                    "--only",
                    hint=_drawn(name) or nearest_hint(name, known) or every,
                )
                for name in unknown
            ]
        )
    return tuple(scenario for scenario in scenarios if scenario.name in names)


def _drawn(name: str) -> str:
    return "--random N --seed S draws it" if name.startswith(DRAWN) else ""


def misfits(scenario: Scenario, slices: int, hosts: int) -> Iterator[str]:
    """What is done to slices, or to hosts of a slice, that the run has not got."""
    for deed in scenario.deeds:
        worker = deed.options.get("worker")
        if deed.slice >= slices:
            yield f"{deed.do}: no slice {deed.slice}, the run has {slices}, from 0 on"
        if isinstance(worker, int) and worker >= hosts:
            yield f"{deed.do}: no worker {worker}, a slice has {hosts}, from 0 on"


def make(row: Mapping[str, Any]) -> Scenario:
    """A scenario out of a row that has been checked."""
    deeds = tuple(map(_deed, row["deeds"]))
    given = row.get("expect", {})
    strikes = sum(deed.do not in (KILL_LAUNCHER, "stockout") for deed in deeds)
    expect = Expect(
        _range(given.get("preemptions", [0, strikes])),
        _range(given.get("failures", 0)),
        given.get("status", "succeeded"),
    )
    limit = seconds(row["limit"]) if "limit" in row else None
    return Scenario(row["name"], deeds, expect, row.get("about", ""), limit, dict(row))


def _deed(row: Mapping[str, Any]) -> Deed:
    options = {key: value for key, value in row.items() if key not in _OF_DEEDS}
    when = _when(row["when"]) if "when" in row else None
    return Deed(row["do"], when, row.get("slice", 0), options)


def _when(row: Mapping[str, Any]) -> When:
    step = row.get("step")
    share = float(step.rstrip("%")) / 100 if isinstance(step, str) else None
    return When(
        row.get("event"),
        step if share is None else None,
        share,
        "checkpoint" in row,
        seconds(row.get("after", "0s")),
    )


def _range(given: int | Sequence[int]) -> Range:
    least, most = (given, given) if isinstance(given, int) else given
    return least, most


def _problems(rows: Any) -> Iterator[tuple[Path_, str, str]]:
    """Where in the data, what is wrong, and a hint."""
    schema = json.loads((SCHEMAS / "rehearsal.json").read_text(encoding="utf-8"))
    breaches = sorted(
        validator_of(schema, {}).iter_errors(rows), key=lambda e: [*map(str, e.absolute_path)]
    )
    if breaches:
        yield from (found for breach in breaches for found in _of_schema(breach))
        return
    for index, row in enumerate(rows):
        if not is_name(row["name"]) or row["name"] == CLEAN:
            yield (index, "name"), f"{row['name']!r} cannot be a name: a-z, 0-9 and -", ""
        if any(other["name"] == row["name"] for other in rows[:index]):
            yield (index, "name"), f"another scenario is named {row['name']!r}", ""
        for key, text in _of_terms(row):
            yield (index, *key), text, ""
        for number, deed in enumerate(row["deeds"]):
            for key, text, hint in _of_deed(deed):
                yield (index, "deeds", number, *key), text, hint


def _of_terms(row: Mapping[str, Any]) -> Iterator[tuple[Path_, str]]:
    """What no scenario can hold to."""
    if "limit" in row and not seconds(row["limit"]):
        yield ("limit",), "leaves no time"
    for name in ("preemptions", "failures"):
        least, most = _range(row.get("expect", {}).get(name, 0))
        if least > most:
            yield ("expect", name), f"from {least} to {most} there is no number"


def _of_deed(row: Mapping[str, Any]) -> Iterator[tuple[Path_, str, str]]:
    do, options = row["do"], {key: row[key] for key in row if key not in _OF_DEEDS}
    if do in OWN_DEEDS:
        yield from (((key,), f"no option of {do}", "") for key in options)
        return
    if do not in FAULTS:
        every = f"there are {', '.join((*OWN_DEEDS, *FAULTS))}"
        yield ("do",), f"no deed {do!r}", nearest_hint(do, (*OWN_DEEDS, *FAULTS)) or every
        return
    if options.get("worker") == LAST:
        options["worker"] = 0
    try:
        check_rule({"fault": do, **options})
    except ConfigError as error:
        yield from (((problem.key,), problem.message, problem.hint) for problem in error.problems)


def _of_schema(breach: Any) -> Iterator[tuple[Path_, str, str]]:
    path, schema = tuple(breach.absolute_path), breach.schema
    if breach.validator == "additionalProperties":
        for key in sorted(map(str, set(breach.instance) - set(schema["properties"]))):
            known = schema["properties"]
            every = f"known are {', '.join(known)}"
            yield (*path, key), "no such key", nearest_hint(key, known) or every
        return
    if breach.validator == "required":
        missing = [key for key in breach.validator_value if key not in breach.instance]
        yield from (((*path, key), "not set", "") for key in missing)
        return
    default = f"must be {_TYPES.get(str(breach.validator_value), breach.validator_value)}"
    yield path, schema.get("errorMessage", default), ""


def _dotted(key: Path_) -> str:
    return ".".join(map(str, key))


def _line(node: yaml.Node | None, key: Path_) -> int:
    """The line of what lies at a path, or of the nearest node around it."""
    line = 1
    for part in key:
        if isinstance(node, yaml.MappingNode):
            pairs = [(k, v) for k, v in node.value if k.value == part]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1 if node is not None else line
    return line
