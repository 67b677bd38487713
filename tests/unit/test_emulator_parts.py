"""Parts of the emulator that need no process: rules, ledger, names, metadata, addresses."""

from __future__ import annotations

import asyncio
import json
import os
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.accelerators import all_types, lookup
from launcher.emulator import faults, guest, init
from launcher.emulator.api_errors import ApiError
from launcher.emulator.client import default_state_dir
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.metadata import MetadataServer, claim_addresses, etag
from launcher.emulator.names import Place, page, split
from launcher.emulator.presence import LINGER, Presence
from launcher.emulator.rules import Rules, duration
from launcher.emulator.wire import v2
from launcher.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("1h", 3600), (3, 3)]
)
def test_durations(text: object, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["30", "s", "-1s", "1d", "", None, True])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration(text)


def test_a_rule_strikes_whom_it_names_and_as_often_as_it_says() -> None:
    rules = Rules()
    rules.arm(faults.parse({"fault": "slow-boot", "node": "a-*", "worker": 1, "count": 2}))
    assert not rules.strike("slow-boot", node="b-1", zone="z", worker=1)
    assert not rules.strike("slow-boot", node="a-1", zone="z", worker=0)
    assert not rules.strike("never-boots", node="a-1", zone="z", worker=1)
    struck = [rules.strike("slow-boot", node="a-1", zone="z", worker=1) for _ in range(3)]
    assert [bool(rule) for rule in struck] == [True, True, False]


def test_faults_know_their_defaults() -> None:
    rule = faults.parse({"fault": "lost-reply"})
    assert (rule.method, rule.count) == ("CreateNode", 1)
    assert faults.parse({"fault": "stockout"}).count is None
    error = faults.parse({"fault": "call-error", "code": "PERMISSION_DENIED"}).error()
    assert (error.code, error.number) == (grpc.StatusCode.PERMISSION_DENIED, 7)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"fault": "stokout"}, ["did you mean stockout?"]),
        ({}, ["there are preempt"]),
        ({"fault": "stockout", "notice": "1s"}, ["notice", "it takes node, zone, count"]),
        ({"fault": "slow-boot", "seconds": "1d", "worker": "x"}, ["seconds", "worker"]),
        ({"fault": "call-error", "code": "NOPE"}, ["no gRPC code", "RESOURCE_EXHAUSTED"]),
    ],
)
def test_a_bad_rule_lists_every_problem(given: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        faults.parse(given)
    assert all(text in str(caught.value) for text in texts)


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.json", '[{"fault": "stockout"}]'), ("r.yaml", "- fault: stockout")],
)
def test_rules_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert [rule.fault for rule in faults.load(tmp_path / name)] == ["stockout"]


@pytest.mark.parametrize("text", ["{", "a: [", "fault: stockout", "- stockout"])
def test_files_that_hold_no_rules(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"r\.yaml"):
        faults.load(tmp_path / "r.yaml")


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
