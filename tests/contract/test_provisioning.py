"""Launchers, faults and deaths in any order: nothing is left, doubled or taken from anybody.

Every sequence runs the real acquisition in processes of its own (see `launching`) against one
emulator, and ends with the same question: what is still there once `gc --yes` has run?
"""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from launcher.emulator import client as emulator
from launcher.emulator.faults import CODES, NODE_STATES, QUEUED_STATES
from launcher.providers import Provider, open_provider
from launcher.spec import ProviderSpec
from tests.contract.launching import OTHERS, Act, Moment, id_of, main

ZONES = ("us-central1-b", "us-central1-c", "europe-west4-a")
BASE = (
    "cluster=v2-8",
    "cluster.queue_timeout=1s",
    "cluster.provision_timeout=1500ms",
)
PATIENT = ("cluster.queue_timeout=30s", "cluster.provision_timeout=30s")
SHAPES: Mapping[str, tuple[str, ...]] = {
    "node": (),
    "two nodes": ("mode.slices=2",),
    "queued": ("cluster.capacity=queued-spot",),
    "queued multislice": ("cluster.capacity=queued-on-demand", "mode.slices=2"),
    "flex": ("cluster.capacity=flex-start", "cluster.max_run_time=1h"),
    "zones": (f"cluster.zone=[{','.join(ZONES)}]",),
    "chain": (f"cluster.zone=[{','.join(ZONES[:2])}]", "cluster.capacity=[spot,queued-spot]"),
}
HOMES = ("a", "b")  # two machines
OWN = ("x", "y")
NAMES = (*OWN, *OTHERS)
KNOWN = {0, 2, 3, 4, 130, -9}  # exit codes; 1 is a fault of ours
PATIENCE = 40.0  # seconds until a process counts as hung


