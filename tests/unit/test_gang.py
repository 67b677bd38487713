"""Supervisor and agent over their real connection, with real processes; Ray alone is left out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import member
from launcher.gang import Gang
from launcher.member import Ending, Member

AGENT = """
import json, sys, threading
from pathlib import Path
from launcher import agent
agent.adopt_orphans()
order = json.loads(sys.stdin.readline())
gang = agent.HostProcesses(order, Path(order["cwd"]), agent.clean_environment(dict(order["base"])))
threading.Event().wait()
"""
PLACES = [(0, 0), (0, 1)]


class Feed:
    def __init__(self) -> None:
        self.bytes: dict[Member, bytes] = {}
        self.lines: list[str] = []
        self.endings: list[Ending] = []

    def output(self, member: Member, chunk: bytes) -> None:
        self.bytes[member] = self.bytes.get(member, b"") + chunk

    def metrics(self, member: Member, line: str) -> None:
        self.lines.append(line)

    def ended(self, ending: Ending) -> None:
        self.endings.append(ending)


class Hosts:
    """Two agents, each in a process of its own, as on two hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gang = Gang("127.0.0.9", PLACES, [Member(*p) for p in PLACES])
        self.agents: list[subprocess.Popen[bytes]] = []
        self.feed = Feed()

    def start(self, *argvs: list[str], env: dict[str, str] | None = None) -> None:
        for place, argv in zip(PLACES, argvs, strict=True):
            home = self.folder / str(place[1])
            home.mkdir()
            order = {
                "callback": self.gang.callback,
                "key": self.gang.key,
                "host": list(place),
                "cwd": str(self.folder),
                "base": {"PATH": os.environ["PATH"]},
                "grace": 0.2,
                "processes": [{"process": 0, "argv": argv, "env": env or {}}],
            }
            agent = subprocess.Popen(
                [sys.executable, "-c", AGENT],
                stdin=subprocess.PIPE,
                env=os.environ | {"HOME": str(home)},
            )
            assert agent.stdin
            agent.stdin.write(json.dumps(order).encode() + b"\n")
            agent.stdin.close()
            self.agents.append(agent)
        self.gang.await_links()

    def follow(self) -> list[Ending]:
        return self.gang.follow(self.feed, lambda _: None)

    def stop(self, grace: float = 0.3) -> list[Ending]:
        left = set(self.gang.members.values()) - {e.member for e in self.feed.endings}
        return self.gang.stop(self.feed, grace, left)

    def descendants(self) -> list[psutil.Process]:
        found = []
        for agent in self.agents:
            found += psutil.Process(agent.pid).children(recursive=True)
        return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.gang.close()
    for agent in made.agents:
        agent.kill()
        agent.wait()


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_and_arguments_arrive_byte_for_byte(hosts: Hosts) -> None:
    odd = ["a b", "it's", '"', "$HOME", "*", "a\\b", "--x=é", ""]
    show = (
        "import sys; sys.stdout.buffer.write(repr(sys.argv[1:]).encode() + b'\\xff\\r no newline')"
    )
    hosts.start([*python(show), *odd], python("pass"))
    assert [e.code for e in hosts.follow()] == [0, 0]
    assert hosts.feed.bytes[Member(0, 0)] == repr(odd).encode() + b"\xff\r no newline"


def test_first_failure_ends_the_gang_and_is_named(hosts: Hosts) -> None:
    hosts.start(python("import time; time.sleep(600)"), python("raise SystemExit(7)"))
    (first,) = hosts.follow()
    assert (first.member, first.code) == (Member(0, 1), 7)
    (second,) = hosts.stop()
    assert second.collateral
    assert not hosts.descendants()


def test_descendants_that_ignore_sigterm_and_leave_their_session_are_ended(hosts: Hosts) -> None:
    stubborn = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
print("ready", flush=True)
time.sleep(600)
"""
    hosts.start(python(stubborn), python(stubborn))
    wait_until(lambda: len(hosts.descendants()) == 6)
    endings = hosts.stop(grace=0.1)
    assert {e.code for e in endings} == {-9}
    assert not hosts.descendants()


def test_a_dead_host_is_noticed_at_once(hosts: Hosts) -> None:
    sleep = python("import time; print('on', flush=True); time.sleep(600)")
    hosts.start(sleep, sleep)
    wait_until(lambda: len(hosts.gang.links) == 2)
    for process in [*hosts.descendants(), psutil.Process(hosts.agents[1].pid)]:
        if process.pid != hosts.agents[0].pid and hosts.agents[0].pid != process.ppid():
            process.kill()
    killed = time.time()
    (lost,) = hosts.follow()
    assert (lost.member, lost.code) == (Member(0, 1), None)
    assert lost.time - killed < 1


def test_metrics_are_forwarded_whole_lines_only(hosts: Hosts) -> None:
    write = """
