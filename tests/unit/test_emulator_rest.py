"""The emulator's REST front without a socket: routes, errors, lists, machine types, rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st

from launcher.emulator.calls import Calls
from launcher.emulator.compute.firewalls import Firewalls
from launcher.emulator.compute.instances import Instances
from launcher.emulator.compute.lists import MOST, listing
from launcher.emulator.compute.machine_types import MACHINE_TYPES
from launcher.emulator.compute.names import compute_zones
from launcher.emulator.faults import FAULTS, Target
from launcher.emulator.http.routes import Call, Query, Route, Router, error_body
from launcher.emulator.http.services import SERVICES
from launcher.emulator.http.status import COMPUTE_API, HTTP
from launcher.emulator.ledger import Ledger
from launcher.emulator.machine.guest import project_number
from launcher.emulator.presence import Presence
from launcher.emulator.project.projects import Projects
from launcher.emulator.rules import parse, parse_for
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import zones
from launcher.emulator.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    ledger = Ledger(tmp_path / "ledger.json")
    fleet = Fleet(tmp_path, ledger)
    instances = Instances(tmp_path, ledger, fleet.rules)
    projects = Projects(fleet.rules)
    calls = Calls(fleet.rules, projects, Presence(60))
    return World(fleet, instances, Firewalls(instances.operations), projects, calls, "")


def answer(world: World, router: Router, method: str, path: str, **query: str) -> Any:
    return asyncio.run(router.answer(world, method, path, query, ""))


def echo(_: World, call: Call) -> dict[str, Any]:
    return dict(call.params)


ROUTER = Router(
    {
        COMPUTE_API: (
            Route("GET", "/v1/{project}/things/{thing}", echo, "things.get", "thing"),
            Route("POST", "/v1/{project}/things/{thing}:stop", echo, "things.stop", "thing"),
        )
    }
)


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("GET", "/v1/p/things/t", {"project": "p", "thing": "t"}),
        ("POST", "/v1/p/things/t:stop", {"project": "p", "thing": "t"}),
        ("GET", "/v1/p/things/a%2Fb%40c", {"project": "p", "thing": "a/b@c"}),
    ],
)
def test_a_path_finds_its_route(
    world: World, method: str, path: str, params: Mapping[str, str]
) -> None:
    assert answer(world, ROUTER, method, path) == (200, params)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/p/things/t"), ("GET", "/v1/p/things/t:stop"), ("GET", "/v1/p/things/t/u")],
)
def test_a_path_that_is_none(world: World, method: str, path: str) -> None:
    status, body = answer(world, ROUTER, method, path)
    assert (status, body["error"]["status"]) == (404, "NOT_FOUND")
    assert path in body["error"]["message"]


def test_a_parameter_may_come_more_than_once() -> None:
    query = Query([("a", "1"), ("b", "2"), ("a", "3")])
    assert (query, query.every("a"), query.every("c")) == ({"a": "1", "b": "2"}, ["1", "3"], [])


def test_projects_with_a_common_beginning_have_numbers_of_their_own() -> None:
    numbers = {project_number(f"a-project-of-our-company-{i}") for i in range(100)}
    assert len(numbers) == 100
    assert {len(number) for number in numbers} == {12}


def test_a_rule_strikes_the_resource_that_a_path_names(world: World) -> None:
    world.fleet.rules.arm(parse({"fault": "call-error", "node": "t", "method": "things.*"}))
    assert answer(world, ROUTER, "GET", "/v1/p/things/u")[0] == 200
    status, body = answer(world, ROUTER, "GET", "/v1/p/things/t")
    assert (status, body["error"]["status"]) == (500, "INTERNAL")
    assert world.calls.counts == {"things.get": 2}


def test_a_mistake_of_the_emulator_is_an_error_and_no_hang(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: World, call: Call) -> dict[str, Any]:
        raise KeyError("oops")

    router = Router({COMPUTE_API: (Route("GET", "/x", broken, "x.get"),)})
    assert answer(world, router, "GET", "/x")[0] == 500
    assert "oops" in capsys.readouterr().err


def test_every_code_has_a_status() -> None:
    assert set(HTTP) == set(StatusCode) - {StatusCode.OK}
    for code in HTTP:
        status, body = error_body(ApiError(code, "text"))
        assert (status, body["error"]["code"]) == (HTTP[code][0],) * 2
        assert body["error"]["errors"][0]["message"] == "text"
    assert error_body(ApiError(StatusCode.RESOURCE_EXHAUSTED, ""), COMPUTE_API)[0] == 403


def test_no_two_routes_answer_the_same_request() -> None:
    routes = [route for routes in SERVICES.values() for route in routes]
    router = Router(SERVICES)
    for route in routes:
        path = route.pattern.replace("{", "").replace("}", "")
        assert router.find(route.method, path)[1] is route, route.pattern


names = st.lists(st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True), unique=True)


@given(names, st.integers(1, 5))
def test_pages_hold_everything_once(found: list[str], size: int) -> None:
    items = [{"name": name} for name in found]
    seen: list[str] = []
    query = {"maxResults": str(size)}
    while True:
        page = listing("k", items, query)
        seen += [item["name"] for item in page.get("items", [])]
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert seen == sorted(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["a", "b"]),
        ("name=a", ["a"]),
        ('labels.run="x y"', ["b"]),
        ("labels.run:*", ["b"]),
        ("labels.run!=z", ["a", "b"]),
        ("(name=b) (labels.run:x)", ["b"]),
        ("name=b AND ready=true", ["b"]),
    ],
)
def test_filters(text: str, expected: list[str]) -> None:
    items = [{"name": "a"}, {"name": "b", "labels": {"run": "x y"}, "ready": True}]
    found = listing("k", items, {"filter": text})
    assert [item["name"] for item in found.get("items", [])] == expected


@pytest.mark.parametrize(
    "query",
    [
        {"filter": "name"},
        {"filter": "name=a OR"},
        {"filter": "a=b)c"},
        {"maxResults": str(MOST + 1)},
        {"maxResults": "-1"},
        {"pageToken": "é"},
    ],
)
def test_what_no_list_can_be_asked(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        listing("k", [], query)
    assert caught.value.code == StatusCode.INVALID_ARGUMENT


def test_machine_types_and_zones() -> None:
    assert MACHINE_TYPES["n1-standard-4"].memory == 15 * 1024
    assert MACHINE_TYPES["e2-standard-2"].memory == 8 * 1024
    assert zones() < compute_zones()
    assert "moon-a" not in compute_zones()


def test_rules_of_a_run_mean_its_whole_project() -> None:
    project = [name for name, fault in FAULTS.items() if fault.target is Target.PROJECT]
    assert {"api-disabled", "permission-missing"} <= set(project)
    for rule in parse_for(["mine"], [{"fault": name} for name in project]):
        assert rule.matches(rule.fault, ("",), "", "tpu.googleapis.com", None)
