"""The YAML files and schemas that ship."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from omegaconf import OmegaConf
from referencing import Registry
from referencing.jsonschema import DRAFT7

from launcher import spec
from launcher.accelerators import all_types
from launcher.compose import CONF, SCHEMAS, WORKLOADS, compose
from launcher.config.schema import known_keys, load_schemas
from launcher.provisioning.capacity import CAPACITIES, CURRENT

FILES = sorted(CONF.rglob("*.yaml"))
NAMES = [str(file.relative_to(CONF)) for file in FILES]
MODELINE = re.compile(r"^# yaml-language-server: \$schema=(\S+)$", re.MULTILINE)
SIZES = {
    *("v2-8", "v3-8", "v4-8", "v4-16", "v4-32", "v5p-8", "v5p-16", "v5p-32", "v5p-128"),
    *(f"v5litepod-{size}" for size in (1, 4, 8, 16, 64, 256)),
    *(f"v6e-{size}" for size in (1, 4, 8, 16, 32, 64, 256)),
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return load_schemas(SCHEMAS)


def validator(schemas: dict[str, Any], name: str) -> Draft7Validator:
    resources = [(key, DRAFT7.create_resource(schema)) for key, schema in schemas.items()]
    return Draft7Validator(schemas[name], registry=Registry().with_resources(resources))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_file_names_a_schema_and_fits_it(file: Path, schemas: dict[str, Any]) -> None:
    text = file.read_text(encoding="utf-8")
    modeline = MODELINE.search(text)
    assert modeline, "no yaml-language-server line"
    schema = (file.parent / modeline[1]).resolve()
    assert schema.parent == SCHEMAS
    errors = validator(schemas, schema.name).iter_errors(yaml.safe_load(text))
    assert [error.message for error in errors] == []


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "cluster").glob("*.yaml")))
def test_every_cluster_composes(tmp_path: Path, name: str) -> None:
    assert compose([f"cluster={name}"], cwd=tmp_path).cluster.accelerator.accelerator_type == name


def test_the_sizes_that_people_use_have_files() -> None:
    assert {file.stem for file in (CONF / "cluster").glob("*.yaml")} == SIZES <= set(all_types())


@pytest.mark.parametrize("name", [file.stem for file in (CONF / "experiment").glob("*.yaml")])
def test_every_experiment_composes_and_says_how_to_run_it(tmp_path: Path, name: str) -> None:
    compose([f"experiment={name}"], cwd=tmp_path)
    header = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert header[0] == "# @package _global_"
    assert header[2] == f"# python -m launcher experiment={name}"


def test_google_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    made = compose(["provider=google"], cwd=tmp_path)
    assert (made.provider.kind, made.provider.project) == ("google", "my-project")
    assert dict(made.provider.options) == {}


def test_what_ships_is_there() -> None:
    assert (WORKLOADS / "basic_jax.py").is_file()


@pytest.mark.parametrize("name", [file.name for file in sorted(SCHEMAS.glob("*.json"))])
def test_every_schema_is_valid_closed_and_described(name: str, schemas: dict[str, Any]) -> None:
    schema = schemas[name]
    Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema["$id"] == name
    if "properties" in schema:
        assert schema["additionalProperties"] is False
        assert [key for key, part in schema["properties"].items() if not _described(part)] == []


def test_the_schema_knows_every_capacity_and_every_file(schemas: dict[str, Any]) -> None:
    kinds = schemas["cluster.json"]["definitions"]
    assert set(kinds["capacity"]["anyOf"][0]["enum"]) == {*CAPACITIES, *CURRENT}
    assert set(kinds["acceleratorType"]["anyOf"][0]["enum"]) == SIZES


def test_every_reference_is_there(schemas: dict[str, Any]) -> None:
    for reference in _references(list(schemas.values())):
        name, _, path = reference.partition("#/")
        part = schemas[name]
        for step in filter(None, path.split("/")):
            part = part[step]


def test_the_schema_and_the_primary_file_know_the_same_keys(schemas: dict[str, Any]) -> None:
    primary = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(primary, dict)
    del primary["defaults"], primary["hydra"]
    local = {("provider", "state_dir"), ("provider", "rules")}
    assert set(known_keys(schemas)) - local == set(_keys(primary))


@pytest.mark.parametrize(
    ("name", "noun", "made_of"),
    [
        (
            "cluster.json",
            spec.Cluster,
            {
                "offers": {"accelerator_type", "capacity", "zone", "runtime_version"},
                "queue": {field.name for field in dataclasses.fields(spec.Queue)},
                "machine": {field.name for field in dataclasses.fields(spec.Machine)},
            },
        ),
        ("vm.json", spec.CoordinatorVm, {}),
        (
            "workload.json",
            spec.Workload,
            {
                "name": set(),
                "secret_env": set(),
                "kind": set(),
                "target": {"script", "module", "command"},
            },
        ),
        ("mode.json", spec.Mode, {"name": set(), "sizes": {"slices"}}),
        ("provider.json", spec.ProviderSpec, {"options": {"state_dir", "rules"}}),
        ("retry.json", spec.Retry, {}),
    ],
)
def test_a_schema_has_the_fields_of_its_noun(
    name: str, noun: Any, made_of: dict[str, set[str]], schemas: dict[str, Any]
) -> None:
    fields = [field.name for field in dataclasses.fields(noun)]
    expected = set().union(*(made_of.get(field, {field}) for field in fields))
    assert set(schemas[name]["properties"]) == expected


def _described(part: dict[str, Any]) -> bool:
    return bool(part.get("description")) or "$ref" in part  # a group, described in its own file


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _keys(node: dict[Any, Any], around: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in node.items():
        yield (*around, str(key))
        if isinstance(value, dict):
            yield from _keys(value, (*around, str(key)))
