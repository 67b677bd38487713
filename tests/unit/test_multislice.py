"""Several slices: their plan, their environment, and which of them a run takes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import cluster, registry
from launcher.accelerators import lookup
from launcher.cluster import Expected, Host, require_true
from launcher.compose import WORKLOADS, compose
from launcher.emulator.machine import guest
from launcher.emulator.tpu.wire import v2
from launcher.errors import ClusterError, ConfigError, ProvisioningError, Reason, Refused
from launcher.hosts import tpu_env
from launcher.hosts.member import Place
from launcher.plan import Choice, Plan, make_plan, part_of
from launcher.providers.states import State
from launcher.provisioning import elastic, joining, looks, on_record, slices
from launcher.provisioning.chain import Memory
from launcher.provisioning.on_record import offer_of, provider_of, recorded_choice
from launcher.provisioning.requests import Identity
from launcher.ranks import megascale
from launcher.raynode import INCARNATION_LABEL
from launcher.spec import Spec

sys.path.insert(0, str(WORKLOADS))

import device_mesh

LIST = "mode.slices=[1,4,2]"


def planned(*overrides: str) -> tuple[Spec, Plan]:
    spec = compose(["name=t", "cluster=v4-16", *overrides], cwd=Path.cwd())
    return spec, make_plan(spec, Identity("me", "0123456789ab", "some-project"))


def session_of(*overrides: str) -> Any:
    spec, plan = planned(*overrides)
    return SimpleNamespace(spec=spec, plan=plan)


def hosts_of(*places: Place) -> dict[Place, Host]:
    return {(s, w): Host(s, w, f"n-s{s}", f"10.{s}.0.{w}", "", "", None) for s, w in places}


FOUR = hosts_of((0, 0), (0, 1), (1, 0), (1, 1))


def test_the_mode_has_two_slices_and_a_list_is_taken_from_the_largest_on(tmp_path: Path) -> None:
    mode = compose(["mode=multislice"], cwd=tmp_path).mode
    assert (mode.framework, mode.slices, mode.sizes, mode.is_elastic) == ("jax", 2, (2,), False)
    mode = compose(["mode=multislice", LIST], cwd=tmp_path).mode
    assert (mode.slices, mode.sizes, mode.is_elastic) == (4, (4, 2, 1), True)
    assert (mode.probe_interval, mode.resize_interval) == (600, 1800)
    for wrong in ("[]", "[1,1]", "[0,1]", "[a]", "{a: 1}"):
        with pytest.raises(ConfigError, match=r"mode\.slices"):
            compose([f"mode.slices={wrong}"], cwd=tmp_path)


def test_intervals_without_a_list_are_noted(tmp_path: Path) -> None:
    words = ["provider=local", "mode.probe_interval=1m"]
    (note,) = compose(words, cwd=tmp_path).notes
    assert note.startswith("mode.probe_interval: of no use unless mode.slices is a list")
    assert compose([*words, "mode.slices=[1,2]"], cwd=tmp_path).notes == ()


def test_a_larger_number_comes_before_a_better_offer() -> None:
    _, plan = planned(LIST, "cluster.capacity=[spot,on-demand]")
    tried = [(len(choice.nodes), choice.offer.capacity) for choice in plan.choices]
    assert tried == [(n, c) for n in (4, 2, 1) for c in ("spot", "on-demand")]
    for choice in plan.choices:
        assert len(plan.widest(choice).nodes) == 4
        assert plan.widest(choice).offer == choice.offer
        assert choice.hosts == len(choice.processes) == 2 * len(choice.nodes)
        assert {p.env["LAUNCHER_NUM_SLICES"] for p in choice.processes} == {str(len(choice.nodes))}


def test_a_larger_number_comes_before_a_zone_that_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    _, plan = planned("mode.slices=[1,2]", "cluster.capacity=[spot,on-demand]")
    Memory().note(plan.first)
    tried = [(len(c.nodes), c.offer.capacity) for c in Memory().order(plan.choices)]
    assert tried == [(2, "on-demand"), (2, "spot"), (1, "on-demand"), (1, "spot")]


@pytest.mark.parametrize(("slices_", "requests"), [("4", 1), ("[4]", 1), ("[2,4]", 4)])
def test_queued_slices_come_together_unless_their_number_may_change(
    slices_: str, requests: int
) -> None:
    _, plan = planned("cluster.capacity=queued-spot", f"mode.slices={slices_}")
    assert len(plan.first.requests) == requests
    assert len(plan.first.nodes) == len(set(plan.first.nodes)) == 4


def test_a_part_is_numbered_anew() -> None:
    spec, plan = planned(LIST)
    part = part_of(spec, plan.first, ["t-s3", "t-s1"])
    assert part.nodes == ("t-s1", "t-s3")
    assert (part.hosts, part.chips) == (4, 16)
    assert part.processes == plan.choices[1].processes
    assert part.cost_per_hour_usd == plan.choices[1].cost_per_hour_usd


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ((), [[0, 1, 2, 3], [0, 1], [0]]),
        ((3,), [[0, 1, 2, 3], [0, 3], [3]]),
        ((1, 2, 3), [[0, 1, 2, 3], [1, 2], [1]]),
    ],
)
def test_what_is_held_is_kept_whatever_the_number(
    held: Collection[int], expected: list[list[int]]
) -> None:
    session = session_of(LIST)
    wide = session.plan.first
    found = elastic.candidates(session, wide, [f"t-s{i}" for i in held])
    assert [[int(node[-1]) for node in choice.nodes] for choice in found] == expected


def test_hosts_get_the_numbers_of_their_slices_among_those_that_are_left() -> None:
    spec, plan = planned(LIST)
    held = elastic.by_node(plan.first, hosts_of((1, 0), (1, 1), (3, 0), (3, 1)))
    part = part_of(spec, plan.first, ["t-s0", "t-s3"])
    placed = dict(elastic.placed(part, held))
    assert sorted(placed) == [(1, 0), (1, 1)]
    assert [host.node for host in placed.values()] == ["n-s3", "n-s3"]
    assert all(host.place == place for place, host in placed.items())


@pytest.mark.parametrize(("nodes", "is_ours"), [([1], True), ([0, 2], True), ([0, 1, 2], False)])
def test_a_record_of_a_part_is_the_run_of_its_size(nodes: list[int], is_ours: bool) -> None:
    session = session_of(LIST)
    wide = session.plan.first
    names = [wide.node_names[index] for index in nodes]
    record = {"provider": provider_of(session), "offer": offer_of(wide), "nodes": names}
    if not is_ours:
        with pytest.raises(ConfigError, match="t is up as 3 x v4-16"):
            recorded_choice(session, record)
        return
    found = recorded_choice(session, record)
    assert found is not None
    assert list(found.node_names) == names
    assert list(found.requests_of(None).values()) == list(found.requests)


@pytest.mark.parametrize(
    ("states", "runs", "broken", "comes"),
    [
        ([State.READY, State.READY], True, [], False),
        ([State.READY, State.DEAD], True, [1], False),
        ([State.READY, None], False, [1], False),
        ([State.READY, State.PENDING], True, [], False),  # such as one in repair: its hosts tell
        ([State.READY, State.PENDING], False, [1], True),
        ([State.DEAD, State.PENDING], False, [0, 1], False),
        ([], True, [], False),  # the API is away
    ],
)
def test_what_an_earlier_launcher_has_left_is_used_as_far_as_it_is_there(
    states: list[State | None], runs: bool, broken: list[int], comes: bool
) -> None:
    record = {"attempt": {"number": 0} if runs else None, "incarnations": {"s0": "a", "s1": "a"}}
    assert looks.not_usable(states, record) == broken
    assert looks.are_coming(states, record) == comes
    replacing = {**record, "incarnations": {"s0": "a", "s1": "b"}}
    assert not looks.are_coming(states, replacing)


class Forbidding:
    """An API that lets this user do nothing."""

    endpoint = "127.0.0.1:1"

    def create(self, *_: Any, asked: bool) -> None:
        raise Refused(Reason.PERMISSION, "you may not create", outright=True)

    def delete(self, *_: Any) -> None:
        raise ProvisioningError("you may not look")


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session with two slices on record, which it has asked for in attempt 0."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    session = session_of("mode.slices=2")
    session.owner, session.states = "me", {}
    session.folder = SimpleNamespace(attempt=0, path=tmp_path, event=lambda *_, **__: None)
    session.interrupt = SimpleNamespace(check=lambda: None, pause=lambda _: None)
    session.provider = SimpleNamespace(get=Forbidding)
    registry.write_record("t", on_record.intent(session, "run-t", False))
    first = session.plan.first
    assert on_record.put(session, first, first.requests, "a") == set(first.node_names)
    return session


def test_a_replacement_that_is_forbidden_is_no_deletion_that_fails(up: Any) -> None:
    """What was refused outright never was, and the slice that is kept stays on record."""
    choice = up.plan.first
    gone, kept = choice.node_names
    registry.update("t", resources=[kept])

    def meanwhile(_choice: Choice, _incarnation: str, creating: slices.Creating) -> None:
        creating[0].result()

    with pytest.raises(Refused, match="you may not create"):
        slices.take(up, choice, lambda *_: None, meanwhile, {0})
    assert (registry.record("t") or {})["resources"] == [kept]
    registry.update("t", resources=[gone, kept])  # by another launcher: it may be there
    with pytest.raises(ProvisioningError, match="you may not look"):
        slices.take(up, choice, lambda *_: None, meanwhile, {0})
    assert sorted((registry.record("t") or {})["resources"]) == [gone, kept]


def test_without_an_api_to_ask_nothing_is_left_that_only_the_api_could_delete(up: Any) -> None:
    """Such as without a login. What an earlier launcher has asked for may be there."""
    choice = up.plan.first

    def no_login() -> None:
        raise ProvisioningError("log in")

    up.provider = SimpleNamespace(get=no_login)

    def meanwhile(_choice: Choice, _incarnation: str, creating: slices.Creating) -> None:
        creating[0].result()

    for earlier in (choice.node_names[:1], ()):
        registry.update("t", resources=list(earlier))
        with pytest.raises(ProvisioningError, match="log in"):
            slices.take(up, choice, lambda *_: None, meanwhile)
        assert (registry.record("t") or {})["resources"] == list(earlier)


def test_slices_that_are_held_were_asked_for_when_they_were(up: Any) -> None:
    up.folder.attempt = 3
    assert not on_record.put(up, up.plan.first, (), "")
    record = registry.record("t") or {}
    assert (record["asked_in"], set(record["incarnations"].values())) == (0, {"a"})
    on_record.put(up, up.plan.first, up.plan.first.requests, "b")
    record = registry.record("t") or {}
    assert (record["asked_in"], set(record["incarnations"].values())) == (3, {"b"})


def test_every_host_is_told_what_its_metadata_has_to_say() -> None:
    """Of the number of slices only where it is the same as long as the slice lives."""

    def told(*words: str) -> list[dict[str, str]]:
        _, plan = planned(*words)
        incarnations = dict.fromkeys(plan.first.nodes, "f00")
        return [one.told(1) for one in joining.expected(plan.first, incarnations).values()]

    own = {"WORKER_ID": "1", "LAUNCHER_NUM_SLICES": "2"}
    assert told("mode.slices=2") == [
        {**own, "NODE_ID": "t-s0", "LAUNCHER_SLICE": "0"},
        {**own, "NODE_ID": "t-s1", "LAUNCHER_SLICE": "1"},
    ]
    own = {"WORKER_ID": "1", "MEGASCALE_NUM_SLICES": "2"}
    assert told("mode.slices=2", "cluster.capacity=queued-spot") == [
        {**own, "NODE_ID": "t-s-0", "MEGASCALE_SLICE_ID": "0"},
        {**own, "NODE_ID": "t-s-1", "MEGASCALE_SLICE_ID": "1"},
    ]
    elastic_run = [{"WORKER_ID": "1", "NODE_ID": f"t-s{index}"} for index in range(2)]
    for capacity in ("on-demand", "queued-spot"):
        assert told("mode.slices=[1,2]", f"cluster.capacity={capacity}") == elastic_run
    assert told("mode.slices=1") == elastic_run[:1]
    assert Expected("of somebody else", incarnation="").told(1) == {}


def test_what_hosts_contradict_is_named_host_by_host() -> None:
    require_true(FOUR)
    wrong = {"NODE_ID": ("n-s1", "n-s7"), "LAUNCHER_SLICE": ("1", "0")}
    with pytest.raises(ClusterError) as raised:
        require_true({**FOUR, (1, 0): replace(FOUR[1, 0], wrong=wrong)})
    assert str(raised.value).splitlines()[1:] == [
        "  s1 h0 (n-s1): its metadata says NODE_ID=n-s7, the launcher n-s1",
        "  s1 h0 (n-s1): its metadata says LAUNCHER_SLICE=0, the launcher 1",
    ]


def test_the_emulators_tpu_env_is_read_as_it_is_meant() -> None:
    me = guest.Identity("p", "z", "n", "abc", 1, ("a", "b"), guest.Megascale(1, 2, "10.0.0.1"))
    values = guest.attributes(me, lookup("v4-16"), v2.Node())
    found = tpu_env.parse(values["instance/attributes/tpu-env"])
    assert (found["WORKER_ID"], found["NODE_ID"]) == ("1", "n")
    assert {key: found[key] for key in megascale.KEYS if key in found} == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    assert tpu_env.parse("nonsense\n\n") == {}


def test_hosts_that_join_by_another_name_than_theirs_are_named() -> None:
    def node(name: str, worker: str, incarnation: str = "f00", alive: bool = True) -> Any:
        labels = {cluster.SLICE: name, cluster.WORKER: worker, INCARNATION_LABEL: incarnation}
        return {"Alive": alive, "Labels": labels}

    there = [node("t-s0", "0"), node("t-s0", "1"), node("t-s0", "0", alive=False)]
    slices_ = {0: Expected("t-s0", "f00"), 1: Expected("t-s1", "f00")}
    head: Any = {"Alive": True, "Labels": {}}
    nodes = [head, *there, node("other", "0", "ba5")]
    assert list(cluster.strangers(slices_, FOUR, nodes)) == []
    wrong = [*nodes, node("t-s0", "1"), node("t-s0", "2"), node("t-s7", "0")]
    assert list(cluster.strangers(slices_, FOUR, wrong)) == [
        "  2 hosts joined as t-s0 worker 1",
        "  1 host joined as t-s0 worker 2",
        "  1 host joined as t-s7 worker 0",
    ]


@dataclass(frozen=True)
class Cpu:
    process_index: int
    id: int
    platform: str = "cpu"
    slice_index: int = 0  # of all CPUs of one machine


def cpus(processes: int, each: int) -> Iterator[Cpu]:
    return (Cpu(p, 2048 * p + i) for p in range(processes) for i in range(each))


def test_cpus_are_of_the_slice_of_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_NUM_SLICES", "2")
    monkeypatch.setattr(device_mesh.jax, "process_count", lambda: 4)
    chips: Any = list(cpus(4, 2))
    assert [device_mesh.slice_of(chip) for chip in chips] == [0, 0, 0, 0, 1, 1, 1, 1]
    rows = device_mesh.arrange(chips[::-1], 4)
    assert [[chip.process_index for chip in row] for row in rows] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    with pytest.raises(ValueError, match="the chips of a slice"):
        device_mesh.arrange(chips, 8)
