"""The closed JSON Schemas (draft-07, the same that editors use) against a composed config.

The text of a problem is the schema's own `errorMessage`, which editors show too. A value is quoted
as it was written, never as it was resolved: it may come from the environment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.config.nearest import nearest_hint, nearest_or_all
from launcher.config.origins import Key, Origins
from launcher.config.overrides import quoted
from launcher.errors import Problem

_JOB = "job.json"
_MESSAGES = {"type": "must be {0}", "minItems": "must not be empty"}
_TYPES = {"object": "a map of keys", "array": "a list"}


def schema_problems(plain: Mapping[str, Any], origins: Origins, folder: Path) -> list[Problem]:
    """Every breach of `job.json` in that folder."""
    validator, schemas = _validator(folder)
    errors = sorted(validator.iter_errors(plain), key=lambda error: list(map(str, error.path)))
    return [found for error in errors for found in _problems(error, validator, origins, schemas)]


@functools.cache
def _validator(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """Of `job.json`, with every schema of that folder: those are read once."""
    schemas = load_schemas(folder)
    return validator_of(schemas[_JOB], schemas), schemas


def validator_of(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Of draft-07, but for one thing: 2.0 is no whole number, since no `range` takes it.

    `named` are the schemas that it may refer to. Their `$schema` is left out: jsonschema would
    go by that draft's own idea of a whole number.
    """
    from jsonschema import Draft4Validator, Draft7Validator, validators
    from referencing import Registry
    from referencing.jsonschema import DRAFT7

    resources = [(name, DRAFT7.create_resource(_bare(one))) for name, one in named.items()]
    checker: Any = validators
    strict = checker.extend(Draft7Validator, type_checker=Draft4Validator.TYPE_CHECKER)
    return strict(_bare(schema), registry=Registry[Any]().with_resources(resources).crawl())


def _bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$schema"}


def load_schemas(folder: Path) -> dict[str, Any]:
    """Every schema of a folder by its file name, which is its `$id`."""
    files = sorted(folder.glob("*.json"))
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def known_keys(schemas: Mapping[str, Any], name: str = _JOB, around: Key = ()) -> Iterator[Key]:
    """Every key that the schemas know, maps included."""
    for key, schema in schemas[name]["properties"].items():
        yield (*around, key)
        if (inner := schema.get("$ref", "#")) in schemas:
            yield from known_keys(schemas, inner, (*around, key))


def _problems(
    error: Any, validator: Any, origins: Origins, schemas: Mapping[str, Any]
) -> Iterator[Problem]:
    key = tuple(map(str, error.absolute_path))
    if error.validator == "additionalProperties":
        yield from _unknown_keys(error, key, origins, known_keys(schemas))
    elif error.validator == "required":
        for name in sorted(set(error.validator_value) - set(error.instance)):
            if error.message.startswith(f"'{name}' "):
                yield origins.problem("not set", (*key, name))
    else:
        yield _wrong_value(error, key, validator, origins)


def _unknown_keys(
    error: Any, key: Key, origins: Origins, known: Iterable[Key]
) -> Iterator[Problem]:
    siblings = error.schema["properties"]
    deepest_first = sorted(
        known, key=len, reverse=True
    )  # so that cluster.zone beats cluster.vm.zone
    elsewhere = {other[-1]: ".".join(other) for other in deepest_first}
    for name in sorted(map(str, set(error.instance) - set(siblings))):
        begins = any(sibling.startswith(name) for sibling in siblings)
        other = None if begins else elsewhere.get(name)
        hint = f"did you mean {other}?" if other else nearest_or_all(name, siblings)
        yield origins.problem("no such key", (*key, name), hint)


def _wrong_value(error: Any, key: Key, validator: Any, origins: Origins) -> Problem:
    expected = error.schema.get("errorMessage") or _MESSAGES.get(
        error.validator, "is not valid here"
    ).format(_TYPES.get(str(error.validator_value), error.validator_value))
    origin = origins.get(key)
    text = origin.text if origin else None
    shown = f"{expected}, not {text!r}" if text is not None else expected
    hint = next(_nearest_words(error, origins), "")
    if origin and text is not None and _wants_text(error, text, validator):
        dotted = ".".join(key)
        typed = origin.where == f"{dotted}={text}"  # a shell takes plain quotes away
        hint = quoted(dotted, text) if typed else f'quote it: "{text}"'
    return origins.problem(shown, key, hint)


def _wants_text(error: Any, text: str, validator: Any) -> bool:
    """Whether what YAML made something else of would be right as it was written."""
    as_written = validator.evolve(schema=error.schema).is_valid(text)
    return as_written and not isinstance(error.instance, str)


def _nearest_words(error: Any, origins: Origins) -> Iterator[str]:
    """For words that are none of those known here: `did you mean …?`, by what was written."""
    for inner in error.context:
        yield from _nearest_words(inner, origins)
    if error.validator == "enum":
        origin = origins.get(tuple(map(str, error.absolute_path)))
        known = [name for name in error.validator_value if isinstance(name, str)]
        written = origin.text if origin and origin.text else error.instance  # inside of a list
        if isinstance(written, str) and (hint := nearest_hint(written, known)):
            yield hint
