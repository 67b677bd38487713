"""Notices that a host will go, from a metadata server and by SIGTERM."""

from __future__ import annotations

import http.server
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.judging.evidence import Told
from tests.contract.hosts import (
    ADDRESS,
    NOWHERE,
    PLACES,
    SLEEP,
    Hosts,
    codes,
    python,
    wait_until,
)

SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("on", flush=True)
time.sleep(600)
"""


class Metadata(http.server.ThreadingHTTPServer):
    """The two values that agents ask for, as Compute Engine serves them."""

    def __init__(self) -> None:
        super().__init__((ADDRESS, 0), Answer)
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"{ADDRESS}:{self.server_address[1]}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        folder, _, name = self.path.rpartition("/")
        value = self.server.values.get(name)
        is_right = folder == "/computeMetadata/v1/instance" and value is not None
        is_right = is_right and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if is_right else 404)
        self.end_headers()
        self.wfile.write((value or "").encode() if is_right else b"")
        self.server.asked.append(name)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hosts(tmp_path: Path, metadata: Metadata) -> Iterator[Hosts]:
    made = Hosts(tmp_path, metadata.address)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "word"),
    [("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")],
)
def test_a_notice_has_all_processes_save_and_leave(
    hosts: Hosts, metadata: Metadata, name: str, word: str
) -> None:
    hosts.start(python(SAVES), python(SAVES))
    hosts.take_until(lambda: len(hosts.feed.bytes) == 2)
    metadata.values[name] = word
    assert hosts.follow() == []
    endings = hosts.stop()
    assert codes(endings) == {"s0 h0": 0, "s0 h1": 0}
    assert all(ending.collateral and ending.tail.endswith("saved\n") for ending in endings)
    report = hosts.gang.report(endings)
    assert {(n.told, n.word) for n in report.notices} == {(Told(name), word)}
    assert hosts.feed.notices == list(report.notices)
    assert not hosts.descendants()


SAVES_SLOWLY = """
import os, signal, sys, time
def save(*_):
    time.sleep(1.5)
    with open(os.environ["SAVED"], "a") as file:
        file.write("saved ")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"on ")
time.sleep(600)
"""
PLAIN = python(SAVES_SLOWLY)
IN_A_SHELL = ["bash", "-c", f"{sys.executable} -c '{SAVES_SLOWLY}'; echo done"]
IN_A_PIPE = ["bash", "-c", f"{sys.executable} -c '{SAVES_SLOWLY}' | tee /dev/stderr"]


@pytest.mark.parametrize(("grace", "saved"), [(20.0, "saved saved "), (0.5, "")])
@pytest.mark.parametrize("argv", [PLAIN, IN_A_SHELL, IN_A_PIPE], ids=["plain", "shell", "pipe"])
def test_a_save_has_the_whole_grace_and_no_more(
    tmp_path: Path, argv: list[str], grace: float, saved: str
) -> None:
    """Also behind a shell, which ends at once and leaves its program alone."""
    path, made = tmp_path / "saved", Hosts(tmp_path)
    path.touch()
    try:
        made.start(argv, argv, env={"SAVED": str(path)})
        made.take_until(lambda: len(made.feed.bytes) == 2)
        began = time.monotonic()
        made.stop(grace)
        assert time.monotonic() - began < 15
        assert path.read_text() == saved
        assert not made.descendants()
    finally:
        made.close()


def test_a_notice_is_asked_for_when_a_process_has_died(hosts: Hosts, metadata: Metadata) -> None:
    """What ends it may be the end of its host, of which a look each second has not heard yet."""
    hosts.start(python(SLEEP), python(SLEEP))
    hosts.take_until(lambda: len(hosts.feed.bytes) == 2)
    count = len(metadata.asked)
    wait_until(lambda: metadata.asked[count:].count("maintenance-event") == 2)  # not soon again
    (host,) = hosts.hosts[0, 1].descendants()
    metadata.values["preempted"] = "TRUE"
    host.kill()
    assert codes(hosts.follow()) == {"s0 h1": -9}
    hosts.stop()
    assert {n.place for n in hosts.feed.notices} == set(PLACES)


def test_a_notice_before_the_start_is_told_at_the_start(hosts: Hosts, metadata: Metadata) -> None:
    metadata.values["preempted"] = "TRUE"
    count = len(metadata.asked)
    wait_until(lambda: metadata.asked[count:].count("maintenance-event") >= 4)  # both hosts, after
    hosts.start(python(SLEEP), python(SLEEP))
    hosts.follow()
    hosts.stop()
    assert {n.told for n in hosts.feed.notices} == {Told.PREEMPTED}


def test_a_notice_that_was_taken_back_is_forgotten(hosts: Hosts, metadata: Metadata) -> None:
    for word in ("MIGRATE_ON_HOST_MAINTENANCE", "NONE"):
        metadata.values["maintenance-event"] = word
        count = len(metadata.asked)
        wait_until(lambda: len(metadata.asked) >= count + 8)  # noqa: B023
    hosts.start(python("pass"), python("pass"))
    hosts.follow()
    hosts.stop()
    assert hosts.feed.notices == []


def test_sigterm_to_an_agent_is_a_notice(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP))
    hosts.hosts[0, 1].process.send_signal(signal.SIGTERM)
    assert hosts.follow() == []
    assert set(codes(hosts.stop()).values()) == {-15}
    assert [(n.place, n.told) for n in hosts.feed.notices] == [((0, 1), Told.SHUTDOWN)]
    wait_until(lambda: hosts.hosts[0, 1].call("state")["gone"])


def test_a_server_that_knows_nothing_is_no_error(tmp_path: Path, metadata: Metadata) -> None:
    metadata.values.clear()
    made = Hosts(tmp_path, metadata.address)
    wait_until(lambda: len(metadata.asked) >= 4)
    made.start(python("pass"), python("pass"))
    assert codes(made.follow()) == {"s0 h0": 0, "s0 h1": 0}
    made.close()


def test_an_unsupervised_host_that_shuts_down_ends_its_processes(tmp_path: Path) -> None:
    made = Hosts(tmp_path, NOWHERE)
    made.start(python(SLEEP), python(SLEEP), reattach=600.0)
    made.gang.links.sockets[0, 0].shutdown(2)
    first = made.hosts[0, 0]
    wait_until(lambda: not first.call("state")["supervised"])
    first.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not first.descendants())
    made.close()
