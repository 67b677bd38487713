"""The JSON Schema of a rule in a configuration, made from the tables of faults and options.

python -m launcher.emulator.rule_schema schemas/provider.json     brings the file up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from launcher.emulator import faults
from launcher.emulator.faults import FAULTS, OPTIONS, OneOf, Option

# What resolves to a value is checked when it has: the form of every schema beside this one.
_LATER = {"type": "string", "pattern": "^(\\$\\{|\\?\\?\\?$)"}
_VALUES: dict[Any, dict[str, Any]] = {
    faults.read_text: {"allOf": [{"$ref": "common.json#/definitions/text"}]},
    faults.read_count: {"allOf": [{"$ref": "common.json#/definitions/count"}]},
    faults.read_duration: {"allOf": [{"$ref": "common.json#/definitions/duration"}]},
}


def rule_schema() -> dict[str, Any]:
    """One rule: closed, with every key that some fault takes. `check_rule` knows which takes what.

    Draft-07, for the `items` of `rules`, in a folder with `common.json`.
    """
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["fault"],
        "properties": {"fault": _fault(), **{key: _option(key) for key in OPTIONS}},
        "allOf": [_needed(key) for key in OPTIONS if _needing(key)],
    }


def _needing(key: str) -> list[str]:
    return [name for name, fault in FAULTS.items() if key in fault.required]


def _needed(key: str) -> dict[str, Any]:
    """The faults whose rules must hold that key."""
    return {
        "if": {"required": ["fault"], "properties": {"fault": {"enum": _needing(key)}}},
        "then": {"required": [key]},
    }


def _fault() -> dict[str, Any]:
    lines = (f"{name}: {fault.help} ({', '.join(fault.keys)})" for name, fault in FAULTS.items())
    return {
        "description": "\n".join(lines),
        "errorMessage": f"must be one of {', '.join(FAULTS)}",
        "anyOf": [{"enum": [*FAULTS]}, _LATER],
    }


def _option(key: str) -> dict[str, Any]:
    option = OPTIONS[key]
    return {"description": option.help, **_value(option)}


def _value(option: Option) -> dict[str, Any]:
    if not isinstance(option.read, OneOf):
        return _VALUES[option.read]
    return {
        "errorMessage": f"must be the name of a {option.read.kind}, such as {option.example}",
        "anyOf": [{"enum": [*option.read.names]}, _LATER],
    }


def main(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    schema["properties"]["rules"]["items"] = rule_schema()
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
