"""Rules: which fault strikes whom, when, and how often; how they are checked and read."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from launcher.config.nearest import nearest_hint
from launcher.emulator.faults import FAULTS, OPTIONS, Fault
from launcher.errors import ConfigError, Problem


@dataclass(slots=True, eq=False)
class Rule:
    """One fault, whom it strikes, and how often.

    `node`, `zone` and `method` are shell patterns, `among` the only ids if not None; `worker`
    None means any; `count` None means without end. Durations are in seconds; what `seconds`
    measures is for the fault to say, `code` is the name of a gRPC code.
    """

    fault: str
    node: str = "*"
    zone: str = "*"
    method: str = "*"
    worker: int | None = None
    count: int | None = None
    seconds: float = 0.0
    notice: float = 0.0
    after: float = 0.0
    lasts: float | None = None
    code: str = "INTERNAL"
    message: str = "an internal error has occurred"
    limit: int = 0
    endpoints: int = 0
    slices: int = 3
    key: str = ""
    value: str = ""
    state: str = ""
    health: str = ""
    symptom: str = ""
    among: frozenset[str] | None = None
    armed: float = field(default_factory=time.monotonic)

    def matches(
        self, fault: str, ids: Iterable[str], zone: str, method: str, worker: int | None
    ) -> bool:
        return (
            self.fault == fault
            and self.count != 0
            and self.concerns(ids, zone)
            and fnmatchcase(method, self.method)
            and self.worker in (None, worker)
            and (self.lasts is None or time.monotonic() < self.armed + self.lasts)
        )

    def concerns(self, ids: Iterable[str], zone: str) -> bool:
        """Whether it may strike what has one of these ids, in that zone."""
        return fnmatchcase(zone, self.zone) and any(
            fnmatchcase(one, self.node) and (self.among is None or one in self.among) for one in ids
        )


class Rules:
    """The armed rules, in the order in which they were armed."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def arm(self, *rules: Rule) -> None:
        self._rules += rules

    def disarm(self, *rules: Rule) -> None:
        """Those rules strike no more, even where one of them has begun to wait for its time."""
        self._rules = [rule for rule in self._rules if rule not in rules]

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._rules

    def of(self, fault: str) -> list[Rule]:
        """The armed rules of that fault."""
        return [rule for rule in self._rules if rule.fault == fault]

    def strike(
        self,
        fault: str,
        *,
        node: str,
        zone: str,
        also: Sequence[str] = (),
        method: str = "",
        worker: int | None = None,
        named: bool = False,
        states: Collection[str] = (),
    ) -> Rule | None:
        """The first rule that matches, one strike of it used up; None if nothing is to happen.

        `also` are further ids of what may be struck: those of a queued resource's nodes. With
        `named`, a rule that does not say which node it is for strikes nothing. `states` are those
        that it can have: a rule that sets another is for others.
        """
        for rule in self._rules:
            if named and rule.node == "*":
                continue
            if rule.state and rule.state not in states:
                continue
            if rule.matches(fault, (node, *also), zone, method, worker):
                if rule.count is not None:
                    rule.count -= 1
                return rule
        return None


def check_rule(given: Mapping[str, Any]) -> None:
    """Raises ConfigError with every problem in a rule; the keys of the problems are the rule's."""
    if problems := list(_problems(given)):
        raise ConfigError(problems)


def parse(given: Mapping[str, Any]) -> Rule:
    """The rule that a mapping describes, as `{"fault": "stockout", "zone": "us-*", "count": 2}`.

    Raises ConfigError with every problem in it.
    """
    check_rule(given)
    name = given["fault"]
    read = {key: OPTIONS[key].read(value) for key, value in given.items() if key != "fault"}
    return Rule(name, **{**FAULTS[name].defaults, **read})


def parse_all(given: object) -> tuple[Rule, ...]:
    """The rules that a list of mappings describes. Raises ConfigError with every problem."""
    if not isinstance(given, Sequence) or not all(isinstance(row, Mapping) for row in given):
        raise ConfigError("rules are a list of mappings")
    problems = [
        replace(problem, key=f"rules.{index}.{problem.key}")
        for index, row in enumerate(given)
        for problem in _problems(row)
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(map(parse, given))


def parse_for(nodes: Sequence[str], given: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """As `parse_all`; a rule that names no node, though it could, strikes none but these."""
    rules = parse_all(given)
    for rule, row in zip(rules, given, strict=True):
        if "node" not in row and "node" in FAULTS[rule.fault].keys:
            rule.among = frozenset(nodes)
    return rules


def load(path: Path) -> tuple[Rule, ...]:
    """The rules in a JSON or YAML file: a list of mappings. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        return parse_all(json.loads(text) if path.suffix == ".json" else _yaml(text))
    except ConfigError as error:
        raise ConfigError([replace(p, where=str(path)) for p in error.problems]) from error
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(str(error), where=str(path))]) from error


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _problems(given: Mapping[str, Any]) -> Iterator[Problem]:
    name = str(given.get("fault", ""))
    fault = FAULTS.get(name)
    if fault is None:
        message = f"no fault {name!r}" if "fault" in given else "not set"
        every = f"there are {', '.join(FAULTS)}"
        yield Problem(message, key="fault", hint=nearest_hint(name, FAULTS) or every)
        return
    for key in fault.required:
        if key not in given:
            yield Problem(f"{name} needs it", key=key, hint=_example(key))
    for key, value in given.items():
        if key != "fault":
            yield from _option_problems(name, fault, str(key), value)


def _example(key: str) -> str:
    return f"{OPTIONS[key].help}, such as {OPTIONS[key].example}"


def _option_problems(name: str, fault: Fault, key: str, value: object) -> Iterator[Problem]:
    if key not in fault.keys:
        near = "" if key in OPTIONS else nearest_hint(key, fault.keys)
        hint = near or f"it takes {', '.join(fault.keys)}"
        yield Problem(f"no option of {name}", key=key, hint=hint)
        return
    try:
        OPTIONS[key].read(value)
    except ValueError as error:
        yield Problem(str(error), key=key)
