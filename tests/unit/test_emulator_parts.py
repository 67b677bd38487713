"""Parts of the emulator that need no process: rules, ledger, names, metadata, addresses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from launcher.accelerators import all_types, lookup
from launcher.emulator import control, faults
from launcher.emulator.client import default_state_dir
from launcher.emulator.faults import CODES, FAULTS
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.machine import guest, init
from launcher.emulator.machine.metadata import MetadataServer, claim_addresses, etag
from launcher.emulator.presence import LINGER, Presence
from launcher.emulator.rule_schema import rule_schema
from launcher.emulator.rules import Rules, check_rule, load, parse, parse_for
from launcher.emulator.tpu.errors import ApiError, injected
from launcher.emulator.tpu.names import Place, page, split
from launcher.emulator.tpu.node import LONGEST_BELOW, SOCKET_BYTES, temp_folder
from launcher.emulator.tpu.wire import v2
from launcher.errors import ConfigError

SCHEMAS = Path(__file__).parents[2] / "schemas"
VALUES: dict[str, Any] = {
    "worker": 1,
    "count": 2,
    "code": "ABORTED",
    "limit": 32,
    "endpoints": 3,
    "slices": 3,
    "state": "REPAIRING",
    "health": "TIMEOUT",
    "symptom": "OUT_OF_MEMORY",
    **dict.fromkeys(("seconds", "lasts", "notice", "after"), "1s"),
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("1h", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse({"fault": "preempt", "after": text}).after == seconds


@pytest.mark.parametrize("text", ["30", 30, "s", "-1s", "1d", "", None, True])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ConfigError, match="no duration such as 30s"):
        parse({"fault": "preempt", "after": text})


def test_a_rule_strikes_whom_it_names_and_as_often_as_it_says() -> None:
    rules = Rules()
    rules.arm(parse({"fault": "slow-boot", "node": "a-*", "worker": 1, "count": 2}))
    assert not rules.strike("slow-boot", node="b-1", zone="z", worker=1)
    assert not rules.strike("slow-boot", node="a-1", zone="z", worker=0)
    assert not rules.strike("never-boots", node="a-1", zone="z", worker=1)
    struck = [rules.strike("slow-boot", node="a-1", zone="z", worker=1) for _ in range(3)]
    assert [bool(rule) for rule in struck] == [True, True, False]


def test_faults_know_their_defaults() -> None:
    rule = parse({"fault": "lost-reply"})
    assert rule.count == 1
    ours = [
        m for m in ("CreateNode", "CreateQueuedResource", "CreateOther") if fnmatch(m, rule.method)
    ]
    assert ours == ["CreateNode", "CreateQueuedResource"]
    assert parse({"fault": "stockout"}).count is None
    error = injected("PERMISSION_DENIED", "no")
    assert (error.code, error.number) == (grpc.StatusCode.PERMISSION_DENIED, 7)


def test_codes_are_those_of_grpc() -> None:
    assert [*CODES] == [name for name in grpc.StatusCode.__members__ if name != "OK"]


@pytest.mark.parametrize(
    ("names", "enum"),
    [
        (faults.NODE_STATES, v2.Node.State),
        (faults.QUEUED_STATES, v2.QueuedResourceState.State),
        (faults.HEALTHS, v2.Node.Health),
        (faults.SYMPTOMS, v2.Symptom.SymptomType),
    ],
)
def test_names_are_those_of_the_api(names: tuple[str, ...], enum: Any) -> None:
    assert set(names) == {member.name for member in enum if member.value}


def test_rules_for_some_nodes_strike_no_others() -> None:
    given = [{"fault": "stockout"}, {"fault": "preempt", "node": "other-*"}]
    mine, written = parse_for(["mine-s0", "mine-s1"], given)
    rules = Rules()
    rules.arm(mine, written)
    assert rules.strike("stockout", node="mine-s1", zone="z") is mine
    assert not rules.strike("stockout", node="mine-s10", zone="z")
    assert rules.strike("preempt", node="other-s0", zone="z") is written
    rules.disarm(mine)
    assert not rules.strike("stockout", node="mine-s1", zone="z")
    assert mine not in rules
    assert written in rules


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"fault": "stokout"}, ["did you mean stockout?"]),
        ({}, ["fault: not set", "there are preempt"]),
        ({"fault": ["stockout"]}, ["no fault"]),
        ({"fault": "stockout", "notice": "1s"}, ["notice", "it takes node, zone, lasts, count"]),
        ({"fault": "stockout", "cuont": 1, 2: 3}, ["cuont", "did you mean count?", "2: no option"]),
        ({"fault": "kill-host", "after": "5s"}, ["worker: kill-host needs it"]),
        ({"fault": "preempt", "node": 3, "zone": ""}, ["node: 3 is no text", "zone: '' is no"]),
        ({"fault": "slow-boot", "seconds": "1d", "worker": "x"}, ["seconds", "worker"]),
        ({"fault": "call-error", "code": "NOPE"}, ["no gRPC code", "RESOURCE_EXHAUSTED"]),
    ],
)
def test_a_bad_rule_lists_every_problem(given: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_rule(given)
    assert all(text in str(caught.value) for text in texts)


def test_rules_are_checked_without_grpc_or_google() -> None:
    code = (
        "import sys; from launcher.emulator.rules import check_rule\n"
        "check_rule({'fault': 'repair'})\n"
        "assert not {'grpc', 'google', 'yaml'} & {name.split('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_schema_says_what_the_tables_say() -> None:
    schema = json.loads((SCHEMAS / "provider.json").read_text())
    assert schema["properties"]["rules"]["items"] == rule_schema(), (
        "run python -m launcher.emulator.rule_schema schemas/provider.json"
    )


@pytest.fixture(scope="module")
def in_schema() -> Callable[[object], bool]:
    common = Resource.from_contents(json.loads((SCHEMAS / "common.json").read_text()))
    registry = Registry[Any]().with_resource("common.json", common)
    return Draft7Validator(rule_schema(), registry=registry).is_valid


@pytest.mark.parametrize("fault", FAULTS)
def test_the_schema_takes_every_rule(fault: str, in_schema: Callable[[object], bool]) -> None:
    rule = {"fault": fault, **{key: VALUES.get(key, "text") for key in FAULTS[fault].keys}}
    check_rule(rule)
    assert in_schema(rule)
    rule["message"] = "${oc.env:TEXT}"
    assert in_schema(rule)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"fault": "stokout"},
        {"fault": "stockout", "cuont": 1},
        {"fault": "kill-host"},
        {"fault": "preempt", "after": 5},
        {"fault": "call-error", "code": "OK"},
        {"fault": "stockout", "count": -1},
    ],
)
def test_the_schema_refuses_what_the_check_refuses(
    rule: dict[str, Any], in_schema: Callable[[object], bool]
) -> None:
    with pytest.raises(ConfigError):
        check_rule(rule)
    assert not in_schema(rule)


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.json", '[{"fault": "stockout"}]'), ("r.yaml", "- fault: stockout")],
)
def test_rules_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert [rule.fault for rule in load(tmp_path / name)] == ["stockout"]


def test_every_rule_of_a_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("- fault: stokout\n- {fault: kill-host}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "r.yaml")
    assert [problem.key for problem in caught.value.problems] == ["rules.0.fault", "rules.1.worker"]


@pytest.mark.parametrize("text", ["{", "a: [", "fault: stockout", "- stockout"])
def test_files_that_hold_no_rules(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"r\.yaml"):
        load(tmp_path / "r.yaml")


@given(st.lists(st.sampled_from(["CREATING", "READY", "REPAIRING", "PREEMPTED"]), max_size=8))
def test_only_ready_is_billed(tmp_path_factory: pytest.TempPathFactory, states: list[str]) -> None:
    clock = Clock()
    path = tmp_path_factory.mktemp("ledger") / "ledger.json"
    ledger = Ledger(path, clock)
    entry = ledger.open("n", "z", "v6e-1")
    for state in states:
        ledger.enter(entry, state)
        clock.now += 10
    reread = Ledger(path, clock)
    reread.bury(clock.now)
    (row,) = reread.to_json()["nodes"]
    assert row["billed_seconds"] == pytest.approx(10 * states.count("READY"))
    assert (row["state"], reread.to_json()["left"]) == (GONE, [])


def test_the_ledger_file_is_whole_and_outlives_the_emulator(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.json", clock)
    gone, left = (ledger.open(name, "z", "v6e-1") for name in ("gone", "left"))
    ledger.enter(gone, "PREEMPTED", "preempted")
    ledger.enter(gone, GONE, "deleted")
    ledger.enter(left, "READY")
    found = json.loads((tmp_path / "ledger.json").read_text())
    assert [row["reason"] for row in found["nodes"]] == ["preempted", ""]
    assert found["left"] == ["left"]


def test_the_ledger_forgets_the_oldest_of_those_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.emulator.ledger.KEPT", 3)
    ledger = Ledger(tmp_path / "ledger.json", Clock())
    ledger.open("left", "z", "v6e-1")
    for number in range(6):
        ledger.enter(ledger.open(f"gone-{number}", "z", "v6e-1"), GONE)
    ledger.open("new", "z", "v6e-1")
    names = [row["name"] for row in Ledger(tmp_path / "ledger.json").to_json()["nodes"]]
    assert names == ["left", "gone-3", "gone-4", "gone-5", "new"]


@pytest.mark.parametrize(
    ("folder", "parent"), [("/tmp/t", "/tmp/t"), ("/a", "/a"), ("/tmp/" + "long/" * 9, "/tmp")]
)
def test_temp_folders_leave_room_for_sockets(
    monkeypatch: pytest.MonkeyPatch, folder: str, parent: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    temp = temp_folder("0a0b0c0d")
    assert temp == Path(parent, "tpu-0a0b0c0d")
    assert len(str(temp / LONGEST_BELOW)) <= SOCKET_BYTES


def test_presence() -> None:
    clock = Clock()
    presence = Presence(10.0, clock)
    clock.now += 9
    assert not presence.expired
    presence.touch()
    clock.now += 9
    presence.arrive()
    presence.arrive()
    clock.now += 100
    presence.leave()
    assert not presence.expired
    presence.leave()
    assert not presence.expired
    clock.now += LINGER
    assert presence.expired


@given(st.sets(st.text("abc", min_size=1)), st.integers(1, 5))
def test_pages_hold_every_item_once(names: set[str], size: int) -> None:
    found, token, pages = [], "", 0
    while pages == 0 or token:
        now, token = page(list(names), str, size, token)
        found += now
        pages += 1
    assert found == sorted(names)
    assert pages == max(1, -(-len(names) // size))


@pytest.mark.parametrize(
    ("parent", "code"),
    [
        ("", grpc.StatusCode.INVALID_ARGUMENT),
        ("projects/p", grpc.StatusCode.INVALID_ARGUMENT),
        ("projects/p/locations/-", grpc.StatusCode.PERMISSION_DENIED),
        ("projects/p/locations/moon-a", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_parents_that_are_none(parent: str, code: grpc.StatusCode) -> None:
    with pytest.raises(ApiError) as caught:
        Place.parse(parent)
    assert caught.value.code is code


def test_names_have_two_directions() -> None:
    place = Place("p", "us-east5-a")
    assert split(place.resource("nodes", "n"), "nodes") == (place, "n")
    with pytest.raises(ApiError):
        split(place.resource("nodes", "n"), "operations")


def test_metadata_of_every_accelerator_type() -> None:
    for name in all_types():
        accelerator = lookup(name)
        addresses = tuple(
            f"10.0.{worker // 256}.{worker % 256}" for worker in range(accelerator.hosts)
        )
        me = guest.Identity("p", "z", "n", "0a0b0c0d", accelerator.hosts - 1, addresses)
        values = guest.metadata(me, accelerator, v2.Node(metadata={"k": "v"}))
        assert values["instance/attributes/k"] == "v"
        assert f"ACCELERATOR_TYPE: '{name}'\n" in values["instance/attributes/tpu-env"]
        assert values["instance/attributes/worker-network-endpoints"].count(":") == 2 * len(
            addresses
        )


def ask(values: dict[str, str], target: str, *, allowed: bool = True) -> tuple[HTTPStatus, str]:
    async def answer() -> tuple[HTTPStatus, str]:
        (listener,) = claim_addresses(1)
        with listener:
            server = MetadataServer(listener, values)
            asyncio.get_running_loop().call_later(0.01, server.set, "a/b", "new")
            return (await server.answer("GET", target, allowed=allowed))[:2]

    return asyncio.run(answer())


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/computeMetadata/v1/a/b", 200, "old"),
        ("/computeMetadata/v1/a/", 200, "b\nc/\n"),
        ("/computeMetadata/v1/", 200, "a/\n"),
        ("/computeMetadata/v1/a/?recursive=true", 200, '{"b": "old", "c": {"d": "x"}}'),
        ("/computeMetadata/v1/nope", 404, ""),
        ("/computeMetadata/v1/a/b?wait_for_change=true", 200, "new"),
        (f"/computeMetadata/v1/a/b?wait_for_change=true&last_etag={etag('old')}", 200, "new"),
        ("/computeMetadata/v1/a/b?wait_for_change=true&last_etag=0", 200, "old"),
        ("/computeMetadata/v1/a/c/d?wait_for_change=true&timeout_sec=0.05", 200, "x"),
    ],
)
def test_metadata_answers(target: str, status: int, body: str) -> None:
    assert ask({"a/b": "old", "a/c/d": "x"}, target) == (status, body)


def test_metadata_needs_its_header() -> None:
    assert ask({"a": "b"}, "/computeMetadata/v1/a", allowed=False)[0] == HTTPStatus.FORBIDDEN


def test_addresses_are_taken_once() -> None:
    claimed = claim_addresses(3) + claim_addresses(3)
    addresses = [listener.getsockname()[0] for listener in claimed]
    assert len(set(addresses)) == 6
    assert all(address.startswith("127.") for address in addresses)
    for listener in claimed:
        listener.close()


def test_own_descendants() -> None:
    assert os.getpid() in init.descendants(os.getppid())
    assert os.getpid() not in init.descendants(os.getpid())


def test_default_state_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", "/a")
    assert default_state_dir() == Path("/a/emulator")
    monkeypatch.delenv("LAUNCHER_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert default_state_dir() == Path("/b/launcher/emulator")


def test_a_fault_of_the_emulator_itself_is_told_and_no_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object) -> dict[str, Any]:
        raise BrokenPipeError("odd")

    monkeypatch.setattr(control, "COMMANDS", {"ledger": broken})
    world: Any = SimpleNamespace(calls=SimpleNamespace(presence=None))
    answer = asyncio.run(control.Control(world)._obey({"command": "ledger"}))
    assert answer["error"].startswith("a fault of the emulator: BrokenPipeError('odd')")
    assert "Traceback" in capsys.readouterr().err
