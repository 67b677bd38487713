"""After a failure, what only waits for a dead peer is not waited for; what saves is."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.hosts.member import Member
from tests.contract.hosts import SLEEP, Hosts, codes, python

FAIL = python("raise SystemExit(7)")
LONG = 60.0  # a grace that no test waits for
# Waits as a collective does: in one call of C, with a thread that wakes a hundred times a second.
IN_COLLECTIVE = """
import ctypes, signal, threading, time
signal.signal(signal.SIGTERM, lambda *_: None)
def beat():
    while True:
        time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
print("on", flush=True)
libc, mutex = ctypes.CDLL(None), (ctypes.c_long * 8)()
libc.sem_init(mutex, 0, 0)
while True:
    libc.sem_wait(mutex)
"""
SLEEPS = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
ON_SIGTERM = """
import os, signal, socket, subprocess, sys, threading, time
def leave(*_):
    save()
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print("on", flush=True)
while True:
    time.sleep(600)
"""
# Each goes on for three seconds: many times as long as what does nothing may.
SAVES = {
    "computes": """
def save():
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass
""",
    "writes": """
def save():
    with open("checkpoint", "wb", buffering=0) as file:
        for _ in range(60):
            file.write(bytes(9))
            time.sleep(0.05)
""",
    "sleeps in between": """
def save():
    for _ in range(3):
        time.sleep(1)
""",
    "waits for a thread, with a limit": """
def save():
    done = threading.Event()
    threading.Timer(3, done.set).start()
    done.wait(60)
""",
    "has a child that works": """
def save():
    subprocess.run([sys.executable, "-c", "import time\\nfor _ in range(6): time.sleep(0.5)"])
""",
}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def fail_beside(hosts: Hosts, program: str, **more: object) -> None:
    """The second process fails once the first is on its way."""
    hosts.start(python(program), ["sleep", "600"], **more)
    hosts.take_until(lambda: Member(0, 0) in hosts.feed.bytes)


@pytest.mark.parametrize(("program", "least", "most"), [(IN_COLLECTIVE, 0, 2), (SLEEPS, 4, 10)])
def test_what_does_nothing_is_ended(hosts: Hosts, program: str, least: float, most: float) -> None:
    """At once when it waits for ever; what sleeps may go on by itself, and is waited for a bit."""
    fail_beside(hosts, program)
    began = time.monotonic()
    endings = hosts.stop(LONG, hurried=True)
    assert least < time.monotonic() - began < most
    assert all(ending.collateral for ending in endings)
    assert not hosts.descendants()


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_what_saves_is_given_the_time(hosts: Hosts, save: str) -> None:
    fail_beside(hosts, save + ON_SIGTERM)
    endings = hosts.stop(LONG, hurried=True)
    assert codes(endings)["s0 h0"] == 0
    assert hosts.feed.bytes[Member(0, 0)].endswith(b"saved\n")


def test_its_grace_is_over_in_time_all_the_same(hosts: Hosts) -> None:
    fail_beside(hosts, "def save():\n    while True: pass\n" + ON_SIGTERM)
    endings = hosts.stop(1.0, hurried=True)
    assert codes(endings)["s0 h0"] == -9


def test_without_hurry_what_waits_has_its_whole_grace(hosts: Hosts) -> None:
    fail_beside(hosts, IN_COLLECTIVE)
    began = time.monotonic()
    assert codes(hosts.stop(1.5))["s0 h0"] == -9
    assert time.monotonic() - began > 1.4


def test_the_answer_of_a_server_is_waited_for(hosts: Hosts) -> None:
    """That may be a store that has all bytes of a checkpoint and confirms them."""
    save = """
import os, socket
server = socket.create_connection(("127.0.0.77", int(os.environ["PORT"])))
def save():
    server.recv(1)
"""
    with socket.create_server(("127.0.0.77", 0)) as server:
        fail_beside(hosts, save + ON_SIGTERM, env={"PORT": str(server.getsockname()[1])})
        link, _ = server.accept()
        threading.Timer(2, link.close).start()
        assert codes(hosts.stop(LONG, hurried=True))["s0 h0"] == 0


def test_a_notice_to_its_host_ends_the_hurry(hosts: Hosts) -> None:
    fail_beside(hosts, IN_COLLECTIVE)
    hosts.hosts[0, 0].process.send_signal(signal.SIGTERM)
    hosts.take_until(lambda: hosts.feed.notices)
    began = time.monotonic()
    assert codes(hosts.stop(1.5, hurried=True))["s0 h0"] == -9
    assert time.monotonic() - began > 1.4
