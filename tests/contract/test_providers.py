"""What every provider must do, checked on the real client against the emulator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.emulator import client as emulator
from launcher.errors import ProvisioningError
from launcher.plan import NodeRequest
from launcher.providers import NodeState, Provider, open_provider
from launcher.spec import ProviderSpec

PARENT = "projects/emulated/locations/us-central2-b"
SECONDS = 20.0


def request(name: str, run: str = "r", kind: str = "v4-8") -> NodeRequest:
    labels = {"launcher-run": run, "launcher-owner": "me", "launcher-slice": "0"}
    body = {
        "accelerator_type": kind,
        "runtime_version": "tpu-ubuntu2204-base",
        "labels": labels,
        "metadata": {"startup-script": "exit 0"},
    }
    return NodeRequest(PARENT, name, body)


class Opened:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provider: Provider = open_provider(
            ProviderSpec("local", None, {"state_dir": str(folder)})
        )

    def fault(self, **rule: Any) -> None:
        emulator.control(self.provider.endpoint, {"command": "fault", **rule})

    def create(self, wanted: NodeRequest, timeout: float = SECONDS) -> Any:
        return self.provider.create(wanted, timeout, time.sleep)

    def created(self) -> int:
        ledger = emulator.control(self.provider.endpoint, {"command": "ledger"})
        return len(ledger["nodes"])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    for node in made.provider.list({}):
        made.provider.delete(node.name, SECONDS)
    made.provider.close()


def test_create_get_list_delete(opened: Opened) -> None:
    node = opened.create(request("a"))
    assert (node.state, node.accelerator_type) == (NodeState.READY, "v4-8")
    assert len(node.addresses) == 1
    assert opened.provider.get(node.name) == node
    assert [n.name for n in opened.provider.list({"launcher-run": "r"})] == [node.name]
    assert opened.provider.list({"launcher-run": "other"}) == []
    opened.provider.delete(node.name, SECONDS)
    assert opened.provider.get(node.name) is None
    opened.provider.delete(node.name, SECONDS)  # what is gone is deleted


def test_our_own_node_is_adopted(opened: Opened) -> None:
    first = opened.create(request("a"))
    assert opened.create(request("a")) == first
    assert opened.created() == 1


def test_a_foreign_node_is_refused_with_its_owner(opened: Opened) -> None:
    opened.create(request("a", run="theirs"))
    with pytest.raises(ProvisioningError, match=r"belongs to me \(run theirs\)"):
        opened.create(request("a", run="ours"))


def test_a_node_of_another_type_is_refused(opened: Opened) -> None:
    opened.create(request("a"))
    with pytest.raises(ProvisioningError, match="is up as v4-8, not as v4-16"):
        opened.create(request("a", kind="v4-16"))


def test_a_preempted_leftover_is_replaced(opened: Opened) -> None:
    opened.create(request("a"))
    opened.fault(fault="preempt", node="a")
    assert opened.create(request("a")).state is NodeState.READY
    assert opened.created() == 2


def test_a_lost_reply_is_resolved_by_a_look(opened: Opened) -> None:
    opened.fault(fault="lost-reply", method="CreateNode", count=1)
    assert opened.create(request("a")).state is NodeState.READY
    assert opened.created() == 1


def test_a_service_that_is_away_for_a_moment_is_waited_for(opened: Opened) -> None:
    opened.fault(fault="unavailable", lasts="1s")
    assert opened.create(request("a")).state is NodeState.READY


def test_an_operation_that_never_ends_does_not_hide_a_ready_node(opened: Opened) -> None:
    opened.fault(fault="operation-hangs", count=1)
    assert opened.create(request("a")).state is NodeState.READY


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"fault": "stockout"}, "There is no more capacity in the zone"),
        ({"fault": "operation-error", "code": "INTERNAL"}, "an internal error has occurred"),
        (
            {"fault": "call-error", "method": "CreateNode", "code": "PERMISSION_DENIED"},
            "an internal error has occurred",
        ),
    ],
)
def test_errors_are_told_in_the_servers_words(
    opened: Opened, rule: dict[str, Any], words: str
) -> None:
    opened.fault(**rule)
    with pytest.raises(ProvisioningError, match=words):
        opened.create(request("a"))


def test_a_slow_create_ends_at_the_deadline(opened: Opened) -> None:
    opened.fault(fault="slow-create", seconds="60s")
    with pytest.raises(ProvisioningError, match="still CREATING at the deadline"):
        opened.create(request("a"), timeout=1)


def test_deletion_is_verified(opened: Opened) -> None:
    node = opened.create(request("a"))
    opened.fault(fault="lost-reply", method="DeleteNode", count=1)
    opened.provider.delete(node.name, SECONDS)
    assert opened.provider.get(node.name) is None


def test_the_console_is_shown(opened: Opened) -> None:
    wanted = request("a")
    wanted.body["metadata"]["startup-script"] = "echo hello from the host"
    node = opened.create(wanted)
    deadline = time.monotonic() + SECONDS
    while "hello from the host" not in opened.provider.console(node.name, 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
