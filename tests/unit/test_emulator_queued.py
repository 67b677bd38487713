"""Queued resources without a process: what is asked for, when, quotas, and v2alpha1's JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import json_format
from google.type import interval_pb2
from hypothesis import given
from hypothesis import strategies as st

from launcher.accelerators import lookup
from launcher.emulator.ledger import GONE, Ledger
from launcher.emulator.machine.guest import project_number
from launcher.emulator.rules import Rules, parse, parse_for
from launcher.emulator.tpu import alpha
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.names import Place
from launcher.emulator.tpu.queued import Window, plan, run_seconds, window
from launcher.emulator.tpu.quota import MINUTE, Quota, metric
from launcher.emulator.tpu.wire import NO_EXTRAS, v2

PLACE = Place("p", "us-east5-a")
NOW = 1_800_000_000.0
BODY = {"accelerator_type": "v6e-1", "runtime_version": "v2-alpha-tpuv6e"}


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def interval(start: float | None, end: float | None) -> interval_pb2.Interval:
    made = interval_pb2.Interval()
    if start is not None:
        made.start_time.FromDatetime(moment(start))
    if end is not None:
        made.end_time.FromDatetime(moment(end))
    return made


@pytest.mark.parametrize(
    ("policy", "after", "until"),
    [
        ({}, None, None),
        ({"valid_until_duration": timedelta(seconds=5)}, None, 5),
        ({"valid_until_time": moment(7)}, None, 7),
        ({"valid_after_duration": timedelta(minutes=2)}, 120, None),
        ({"valid_after_time": moment(-3)}, -3, None),
        ({"valid_interval": interval(1, 9)}, 1, 9),
        ({"valid_interval": interval(None, 9)}, None, 9),
        ({"valid_interval": interval(1, None)}, 1, None),
    ],
)
def test_windows(policy: dict[str, Any], after: float | None, until: float | None) -> None:
    found = window(v2.QueuedResource.QueueingPolicy(policy), NOW)
    expected = Window(*(None if each is None else NOW + each for each in (after, until)))
    assert found == expected


@pytest.mark.parametrize(
    ("given_duration", "seconds"),
    [
        ({"maxRunDuration": "3600s"}, 3600),
        ({"maxRunDuration": "1.5s"}, 1.5),
        ({"terminationTime": moment(60).isoformat()}, 60),
        ({}, None),
    ],
)
def test_run_durations(given_duration: dict[str, str], seconds: float | None) -> None:
    assert run_seconds({"runDuration": given_duration}, NOW) == seconds


def request(*specs: dict[str, Any]) -> v2.QueuedResource:
    filled = [{"parent": PLACE.parent, "node": BODY, **spec} for spec in specs]
    return v2.QueuedResource(tpu={"node_spec": filled})


def test_the_nodes_of_a_request() -> None:
    asked = request(
        {"multislice_params": {"node_count": 3}},
        {"node_id": "alone"},
        {"multislice_params": {"node_count": 2, "node_id_prefix": "x"}},
    )
    planned = plan(PLACE, "q", asked, NO_EXTRAS)
    assert [each.node_id for each in planned] == ["q-0", "q-1", "q-2", "alone", "x-0", "x-1"]
    assert [(each.index, each.slices) for each in planned][2:5] == [(2, 3), (0, 1), (0, 2)]


def test_node_ids_of_two_specs_may_not_meet() -> None:
    asked = request({"multislice_params": {"node_count": 2}}, {"node_id": "q-1"})
    with pytest.raises(ApiError, match='"q-1" is asked for 2 times'):
        plan(PLACE, "q", asked, NO_EXTRAS)


def test_a_parent_may_have_the_number_of_the_project() -> None:
    number = f"projects/{project_number(PLACE.project)}/locations/us-east5-a"
    assert plan(PLACE, "q", request({"parent": number, "node_id": "n"}), NO_EXTRAS)


@pytest.mark.parametrize(
    ("generation", "scheduling", "name"),
    [
        ("v6e", {"spot": True}, "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"),
        ("v5e", {"preemptible": True}, "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI"),
        ("v5e", {}, "TPUV5sLitepodPerProjectPerZoneForTPUAPI"),
        ("v6e", {"reserved": True}, "TPUV6EPerProjectPerZoneForTPUAPI"),
        ("v4", {"spot": True}, "TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI"),
    ],
)
def test_names_of_quotas(generation: str, scheduling: dict[str, bool], name: str) -> None:
    assert metric(generation, v2.SchedulingConfig(scheduling)) == name


def fleet(rules: Rules) -> Any:
    """As much of a fleet as quotas look at."""
    return SimpleNamespace(rules=rules, nodes={}, queue=SimpleNamespace(resources={}))


def test_creates_a_minute() -> None:
    rules, now = Rules(), [0.0]
    rules.arm(parse({"fault": "create-rate", "limit": 2, "node": "a-*"}))
    quota = Quota(fleet(rules), lambda: now[0])
    quota.check_rate(PLACE, "b")
    now[0] = 30
    quota.check_rate(PLACE, "a-1")
    with pytest.raises(ApiError, match="Maximum number of CreateNode requests per minute"):
        quota.check_rate(PLACE, "a-2")
    now[0] = MINUTE
    quota.check_rate(PLACE, "a-2")
    with pytest.raises(ApiError):
        quota.check_rate(PLACE, "a-3")


def test_a_quota_counts_what_its_rule_is_about() -> None:
    rules = Rules()
    rules.arm(*parse_for(["mine-0", "mine-1"], [{"fault": "quota", "limit": 5}]))
    world = fleet(rules)
    for node_id in ("mine-0", "theirs"):
        world.nodes[node_id] = SimpleNamespace(
            member=None, place=PLACE, node_id=node_id, accelerator=lookup("v6e-4")
        )
    quota, one = Quota(world), lookup("v6e-1")
    quota.check(PLACE, ("mine-1",), 1, one, v2.Node())
    quota.check(PLACE, ("others",), 999, one, v2.Node())
    quota.check(Place("other-project", "us-east5-a"), ("mine-1",), 5, one, v2.Node())
    with pytest.raises(ApiError, match="Limit: 5 in zone"):
        quota.check(PLACE, ("mine-1",), 2, one, v2.Node())


def test_a_rule_may_strike_by_any_id_of_a_queued_resource() -> None:
    rules = Rules()
    (mine,) = parse_for(["q-n"], [{"fault": "stockout"}])
    rules.arm(mine)
    assert rules.strike("stockout", node="q", also=("q-n",), zone="z") is mine
    assert not rules.strike("stockout", node="q", also=("r-n",), zone="z")


NODE = {
    "acceleratorConfig": {"type": "V6E", "topology": "2x2"},
    "apiVersion": "V2_ALPHA1",
    "metadata": {"multiNodeParams": "as written", "apiVersion": "V2_ALPHA1"},
    "schedulingConfig": {"spot": True, "provisioningModel": "SPOT"},
    "queuedResource": "q",
    "autocheckpointEnabled": True,
    "dataDisks": [{"sourceDisk": "a"}, {"sourceDisk": "b", "workerIds": ["1"]}],
}
QUEUED = {
    "tpu": {
        "nodeSpec": [
            {"nodeId": "n", "node": NODE},
            {"multiNodeParams": {"nodeCount": 2, "workloadType": "AVAILABILITY_OPTIMIZED"}},
        ]
    },
    "guaranteed": {"minDuration": "60s", "reserved": True},
    "queueingPolicy": {"validUntilDuration": "5s"},
    "provisioningModel": "FLEX_START",
    "runDuration": {"maxRunDuration": "60s"},
}


def test_v2alpha1_comes_back_as_it_was_given() -> None:
    message, extras = alpha.read(v2.QueuedResource, QUEUED)
    assert message.tpu.node_spec[1].multislice_params.node_count == 2
    assert message.tpu.node_spec[0].node.api_version == v2.Node.ApiVersion.V2
    assert message.guaranteed.min_duration == timedelta(seconds=60)
    assert set(extras) == {"tpu", "guaranteed", "provisioningModel", "runDuration"}
    assert alpha.show(message, extras) == QUEUED


def test_v2alpha1_messages_have_its_own_field_numbers() -> None:
    shown = alpha.to_message(*alpha.read(v2.Node, NODE))
    assert shown.queued_resource == "q"
    assert shown.autocheckpoint_enabled
    raw = {field.number for field, _ in shown.ListFields()}
    assert {43, 44, 48} <= raw, "queued_resource, accelerator_config, autocheckpoint_enabled"


@given(st.dictionaries(st.text("ab._", min_size=1, max_size=4), st.text(max_size=4)), st.booleans())
def test_maps_pass_untouched(values: dict[str, str], spot: bool) -> None:
    body: dict[str, Any] = {"metadata": values} if values else {}
    body |= {"schedulingConfig": {"spot": True}} if spot else {}
    message, extras = alpha.read(v2.Node, body)
    assert extras == {}
    assert alpha.show(message, extras) == body
    assert dict(message.metadata) == values


def test_every_field_of_the_clients_messages_is_known() -> None:
    """A field that a newer client brings is either v2's, or in the table of what v2 lacks."""
    types = alpha.types()
    for kind in (v2.Node, v2.QueuedResource):
        newer = getattr(types, kind.__name__).pb().DESCRIPTOR
        for field in newer.fields:
            body = {field.json_name: None}
            alpha.read(kind, body)
    bad = {"tpu": {"nodeSpec": [{"nope": 1}]}}
    with pytest.raises(ApiError, match=r'Unknown name "nope" at "tpu\.nodeSpec\[0\]"'):
        alpha.read(v2.QueuedResource, bad)


