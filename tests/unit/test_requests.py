"""The literal requests: the golden file, and that the API's own messages hold every field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from google.cloud import tpu_v2, tpu_v2alpha1
from hypothesis import given
from hypothesis import strategies as st

from launcher.accelerators import all_types
from launcher.plan import Choice
from launcher.provisioning.capacity import CAPACITIES
from launcher.provisioning.requests import Request, dated, duration
from tests.unit import golden

SAMPLE = ("v2-8", "v3-32", "v4-16", "v5litepod-1", "v5p-128", "v6e-256")
MESSAGES = {
    ("CreateNode", "v2"): tpu_v2.Node,
    ("CreateQueuedResource", "v2"): tpu_v2.QueuedResource,
    ("CreateQueuedResource", "v2alpha1"): tpu_v2alpha1.QueuedResource,
}
# Of the REST form of v2alpha1, which the client library does not have.
# https://cloud.google.com/tpu/docs/reference/rest/v2alpha1/projects.locations.queuedResources
REST_ALONE = {
    "provisioningModel": {"STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"},
    "runDuration": {"maxRunDuration", "terminationTime"},
}


@pytest.fixture(scope="module")
def stored() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(golden.FILE.read_text(encoding="utf-8"))
    return found


def test_the_tag_of_a_coordinators_network_is_given_once() -> None:
    words = ("cluster.coordinator=vm", "cluster.tags=[ssh,launcher]")
    (choice,) = golden.choices("v6e-8", "spot", *words)
    assert choice.requests[0].node["tags"] == ["ssh", "launcher"]


def test_every_type_in_every_capacity_asks_for_what_the_golden_file_says(
    stored: Mapping[str, Any],
) -> None:
    """If a change is meant: `python -m tests.unit.golden`, and read the diff."""
    every = golden.every_choice()
    assert len(every) == len(all_types()) * len(CAPACITIES) == 192 * 7
    for choice in every:
        values = stored["types"][choice.offer.accelerator.accelerator_type]
        template = stored["every type"][choice.offer.capacity]
        assert golden.literal(choice) == golden.without_placeholders(template, values)


@pytest.mark.parametrize("name", golden.CASES)
def test_every_key_asks_for_what_the_golden_file_says(name: str, stored: Mapping[str, Any]) -> None:
    for choice in golden.case_choices(name):
        assert golden.literal(choice) == stored["v6e-16"][f"{name}, {choice.offer.capacity}"]


def test_the_golden_file_is_as_it_is_written(stored: Mapping[str, Any]) -> None:
    assert golden.FILE.read_text(encoding="utf-8") == "\n".join(golden.lines(stored)) + "\n"


def sampled() -> Iterator[Choice]:
    yield from golden.choices(",".join(SAMPLE), ",".join(CAPACITIES))
    for name in golden.CASES:
        yield from golden.case_choices(name)


def test_the_messages_of_the_client_library_hold_every_field() -> None:
    seen = set()
    for choice in sampled():
        for asked in choice.requests:
            request = dated(asked, datetime(2026, 12, 1, tzinfo=UTC))
            seen.add((request.method, request.version))
            assert landed(request) == library_part(request)
    assert seen == set(MESSAGES)


def library_part(request: Request) -> Any:
    """The body without what the REST form has alone, and what is false: a message drops it."""
    body = json.loads(json.dumps(request.body))
    for key, known in REST_ALONE.items():
        value = body.pop(key, None)
        assert value is None or ({value} if isinstance(value, str) else set(value)) <= known
    return in_utc(without_zeros(body))


def landed(request: Request) -> Any:
    """What the message holds, in the spelling of the request; unknown fields are refused."""
    kind: Any = MESSAGES[request.method, request.version]
    body = {key: value for key, value in request.body.items() if key not in REST_ALONE}
    message = kind.from_json(json.dumps(body))
    snake = request.version == "v2"
    text = kind.to_json(
        message,
        preserving_proto_field_name=snake,
        use_integers_for_enums=False,
        always_print_fields_with_no_presence=False,
    )
    return in_utc(without_zeros(json.loads(text)))


def without_zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_zeros(inner) for key, inner in value.items() if inner is not False}
    return [without_zeros(inner) for inner in value] if isinstance(value, list) else value


def in_utc(value: Any) -> Any:
    from datetime import UTC, datetime

    if isinstance(value, dict):
        return {key: in_utc(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_utc(inner) for inner in value]
    if isinstance(value, str) and value.startswith("2099-"):
        return datetime.fromisoformat(value).astimezone(UTC).isoformat()
    return value


def test_times_that_count_from_the_request_are_filled_in() -> None:
    (request,) = golden.case_choices("granted after two hours")[0].requests
    now = datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert dated(request, now).body["queueing_policy"] == {
        "valid_interval": {"start_time": "2026-12-01T10:00:00Z", "end_time": "2026-12-01T17:00:00Z"}
    }


def test_one_type_does_not_differ_between_node_and_queued_resource() -> None:
    spot, queued = golden.choices("v4-16", "spot,queued-spot")
    (create,), (queue,) = spot.requests, queued.requests
    assert create.node_names == queue.node_names
    assert create.node == {**queue.node, "scheduling_config": {"spot": True}}
    assert create.name.endswith("/nodes/t-s0")
    assert queue.name.endswith("/queuedResources/t")


def test_nodes_are_numbered_as_the_api_numbers_them() -> None:
    """Of several slices: `{prefix}-0`, `{prefix}-1`, … by `multislice_params.node_id_prefix`."""
    for choice in golden.case_choices("two slices"):
        queued = CAPACITIES[choice.offer.capacity].queued
        expected = ("t-s-0", "t-s-1") if queued else ("t-s0", "t-s1")
        assert choice.nodes == expected
        assert len(choice.requests) == (1 if queued else 2)


def test_a_change_to_a_node_leaves_the_request_as_it_was() -> None:
    for choice in golden.choices("v6e-8", "spot,queued-spot,flex-start"):
        (request,) = choice.requests
        before = json.dumps(request.body)
        changed = request.with_node(lambda node: node["metadata"].update({"launcher-join": "x"}))
        assert changed.node["metadata"]["launcher-join"] == "x"
        assert json.dumps(request.body) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.5, "0.5s"), (90.0, "90s"), (604800.0, "604800s"), (1234567.0, "1234567s")],
)
def test_a_duration_of_the_api(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.integers(0, 10**12))
def test_a_duration_keeps_every_millisecond(milliseconds: int) -> None:
    policy = {"valid_until_duration": duration(milliseconds / 1000)}
    message = tpu_v2.QueuedResource({"queueing_policy": policy})
    assert (
        round(message.queueing_policy.valid_until_duration.total_seconds() * 1000) == milliseconds
    )
