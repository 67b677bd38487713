"""A Ray head that answers, one that is gone, and one that stands still."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from launcher import coordinator, head_watch
from launcher.coordinator import Head, HeadLost
from launcher.greeting import LONGEST_STEP, Greeting
from launcher.head_watch import HeadWatch, renewing
from tests.unit.greeter import frozen_head, greeting_head


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Head]:
    """Heads that were ended; a silence is short."""
    found: list[Head] = []
    monkeypatch.setattr(coordinator, "kill", found.append)
    for module in (coordinator, head_watch):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    return found


def look_forever(watch: HeadWatch) -> NoReturn:
    while True:
        watch.look()


def test_a_head_that_answers_is_asked_again_and_again(ended: list[Head]) -> None:
    with greeting_head() as head:
        watch = HeadWatch(head, 0.0)
        for _ in range(5):
            watch.look()
        coordinator.require_alive(head)
        watch.close()
    assert not ended


def test_a_head_that_stands_still_is_named_and_ended(ended: list[Head]) -> None:
    with frozen_head() as head:
        watch = HeadWatch(head, 0.0)
        watch.look()  # it waits for no answer
        with pytest.raises(HeadLost, match=r"is frozen: it was silent for 0\.2 s"):
            look_forever(watch)
        assert ended == [head]
        with pytest.raises(HeadLost, match="is frozen"):
            coordinator.require_alive(head)
        assert not coordinator.is_up(head)


def test_a_head_that_is_gone_is_missed_at_once(ended: list[Head]) -> None:
    with frozen_head() as head:
        pass
    with pytest.raises(HeadLost, match="is gone"):
        HeadWatch(head, 0.0).look()
    with pytest.raises(HeadLost, match="is gone"):
        coordinator.require_alive(head)
    assert not ended


def test_a_head_that_dies_before_it_has_answered_is_gone(ended: list[Head]) -> None:
    with frozen_head() as head:
        watch = HeadWatch(head, 0.0)
        watch.look()
    with pytest.raises(HeadLost, match="is gone"):
        watch.look()
    assert not ended


def test_nobody_is_silent_while_this_process_stands_still() -> None:
    """As on a machine that was suspended for an hour."""
    times = iter([0.0, 1.0, 3601.0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with contextlib.closing(Greeting("127.0.0.1", port, lambda: next(times))) as greeting:
            assert not greeting.came()
            assert greeting.silent == 1.0
            assert not greeting.came()
            assert greeting.silent == 1.0 + LONGEST_STEP


def test_a_head_that_is_lost_in_a_block_is_renewed_meanwhile(
    ended: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    monkeypatch.setattr(coordinator, "renew_head", lambda *_: renewed.set())
    with frozen_head() as head:
        pass
    for what in (fail_when(renewed), ask_when(renewed)):
        renewed.clear()
        with pytest.raises(HeadLost, match="is gone"), renewing(head, 0.0) as check:
            what(check)


def fail_when(event: threading.Event) -> Callable[[Callable[[], None]], None]:
    """As Ray does, when the head is another one."""

    def fail(_check: Callable[[], None]) -> None:
        assert event.wait(60)
        raise RuntimeError("wrong cluster")

    return fail


def ask_when(event: threading.Event) -> Callable[[Callable[[], None]], None]:
    def ask(check: Callable[[], None]) -> None:
        assert event.wait(60)
        check()

    return ask


def test_in_a_block_whose_head_lives_all_is_as_it_is(ended: list[Head]) -> None:
    with greeting_head() as head:
        with renewing(head, 0.0) as check:
            check()
        with pytest.raises(RuntimeError, match="a bug"), renewing(head, 0.0):
            raise RuntimeError("a bug")