import os, time
with open(os.environ["LAUNCHER_METRICS"], "a") as f:
    f.write('{"step": 1}\\n{"st'); f.flush(); time.sleep(0.3); f.write('ep": 2}\\n')
"""
    hosts.start(python(write), python("pass"))
    hosts.follow()
    assert hosts.feed.lines == ['{"step": 1}\n', '{"step": 2}\n']


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("./plain.txt", 126)])
def test_what_cannot_be_started_ends_as_in_a_shell(hosts: Hosts, name: str, code: int) -> None:
    (hosts.folder / "plain.txt").write_text("not a program")
    hosts.start([name], python("import time; time.sleep(600)"))
    (first,) = hosts.follow()
    assert first.code == code
    hosts.stop()
    assert b"cannot start" in hosts.feed.bytes[Member(0, 0)]


def test_foreign_variables_do_not_reach_a_process(hosts: Hosts) -> None:
    from launcher.agent import clean_environment

    base = {"MEGASCALE_NUM_SLICES": "3", "TPU_WORKER_HOSTNAMES": "bogus", "RAY_ADDRESS": "x"}
    clean = clean_environment({**base, "LANG": "C"})
    assert not base.keys() & clean.keys()
    assert (clean["LANG"], clean["JAX_PLATFORMS"]) == ("C", "tpu,cpu")


@pytest.mark.parametrize("code", [0, 3, -9])
def test_endings_are_described(code: int) -> None:
    assert (
        member.describe(code) == {0: "exit code 0", 3: "exit code 3", -9: "killed by SIGKILL"}[code]
    )


def test_a_silent_host_is_noticed_while_another_one_talks() -> None:
    """A frozen host keeps its connection; heartbeats and output of others must not hide it."""
    quiet, chatty = (0, 0), (0, 1)
    gang = Gang("127.0.0.9", PLACES, [Member(*p) for p in PLACES], silence=0.5)
    links = []
    for place in (quiet, chatty):
        address, _, port = gang.callback.rpartition(":")
        link = socket.create_connection((address, int(port)))
        link.sendall(json.dumps({"kind": "hello", "key": gang.key, "host": place}).encode() + b"\n")
        links.append(link)
    gang.await_links()
    for place in PLACES:
        gang.heard[place] = time.monotonic()
    talking = threading.Event()

    def talk() -> None:
        while not talking.wait(0.01):
            links[1].sendall(b'{"kind": "alive"}\n')

    talker = threading.Thread(target=talk)
    talker.start()
    (lost,) = gang.follow(Feed(), lambda _: None)
    talking.set()
    talker.join()
    assert lost.member == Member(*quiet)
    assert "silent" in lost.reason
    gang.close()
    for link in links:
        link.close()


def test_a_stranger_is_hung_up_on() -> None:
    gang = Gang("127.0.0.9", PLACES, [Member(*p) for p in PLACES])
    address, _, port = gang.callback.rpartition(":")
    with socket.create_connection((address, int(port))) as link:
        link.sendall(b'{"kind": "hello", "key": "guess", "host": [0, 0]}\n')
        assert link.recv(1) == b""
    assert not gang.links
    gang.close()


def test_closing_a_gang_frees_its_port_and_threads() -> None:
    before = set(threading.enumerate())
    gang = Gang("127.0.0.9", PLACES, [Member(*p) for p in PLACES])
    address, _, port = gang.callback.rpartition(":")
    started = set(threading.enumerate()) - before
    assert started
    gang.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address, int(port)), 1)
    wait_until(lambda: not any(thread.is_alive() for thread in started))


def test_one_that_ends_well_while_the_others_hang_has_failed_them(hosts: Hosts) -> None:
    hosts.gang.straggler_timeout = 0.3
    hosts.start(python("import time; time.sleep(600)"), python("pass"))
    (early,) = hosts.follow()
    assert (early.member, early.code) == (Member(0, 1), 124)
    assert "while s0 h0 went on" in early.reason
    hosts.stop()
