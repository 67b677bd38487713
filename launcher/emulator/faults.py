"""The named faults: what each does, and which options it takes.

A fault with an `act` happens to a node: at once when commanded, or as a rule, `after` seconds from
READY. One without waits for a call, an operation or a boot that its rule matches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.emulator.rules import OPTIONS, Rule
from launcher.errors import ConfigError, Problem

if TYPE_CHECKING:
    from launcher.emulator.fleet import Fleet
    from launcher.emulator.node import EmulatedNode

# Its call checks and raises; the coroutine that it returns does the deed.
Act = Callable[["Fleet", "EmulatedNode", Rule], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: a line of help, the options of its rules, and what it does to a node."""

    help: str
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    act: Act | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Everything that a rule of this fault may hold."""
        late = ("after", "count") if self.act else ()
        return ("node", "zone", *self.options, *late)


_ONCE = {"count": 1}
_ONE_CREATE = {"count": 1, "method": "CreateNode"}

FAULTS: Mapping[str, Fault] = {
    "preempt": Fault(
        "take a node back: its metadata says so; after --notice its hosts end",
        ("notice",),
        _ONCE,
        lambda fleet, node, rule: fleet.preempt(node, rule.notice),
    ),
    "maintenance-event": Fault(
        "announce maintenance; after --notice the hosts end and the node is TERMINATED",
        ("notice",),
        _ONCE,
        lambda fleet, node, rule: fleet.maintain(node, rule.notice),
    ),
    "repair": Fault(
        "a node ends its hosts, is REPAIRING for --seconds, and boots again",
        ("seconds",),
        _ONCE,
        lambda fleet, node, rule: fleet.repair(node, rule.seconds),
    ),
    "kill-host": Fault(
        "end one host, while the API goes on saying READY",
        ("worker",),
        _ONCE,
        lambda _, node, rule: node.host(rule.worker).end(),
    ),
    "freeze-host": Fault(
        "stop every process of one host, as if it hung",
        ("worker",),
        _ONCE,
        lambda _, node, rule: node.host(rule.worker).freeze(),
    ),
    "thaw-host": Fault(
        "let a frozen host go on",
        ("worker",),
        _ONCE,
        lambda _, node, rule: node.host(rule.worker).thaw(),
    ),
    "slow-boot": Fault("the startup script starts --seconds late", ("worker", "seconds", "count")),
    "never-boots": Fault("the startup script never starts", ("worker", "count")),
    "slow-create": Fault("a create takes --seconds", ("seconds", "count")),
    "slow-delete": Fault("a delete takes --seconds", ("seconds", "count")),
    "stockout": Fault("a create finds no capacity: code 8 in its operation", ("count",)),
    "operation-error": Fault(
        "an operation ends in --code and --message",
        ("method", "code", "message", "count"),
        _ONE_CREATE,
    ),
    "operation-hangs": Fault(
        "an operation is never done, though its node gets there", ("method", "count"), _ONE_CREATE
    ),
    "call-error": Fault(
        "a call is refused with --code and --message: quota, permission, …",
        ("method", "code", "message", "count"),
        _ONE_CREATE,
    ),
    "lost-reply": Fault(
        "a call is carried out, but its caller gets UNAVAILABLE", ("method", "count"), _ONE_CREATE
    ),
    "unavailable": Fault("calls get UNAVAILABLE", ("method", "lasts", "count")),
}


def parse(given: Mapping[str, Any]) -> Rule:
    """The rule that a mapping describes, as `{"fault": "stockout", "zone": "us-*", "count": 2}`.

    Raises ConfigError with every problem in it.
    """
    name = str(given.get("fault"))
    fault = FAULTS.get(name)
    if fault is None:
        near = get_close_matches(name, FAULTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FAULTS)}"
        raise ConfigError([Problem(f"no fault {name!r}", key="fault", hint=hint)])
    values = {key: value for key, value in given.items() if key != "fault" and value is not None}
    if problems := [found for item in values.items() if (found := _problem(name, fault, *item))]:
        raise ConfigError(problems)
    read = {key: OPTIONS[key].read(value) for key, value in values.items()}
    return Rule(name, **{**fault.defaults, **read})


def _problem(name: str, fault: Fault, key: str, value: object) -> Problem | None:
    if key not in fault.keys:
        return Problem(f"no option of {name}; it takes {', '.join(fault.keys)}", key=key)
    try:
        OPTIONS[key].read(value)
    except ValueError as error:
        return Problem(str(error), key=key)
    return None


def load(path: Path) -> tuple[Rule, ...]:
    """The rules in a JSON or YAML file: a list of mappings. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(str(error), where=str(path))]) from error
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise ConfigError([Problem("rules are a list of mappings", where=str(path))])
    return tuple(parse(row) for row in found)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