@dataclass(frozen=True)
class Step:
    """Processes that run at once, and the faults that are armed meanwhile."""

    acts: tuple[Act, ...]
    rules: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing hinders it, so that it must succeed."""
        names = [act.name for act in self.acts]
        alone = len(set(names)) == len(names) and all(act.verb == "launch" for act in self.acts)
        peaceful = all(act.joins and not act.moments and act.name in OWN for act in self.acts)
        return alone and peaceful and not self.rules

    @property
    def is_orderly(self) -> bool:
        """Whether every process comes to its end; a second signal ends it at once."""
        deeds = [moment.deed for act in self.acts for moment in act.moments]
        downs = sum(act.verb == "down" for act in self.acts)
        signals = downs + deeds.count("interrupt")
        return signals < 2 and not {"kill", "interrupt twice"} & {*deeds}


@dataclass
class World:
    """One emulator, what others have on it, and two machines' homes."""

    base: Path
    provider: Provider
    spawn: Any = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return self.provider.endpoint

    def control(self, command: str, **arguments: Any) -> dict[str, Any]:
        return emulator.control(self.endpoint, {"command": command, **arguments})

    def settle(self, project: str, machine: str) -> None:
        """What is up all the time, and is nobody's business here: foreign things, and other runs.

        One is this user's, up on another machine; one is up on this machine, and on record.
        """
        from launcher.invocation import owner

        theirs = {"team": "other"}
        far = {"launcher-run": "far", "launcher-owner": owner(), "launcher-machine": "elsewhere"}
        near = {**far, "launcher-run": "near", "launcher-machine": machine}
        parent = f"projects/{project}/locations/{ZONES[0]}"
        for name, labels in {"alien-s0": theirs, "far-s0": far, "near-s0": near}.items():
            create_node(self.provider, parent, name, labels)
        create_queued(self.provider, parent, "alien-q", "alien-s1", theirs)
        create_queued(self.provider, parent, "far", "far-n", far)
        wait_until(lambda: len(self.rows()) == 7 and all(r["state"] in UP for r in self.rows()))
        self.others = {row["name"]: row["created"] for row in self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """Every node and queued resource that exists."""
        ledger = self.control("ledger")
        rows = ledger["nodes"] + ledger["queued_resources"]
        return [row for row in rows if row["ended"] is None]

    def ours(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["name"] not in self.others]

    def home(self, name: str) -> Path:
        return self.base / name

    def records(self, home: str) -> dict[str, Mapping[str, Any]]:
        found = (self.home(home) / "runs").glob("[a-z]*.json")
        return {p.stem: json.loads(p.read_text()) for p in found if p.stem != "near"}

    def run(self, *acts: Act) -> list[int]:
        """The exit codes of processes that run at once; none may hang."""
        target = (str(self.base), self.endpoint)
        words = (f"provider.state_dir={self.base / 'emulator'}",)
        given = [replace(a, words=(*a.words, *(() if a.verb == "down" else words))) for a in acts]
        processes = [self.spawn.Process(target=main, args=(act, *target)) for act in given]
        deadline = time.monotonic() + PATIENCE
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        hung = [act for act, process in zip(acts, processes, strict=True) if process.is_alive()]
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        assert not hung, f"{hung} did not end\n{self.screens()}"
        return [process.exitcode for process in processes]

    def screens(self) -> str:
        return "".join(
            f"--- {home}\n{path.read_text()}"
            for home in HOMES
            if (path := self.home(home) / "screens").exists()
        )

    def renew(self) -> None:
        """Homes as at the beginning, whatever a sequence has left."""
        for row in self.ours():
            mend(self, row["name"])
            self.provider.delete(row["name"], {}, 20)
        for home in map(self.home, HOMES):
            shutil.rmtree(home, ignore_errors=True)
            (home / "runs").mkdir(parents=True)
        (self.base / "deeds").write_text("")
        record = {"name": "near", "stays": True, "supervisor": None, "resources": [], "head": "h"}
        (self.home("a") / "runs" / "near.json").write_text(json.dumps(record))

    def end_faults(self) -> None:
        """What an act has shown in a state that it is not in, and that nobody can delete."""
        for line in (self.base / "deeds").read_text().splitlines():
            name, _, state = line.split(" ")
            if state == "DELETING":
                mend(self, name)


UP = ("READY", "ACTIVE")


def mend(world: World, name: str) -> None:
    state = "STOPPED" if "/nodes/" in name else "SUSPENDED"
    row = next((row for row in world.rows() if row["name"] == name), None)
    if row and row["state"] == "DELETING":
        world.control("fault", fault="set-state", node=name, state=state)


def create_node(provider: Any, parent: str, name: str, labels: Mapping[str, str]) -> None:
    provider.client.create_node(parent=parent, node_id=name, node=body(labels)).result()


def create_queued(
    provider: Any, parent: str, name: str, node: str, labels: Mapping[str, str]
) -> None:
    spec = {"parent": parent, "node_id": node, "node": body(labels)}
    call = {"parent": parent, "queued_resource_id": name}
    provider.client.create_queued_resource(
        request={**call, "queued_resource": {"tpu": {"node_spec": [spec]}}}
    )


def body(labels: Mapping[str, str]) -> dict[str, Any]:
    version = "tpu-ubuntu2204-base"
    return {"accelerator_type": "v2-8", "runtime_version": version, "labels": dict(labels)}


def wait_until(true: Any, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("world")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.contract.launching"])
    provider = open_provider(ProviderSpec("local", None, {"state_dir": str(base / "emulator")}))
    made = World(base, provider, context)
    made.control("fault", fault="never-boots")  # the hosts' processes are no matter here
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCHER_HOME", str(base / "a"))
        from launcher.registry import machine_id

        made.settle("emulated", machine_id())
    yield made
    for row in made.rows():
        provider.delete(row["name"], {}, 20)
    provider.close()


def check(world: World, steps: Sequence[Step]) -> None:
    """Run a sequence, and look."""
    world.renew()
    began = str(world.control("ledger")["written"])
    for step in steps:
        take(world, step)
    world.end_faults()
    kept = [Act("down", (name,), home) for home in HOMES for name in world.records(home)]
    codes = world.run(*(act for act in kept if is_up(world, act)))
    used = sorted({"a", *(act.home for step in steps for act in step.acts)})
    codes += world.run(*(Act("gc", ("--yes",), home) for home in used))
    assert set(codes) <= {0}, world.screens()
    assert not world.ours(), f"{[r['name'] for r in world.ours()]} are left\n{world.screens()}"
    for home in HOMES:
        assert not world.records(home), world.screens()
        require_free_locks(world.home(home) / "locks")
    assert {row["name"]: row["created"] for row in world.rows()} == world.others
    assert all(row["state"] in UP for row in world.rows())
    require_no_doubles(world, steps, began)


def is_up(world: World, act: Act) -> bool:
    return bool(world.records(act.home)[act.words[0]]["stays"])


def take(world: World, step: Step) -> None:
    clean = not world.ours() and not any(world.records(home) for home in HOMES)
    quiet = clean and step.is_quiet
    with ExitStack() as armed:
        armed.enter_context(emulator.arm(world.endpoint, list(step.rules), ()))
        patient = PATIENT if quiet else ()  # however busy the machine is
        codes = world.run(*(replace(act, words=(*act.words, *patient)) for act in step.acts))
    shown = world.screens()
    assert set(codes) <= KNOWN, f"{codes}\n{shown}"
    assert "Traceback" not in shown, shown
    if quiet:
        assert set(codes) == {0}, f"{codes}\n{shown}"
    if clean and step.is_orderly and "try again with" not in shown:
        left = [r["name"] for home in HOMES for r in world.records(home).values() if not r["stays"]]
        assert not left, f"{left} left something behind\n{shown}"
    on_record = {
        (home, name)
        for home in HOMES
        for record in world.records(home).values()
        for name in record["resources"]
    }
    for row in world.ours():  # intent first: whatever exists was on record before
        assert any((home, row["name"]) in on_record for home in HOMES), f"{row}\n{shown}"


def require_free_locks(folder: Path) -> None:
    for path in folder.iterdir() if folder.exists() else ():
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def require_no_doubles(world: World, steps: Sequence[Step], since: str) -> None:
    """No two nodes of one slice of a run at once, in whatever zones."""
    acts = [act for step in steps for act in step.acts if act.verb in ("launch", "up")]
    homes = {name: {act.home for act in acts if act.name == name} for name in OWN}
    lives: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in world.control("ledger")["nodes"]:
        found = re.fullmatch(r"([xy])-s-?(\d)", id_of(row["name"]))
        if found and row["created"] >= since and len(homes[found[1]]) == 1:
            lives.setdefault((found[1], found[2]), []).append((row["created"], row["ended"]))
    for slice_, spans in lives.items():
        spans.sort()
        for (_, ended), (created, _) in itertools.pairwise(spans):
            assert ended <= created, f"two nodes of {slice_} at once: {spans}\n{world.screens()}"


METHODS = (
    "CreateNode",
    "CreateQueuedResource",
    "DeleteNode",
    "DeleteQueuedResource",
    "GetNode",
    "GetQueuedResource",
    "GetOperation",
    "List*",
    "*",
)
counts = st.integers(1, 3)
durations = st.sampled_from((50, 200, 700, 2000)).map(lambda number: f"{number}ms")


def rule(fault: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    # It may strike the runs of these sequences, and calls that name nobody.
    return st.fixed_dictionaries({"fault": st.just(fault), "node": st.just("*"), **options})


codes = st.sampled_from(CODES)
methods = st.sampled_from(METHODS)
zones = st.sampled_from(["*", *ZONES])
rules = st.one_of(
    rule("lost-reply", method=methods, count=counts),
    rule("call-error", method=methods, code=codes, count=counts),
    rule("unavailable", method=methods, lasts=durations),
    rule("operation-error", method=methods, code=codes, count=counts),
    rule("operation-hangs", method=methods, count=counts),
    rule("slow-create", seconds=durations, count=counts),
    rule("slow-delete", seconds=durations, count=counts),
    rule("stockout", zone=zones, lasts=durations),
    rule("stockout", zone=zones),
    rule("queue-wait", seconds=durations, count=counts),
    rule("queue-fail", code=codes, count=counts),
    rule("quota", limit=st.integers(0, 40)),
    rule("create-rate", limit=st.integers(0, 3)),
    rule("preempt", after=durations, count=counts).map(lambda r: {**r, "node": "[xy]*"}),
    rule("suspend", after=durations, count=counts).map(lambda r: {**r, "node": "[xy]*"}),
)

when = st.one_of(
    st.fixed_dictionaries({"call": st.integers(1, 16), "after": st.booleans()}),
    st.fixed_dictionaries({"seconds": st.sampled_from((0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0))}),
)
deeds = st.one_of(
    st.just({"deed": "kill"}),
    st.just({"deed": "interrupt"}),
    st.just({"deed": "interrupt twice"}),
    st.builds(lambda i: {"deed": "preempt", "index": i}, st.integers(0, 1)),
    st.just({"deed": "suspend", "queued": True}),
    st.builds(
        lambda state, i: {"deed": "set-state", "state": state, "index": i},
        st.sampled_from(NODE_STATES),
        st.integers(0, 1),
    ),
    st.builds(
        lambda state: {"deed": "set-state", "state": state, "queued": True},
        st.sampled_from(QUEUED_STATES),
    ),
)
moments = st.builds(lambda when, deed: Moment(**when, **deed), when, deeds)


def launch(
    name: str,
    shape: str,
    home: str = "a",
    moments: Sequence[Moment] = (),
    verb: str = "launch",
    joins: bool = True,
    hold: float = 0.0,
    renewals: int = 0,
    adopts: bool = False,
) -> Act:
    joined = f"cluster.join_timeout={PATIENCE if joins else 1}s"
    words = (*BASE, joined, f"cluster.zone={ZONES[0]}", f"name={name}", *SHAPES[shape])
    return Act(verb, words, home, name, tuple(moments), joins, hold, renewals, adopts=adopts)


launches = st.builds(
    launch,
    st.sampled_from((*OWN, *OWN, *NAMES)),
    st.sampled_from(tuple(SHAPES)),
    st.sampled_from(("a", "a", "a", "b")),
    st.lists(moments, max_size=2),
    st.sampled_from(("launch", "launch", "launch", "up")),
    st.sampled_from((True, True, True, False)),
    st.sampled_from((0.0, 0.0, 0.3)),
    st.sampled_from((0, 0, 0, 1)),
    st.booleans(),
)
downs = st.builds(
    lambda name, home: Act("down", (name,), home, name),
    st.sampled_from(OWN),
    st.sampled_from(HOMES),
)
gcs = st.builds(lambda home: Act("gc", ("--yes",), home), st.sampled_from(HOMES))


def some(each: st.SearchStrategy[Any], *sizes: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """As many as one of the sizes says."""
    lists = (st.lists(each, min_size=size, max_size=size) for size in sizes)
    return st.one_of(*lists).map(tuple)


# Mostly launchers, mostly with faults: what is easy is soon tried.
steps = st.one_of(
    st.builds(Step, some(launches, 1), some(rules, 1, 2, 3)),
    st.builds(Step, some(launches, 1, 2), some(rules, 0, 1, 2)),
    st.builds(
        lambda launched, others, armed: Step((*launched, *others), armed),
        some(launches, 1),
        some(st.one_of(launches, downs, gcs), 1),
        some(rules, 0, 1),
    ),
    st.builds(Step, some(st.one_of(downs, gcs), 1), some(rules, 0, 1)),
)
sequences = st.lists(steps, min_size=1, max_size=3)
COMMON = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
    ],
}


def gc(home: str = "a") -> Act:
    return Act("gc", ("--yes",), home)


def test_what_died_on_its_way_up_is_left_for_gc(world: World) -> None:
    world.renew()
    created = Moment("kill", call=2, after=True)
    assert world.run(launch("x", "node", verb="up", moments=(created,))) == [-9]
    assert world.ours()
    assert world.run(gc()) == [0]
    assert not world.ours()


@pytest.mark.parametrize("deed", ["kill", "interrupt"])
def test_what_was_taken_up_on_its_way_does_not_stay(world: World, deed: str) -> None:
    """Whoever goes on waiting for what an `up` had asked for may die or be stopped as well."""
    world.renew()
    waits = {"fault": "queue-wait", "node": "x", "seconds": "30s", "count": 1}
    first = launch("x", "queued", verb="up", moments=(looking("kill"),))
    again = replace(first, moments=(looking("kill"),), adopts=True)
    last = replace(again, moments=(looking(deed),))
    with emulator.arm(world.endpoint, [waits], ()):
        codes = [world.run(patient(act)) for act in (first, again, last)]
    assert codes == [[-9], [-9], [-9 if deed == "kill" else 130]], world.screens()
    assert world.screens().count("goes on waiting for") == 2
    assert bool(world.ours()) is (deed == "kill")
    assert world.run(gc()) == [0]
    assert not world.ours()
    assert not world.records("a")


@pytest.mark.parametrize(("shape", "slow"), [("node", "slow-create"), ("queued", "queue-wait")])
def test_what_is_taken_up_is_not_asked_for_again(world: World, shape: str, slow: str) -> None:
    """A quota counts what is there already: to ask again could be refused, and cost the place."""
    world.renew()
    began = str(world.control("ledger")["written"])
    waits = {"fault": slow, "node": "x*", "seconds": "3s", "count": 1}
    with emulator.arm(world.endpoint, [waits], ()):
        assert world.run(patient(launch("x", shape, moments=(looking("kill"),)))) == [-9]
    full = {"fault": "call-error", "method": "Create[NQ]*", "code": "RESOURCE_EXHAUSTED"}
    full |= {"node": "*", "message": "Quota limit 'TPUS' has been exceeded", "count": 99}
    with emulator.arm(world.endpoint, [full], ()):
        assert world.run(patient(launch("x", shape, adopts=True))) == [0], world.screens()
    made = [r["name"] for r in world.control("ledger")["nodes"] if r["created"] >= began]
    assert list(map(id_of, made)) == ["x-s0"]
    assert not world.ours()


def test_what_was_waited_for_is_kept_while_the_service_is_away(world: World) -> None:
    world.renew()
    began = str(world.control("ledger")["written"])
    waits = {"fault": "queue-wait", "node": "x", "seconds": "6s", "count": 1}
    with emulator.arm(world.endpoint, [waits], ()):
        assert world.run(patient(launch("x", "queued", moments=(looking("kill"),)))) == [-9]
    away = {"fault": "unavailable", "node": "*", "method": "*", "lasts": "3s"}
    with emulator.arm(world.endpoint, [away], ()):  # longer than a look has patience
        assert world.run(patient(launch("x", "queued", adopts=True))) == [0], world.screens()
    ledger = world.control("ledger")["queued_resources"]
    assert [id_of(r["name"]) for r in ledger if r["created"] >= began] == ["x"]
    assert not world.ours()


def test_ctrl_c_is_heeded_while_leftovers_are_deleted(world: World) -> None:
    world.renew()
    assert world.run(launch("x", "node", moments=(Moment("kill", call=2, after=True),))) == [-9]
    (left,) = [row["name"] for row in world.ours()]
    wait_until(lambda: world.ours()[0]["state"] == "READY")
    world.control("fault", fault="set-state", node=left, state="DELETING")  # and stays so
    stop = Moment("interrupt", call=3, after=True)
    assert world.run(launch("x", "node", moments=(stop,))) == [130]
    assert "SIGINT: ends processes, deletes slices; once more to leave at once" in world.screens()
    mend(world, left)
    assert world.run(gc()) == [0]
    assert not world.ours()


@pytest.mark.parametrize("shape", ["two nodes", "queued"])
def test_hosts_that_boot_while_their_launcher_dies_are_waited_for(world: World, shape: str) -> None:
    """They take minutes to install Ray; hosts that had joined before answer within seconds."""
    world.renew()
    began = str(world.control("ledger")["written"])
    dies = Moment("kill", call=12, after=True)  # it looks at the slices that are READY
    assert world.run(patient(launch("x", shape, moments=(dies,), hold=PATIENCE / 2))) == [-9]
    assert {row["state"] for row in world.ours()} <= {*UP}
    assert world.run(patient(launch("x", shape, hold=2.0, adopts=True))) == [0]
    made = [r["name"] for r in world.control("ledger")["nodes"] if r["created"] >= began]
    assert len(made) == len(set(made)), world.screens()
    assert not world.ours()


def test_what_is_up_with_other_settings_is_refused(world: World) -> None:
    """It has its settings still, and would go on with them without a word."""
    world.renew()
    assert world.run(launch("x", "node", verb="up")) == [0]
    other = replace(launch("x", "node"), adopts=True)
    asked = [world.home("a") / "runs" / "x" / name for name in ("spec.yaml", "plan.json")]
    before = [path.read_text() for path in asked]
    words = ("labels.team=a", "runtime_version=v2-tpuv5", "tags=[a]", "env.V=a", "startup=[date]")
    for word in words:
        assert world.run(replace(other, words=(*other.words, f"cluster.{word}"))) == [2]
    for told in ("labels.team: unset, not a", "cluster.env.V: unset, not a"):
        assert f"with other settings than what is asked for ({told})" in world.screens()
    assert [path.read_text() for path in asked] == before
    assert len(world.ours()) == 1
    assert world.run(other) == [0]
    assert "1 host up already" in world.screens()
    assert world.run(Act("down", ("x",))) == [0]


def looking(deed: str) -> Moment:
    """At the fourth look at what waits."""
    return Moment(deed, call=6, after=True)


def patient(act: Act) -> Act:
    return replace(act, words=(*act.words, *PATIENT))


def test_what_is_up_is_not_for_gc(world: World) -> None:
    world.renew()
    assert world.run(launch("x", "queued", verb="up")) == [0]
    assert world.run(gc()) == [0]
    assert len(world.ours()) == 2
    assert world.run(Act("down", ("x",))) == [0]
    assert not world.ours()


def test_what_another_supervisor_has_taken_over_is_left_to_it(world: World) -> None:
    world.renew()
    assert world.run(replace(launch("x", "two nodes"), superseded=True)) == [4]
    assert len(world.ours()) == 2
    assert list(world.records("a")) == ["x"]
    assert world.run(gc()) == [0]
    assert not world.ours()


def test_an_interrupt_takes_away_what_was_made_anew(world: World) -> None:
    """What was up could not be used, so that another was made in its place."""
    world.renew()
    assert world.run(launch("x", "node", verb="up")) == [0]
    stop = Moment("interrupt", method="CreateNode", after=True)
    assert world.run(launch("x", "node", moments=(stop,), hold=PATIENCE / 2)) == [130]
    assert not world.ours()
    assert not world.records("a")


def test_a_kept_slice_that_goes_during_a_replacement_is_replaced_in_its_turn(world: World) -> None:
    """The hosts of the new slice join for two seconds, in which the other one is preempted."""
    world.renew()
    began = str(world.control("ledger")["written"])
    going = {"fault": "preempt", "node": "x-s1", "after": "3s", "count": 1}
    with emulator.arm(world.endpoint, [going], ()):
        assert world.run(launch("x", "two nodes", hold=2.0, renewals=1)) == [0]
    made = [r["name"] for r in world.control("ledger")["nodes"] if r["created"] >= began]
    assert sorted(map(id_of, made)) == ["x-s0"] * 2 + ["x-s1"] * 2
    assert not world.ours()


@pytest.mark.parametrize("index", [0, 1])
def test_a_slice_that_goes_while_it_is_made_is_made_again_alone(world: World, index: int) -> None:
    world.renew()
    began = str(world.control("ledger")["written"])
    slow = {"fault": "slow-create", "node": f"x-s{index}", "seconds": "30s", "count": 1}
    going = Moment("preempt", call=8, after=True, index=index)  # both have been created by then
    with emulator.arm(world.endpoint, [slow], ()):
        assert world.run(launch("x", "two nodes", moments=(going,))) == [0]
    made = [r["name"] for r in world.control("ledger")["nodes"] if r["created"] >= began]
    assert sorted(map(id_of, made)) == sorted(["x-s0", "x-s1", f"x-s{index}"])
    assert f"lost while the slices were made: x-s{index}" in world.screens()
    assert not world.ours()


def test_slices_that_go_over_and_over_before_the_start_end_the_run(world: World) -> None:
    """The other one is up meanwhile, and would cost for ever."""
    world.renew()
    began = str(world.control("ledger")["written"])
    going = {"fault": "preempt", "node": "x-s1", "after": "500ms", "count": 99}
    act = launch("x", "two nodes", hold=1.5)
    words = (*act.words, *PATIENT, "retry.max_preemptions=2")
    with emulator.arm(world.endpoint, [going], ()):
        assert world.run(replace(act, words=words)) == [6]
    made = [r["name"] for r in world.control("ledger")["nodes"] if r["created"] >= began]
    assert sorted(map(id_of, made)) == ["x-s0"] + ["x-s1"] * 3
    assert "3 preemptions, retry.max_preemptions is 2" in world.screens()
    assert not world.ours()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", ["node", "two nodes", "queued", "queued multislice"])
def test_who_is_refused_a_name_leaves_its_owner_alone(world: World, name: str, shape: str) -> None:
    check(world, [Step((launch(name, shape),)), Step((gc(),))])


@pytest.mark.timeout(900)
@hypothesis.settings(max_examples=24, derandomize=True, **COMMON)
@hypothesis.given(sequence=sequences)
def test_any_sequence_ends_clean(world: World, sequence: list[Step]) -> None:
    check(world, sequence)


@pytest.mark.stress
@pytest.mark.timeout(4 * 3600)
@hypothesis.settings(max_examples=int(os.environ.get("SEQUENCES", 2000)), **COMMON)
@hypothesis.given(sequence=sequences)
def test_thousands_of_sequences_end_clean(world: World, sequence: list[Step]) -> None:
    check(world, sequence)
