"""A host's disk is full: its processes wait for room, and their ends are told all the same."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.hosts.member import Member
from launcher.hosts.recorder import Recorder
from launcher.judging.evidence import Evidence
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import judge
from tests.contract.hosts import SLEEP, WAIT, Hosts, python, wait_until

ROOM = 2**16  # bytes of a file; beyond, a write fails as on a full disk
FULL = f"OSError: [Errno {errno.ENOSPC}] No space left on device"
WRITE = f"print('x' * {2 * ROOM}); raise {FULL.partition(':')[0]}(28, 'No space left on device')"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def limit(hosts: Hosts, room: int) -> None:
    """How much the agent of the first host may write into a file."""
    agent = hosts.hosts[0, 0].process.pid
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))


def start(hosts: Hosts, go: Path, program: str) -> None:
    """The program goes on when the disk of its host is full."""
    hosts.start(python(f"{WAIT}{program}"), python(SLEEP), env={"GO": str(go)})
    limit(hosts, ROOM)
    go.touch()


def test_a_process_goes_on_when_there_is_room_again(hosts: Hosts, tmp_path: Path) -> None:
    start(hosts, tmp_path / "go", f"os.write(1, b'x' * {2**22})")
    hosts.take_until(lambda: len(hosts.feed.bytes.get(Member(0, 0), b"")) == ROOM)
    assert hosts.feed.endings == []
    limit(hosts, resource.RLIM_INFINITY)
    hosts.take_until(lambda: hosts.feed.endings)
    assert hosts.feed.bytes[Member(0, 0)] == b"x" * 2**22


def test_one_that_fails_of_it_is_told_with_its_last_words(hosts: Hosts, tmp_path: Path) -> None:
    start(hosts, tmp_path / "go", WRITE)
    (first,) = hosts.follow()
    assert (first.member, first.code) == (Member(0, 0), 1)
    assert first.tail.endswith(f"{FULL}\n")
    endings = [first, *hosts.stop()]
    report = hosts.gang.report(endings)
    assert [host.alive for host in report.hosts] == [True, True]
    verdict = judge(Evidence(report.endings, {0: "READY"}, hosts=report.hosts))
    assert verdict.outcome is Outcome.NO_SPACE


def test_a_stop_does_not_wait_for_room(hosts: Hosts, tmp_path: Path) -> None:
    start(hosts, tmp_path / "go", f"os.write(1, b'x' * {2**22})")
    hosts.take_until(lambda: len(hosts.feed.bytes.get(Member(0, 0), b"")) == ROOM)
    endings = hosts.stop()
    assert {(ending.code, ending.collateral) for ending in endings} == {(-15, True)}
    assert [host.alive for host in hosts.gang.report(endings).hosts] == [True, True]
    assert hosts.hosts[0, 0].call("prepare", "c0de", "next")["left"] == []


def test_a_recorder_lets_go_of_a_device_without_room() -> None:
    recorder = Recorder(Path("/dev/full"))
    with open(recorder.writer, "wb", buffering=0) as pipe:
        pipe.write(b"last")
        wait_until(recorder.lock.locked)
        closing = threading.Thread(target=recorder.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        pipe.write(b" words")  # nobody waits for what nobody keeps
    wait_until(lambda: not recorder.is_open)
    assert recorder.tail == b"last words"
