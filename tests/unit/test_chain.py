"""The fallback chain, with a clock of its own: no test waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.accelerators import lookup
from launcher.errors import ProvisioningError, Reason, Refused
from launcher.plan import Choice
from launcher.provisioning.chain import REMEMBER_SECONDS, Chain, Memory
from launcher.provisioning.requests import Request
from launcher.spec import Offer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))


def choice(zone: str, capacity: str = "spot") -> Choice:
    parent = f"projects/p/locations/{zone}"
    request = Request("CreateNode", "v2", parent, "r-s0", {}, ("r-s0",))
    offer = Offer(lookup("v4-8"), capacity, zone, "tpu-ubuntu2204-base")
    return Choice(offer, 1, 4, (request,), (), None, 60.0)


class Scene:
    """A chain over some zones, what each zone answers in turn, and what came of it."""

    def __init__(self, answers: dict[str, list[Reason | str]], queue_timeout: float = 600) -> None:
        self.now = 1000.0
        self.answers = answers
        self.asked: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.queue_timeout = queue_timeout

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def tell(self, topic: str, text: str, **_: Any) -> None:
        self.told.append((topic, text))

    def take(self, wanted: Choice) -> str:
        zone = wanted.offer.zone
        self.asked.append(zone)
        left = self.answers[zone]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Reason):
            raise Refused(answer, f"words of {zone}")
        return answer

    def walk(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr("tenacity.time.monotonic", lambda: self.now)
        chain = Chain(
            [choice(zone) for zone in self.answers],
            memory=Memory(lambda: self.now),
            queue_timeout=self.queue_timeout,
            pause=self.pause,
            tell=self.tell,
        )
        return chain.walk(self.take)


def test_zones_are_asked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(
        {
            "a": [Reason.STOCKOUT],
            "b": [Reason.NOT_IN_ZONE],
            "c": [Reason.PERMISSION],
            "d": ["a slice in d"],
        }
    )
    assert scene.walk(monkeypatch) == "a slice in d"
    assert scene.asked == ["a", "b", "c", "d"]
    refused = [text for topic, text in scene.told if topic == "refused"]
    assert [text.split(": ")[1] for text in refused] == [
        "no capacity",
        "not in this zone",
        "permission",
    ]


def test_capacity_that_returns_is_found_in_another_round(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene({"a": [Reason.STOCKOUT, Reason.STOCKOUT, "a slice"], "b": [Reason.QUOTA]})
    assert scene.walk(monkeypatch) == "a slice"
    assert scene.asked == ["a", "b", "a", "a"]  # a quota is not asked for again


def test_all_stocked_out_ends_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene({"a": [Reason.STOCKOUT], "b": [Reason.LOST]}, queue_timeout=100)
    with pytest.raises(ProvisioningError) as caught:
        scene.walk(monkeypatch)
    assert scene.now <= 1100
    assert len(scene.asked) > 4
    assert "words of a" in str(caught.value)
    assert "words of b" in str(caught.value)
    assert "cluster.queue_timeout" in str(caught.value)


def test_what_cannot_get_better_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene({"a": [Reason.QUOTA], "b": [Reason.BAD_REQUEST]})
    with pytest.raises(ProvisioningError, match="none of the ways"):
        scene.walk(monkeypatch)
    assert scene.asked == ["a", "b"]
    assert scene.now == 1000


def test_one_choice_is_told_with_its_reason_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="words of a\nask for more in the console") as caught:
        Scene({"a": [Reason.QUOTA]}).walk(monkeypatch)
    assert caught.value.reason is Reason.QUOTA


def test_internal_errors_are_asked_again_before_the_next_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene({"a": [Reason.INTERNAL, Reason.INTERNAL, "a slice"], "b": ["another"]})
    assert scene.walk(monkeypatch) == "a slice"
    scene = Scene({"a": [Reason.INTERNAL], "b": ["another"]})
    assert scene.walk(monkeypatch) == "another"
    assert scene.asked == ["a"] * 4 + ["b"]


def test_another_error_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_: Choice) -> str:
        raise ProvisioningError("could not be deleted")

    scene = Scene({"a": ["x"], "b": ["x"]})
    monkeypatch.setattr(scene, "take", take)
    with pytest.raises(ProvisioningError, match="could not be deleted"):
        scene.walk(monkeypatch)


@pytest.mark.parametrize(
    ("later", "order"), [(10.0, ["b", "a"]), (REMEMBER_SECONDS + 1, ["a", "b"])]
)
def test_a_zone_that_failed_lately_comes_last(later: float, order: list[str]) -> None:
    now = 5000.0
    memory = Memory(lambda: now)
    memory.note(choice("a"))
    now += later
    found = memory.order([choice("a"), choice("b")])
    assert [each.offer.zone for each in found] == order
    elsewhere = memory.order([choice("a", "on-demand"), choice("b")])
    assert elsewhere[0].offer.zone == "a"  # another capacity of the zone has not failed


def test_a_broken_memory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "failures.json").write_text("{ nonsense")
    assert Memory().order([choice("a")]) == [choice("a")]


def test_throttle_counts_over_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.providers.throttle import WINDOW_SECONDS, Throttle

    now = 100.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock: Callable[[], float] = lambda: now  # noqa: E731
    for _ in range(3):
        Throttle("p", 3, clock).admit(pause)
    assert now == 100.0
    Throttle("p", 3, clock).admit(pause)
    assert now >= 100.0 + WINDOW_SECONDS
    Throttle("another", 3, clock).admit(pause)