def test_what_is_shown_is_json() -> None:
    message, extras = alpha.read(v2.QueuedResource, QUEUED)
    assert json.loads(json.dumps(alpha.show(message, extras))) == QUEUED
    assert json_format.MessageToDict(alpha.to_message(message, extras))["guaranteed"]["reserved"]


def test_the_ledger_has_kinds(tmp_path: Path) -> None:
    now = [NOW]
    ledger = Ledger(tmp_path / "ledger.json", lambda: now[0])
    kinds = ("node", "queued_resource", "instance")
    entries = {kind: ledger.open(kind, "z", "t", kind) for kind in kinds}
    for state in ("READY", "ACTIVE", "RUNNING", "STOPPED"):
        for entry in entries.values():
            ledger.enter(entry, state)
        now[0] += 10
    ledger.enter(entries["node"], GONE)
    for found in (ledger.to_json(), Ledger(tmp_path / "ledger.json").to_json()):
        billed = [
            found[key][0]["billed_seconds"] for key in ("nodes", "queued_resources", "instances")
        ]
        assert billed == [10, 0, 10]
        assert found["left"] == ["queued_resource", "instance"]
        assert found["instances"][0]["machine_type"] == "t"


def test_a_ledger_of_an_older_emulator_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    Ledger(path).open("n", "z", "v6e-1")
    old = json.loads(path.read_text())
    del old["queued_resources"], old["instances"]
    path.write_text(json.dumps(old))
    assert Ledger(path).to_json()["left"] == ["n"]
