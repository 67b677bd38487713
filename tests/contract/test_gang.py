"""Supervisor and agent over their real connection, with real processes; Ray alone is left out."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher import cluster
from launcher.attempts import fanout
from launcher.attempts.gang import Gang
from launcher.hosts import member
from launcher.hosts.agent import clean_environment
from launcher.hosts.descendants import has_ended
from launcher.hosts.member import Member
from launcher.judging.signatures import find
from tests.contract.hosts import (
    PATIENCE,
    PLACES,
    SLEEP,
    WAIT,
    Feed,
    Host,
    Hosts,
    python,
    wait_until,
)

# A traceback, and the 6 kB that JAX's runtime may log after one.
AS_JAX = """
import traceback
print("x" * 20_000)
try:
    raise ValueError("bad batch")
except ValueError as error:
    print("".join(traceback.format_exception(error)), end="")
for _ in range(60):
    print("E1129 21:46:07.512345 12 coordination_service.cc:1] " + "y" * 50)
raise SystemExit(3)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def test_output_and_arguments_arrive_byte_for_byte(hosts: Hosts) -> None:
    odd = ["a b", "it's", '"', "$HOME", "*", "a\\b", "--x=é", ""]
    show = (
        "import sys; sys.stdout.buffer.write(repr(sys.argv[1:]).encode() + b'\\xff\\r no newline')"
    )
    hosts.start([*python(show), *odd], python("pass"))
    assert [e.code for e in hosts.follow()] == [0, 0]
    assert hosts.feed.bytes[Member(0, 0)] == repr(odd).encode() + b"\xff\r no newline"


def test_a_program_that_opens_its_own_output_loses_nothing(hosts: Hosts) -> None:
    """On Linux `echo 2 > /dev/stderr` opens anew, and would truncate, what stderr is."""
    hosts.start(["bash", "-c", "echo 1; echo 2 > /dev/stderr; echo 3"], python("pass"))
    assert [e.code for e in hosts.follow()] == [0, 0]
    assert hosts.feed.bytes[Member(0, 0)] == b"1\n2\n3\n"


def test_a_daemon_that_keeps_the_output_does_not_hide_the_end(hosts: Hosts) -> None:
    leave = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(600)\nraise SystemExit(5)"
    hosts.start(python(leave), python(SLEEP))
    (first,) = hosts.follow()
    assert first.code == 5
    hosts.stop()
    assert not hosts.descendants()


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
    hosts.start(python(SLEEP), python(SLEEP))
    hosts.gang.silence = math.inf
    killed = time.time()
    hosts.hosts[0, 1].kill()
    (lost,) = hosts.follow()
    assert (lost.member, lost.code) == (Member(0, 1), None)
    assert lost.reason == "its host's connection broke"
    (ended,) = hosts.stop()
    assert (ended.member, ended.code, ended.collateral) == (Member(0, 0), -15, True)
    report = hosts.gang.report([lost, ended])
    assert [(h.place, h.alive) for h in report.hosts] == [((0, 0), True), ((0, 1), False)]
    assert report.hosts[1].broke_at
    assert killed <= report.hosts[1].broke_at <= lost.time


def test_metrics_are_forwarded_whole_lines_only(hosts: Hosts, tmp_path: Path) -> None:
    begin = """
import os
file = open(os.environ["LAUNCHER_METRICS"], "a")
file.write('{"step": 1}\\n{"st')
file.flush()
print("half", flush=True)
"""
    end = "file.write('ep\": 2}\\n')"
    go = tmp_path / "go"
    hosts.start(python(begin + WAIT + end), python(SLEEP), env={"GO": str(go)})
    hosts.take_until(lambda: hosts.feed.lines and Member(0, 0) in hosts.feed.bytes)
    assert hosts.feed.lines == ['{"step": 1}\n']
    go.touch()
    hosts.take_until(lambda: hosts.feed.endings)
    assert hosts.feed.lines == ['{"step": 1}\n', '{"step": 2}\n']


@pytest.mark.parametrize(("name", "expected"), [("no-such-program", 127), ("./plain.txt", 126)])
def test_what_cannot_be_started_ends_as_in_a_shell(hosts: Hosts, name: str, expected: int) -> None:
    code = hosts.hosts[0, 0].home / ".launcher" / "code" / "c0de"
    (code / "plain.txt").write_text("not a program")
    hosts.start([name], python("import time; time.sleep(600)"))
    (first,) = hosts.follow()
    assert first.code == expected
    assert "cannot start" in first.tail
    hosts.stop()
    assert b"launcher: cannot start" in hosts.feed.bytes[Member(0, 0)]


def test_foreign_variables_do_not_reach_a_process(hosts: Hosts) -> None:
    base = {"MEGASCALE_NUM_SLICES": "3", "TPU_WORKER_HOSTNAMES": "bogus", "RAY_ADDRESS": "x"}
    base |= {"CLOUD_TPU_TASK_ID": "7", "TORCHELASTIC_RUN_ID": "x"}
    base |= {"PJRT_LOCAL_PROCESS_RANK": "3", "PJRT_LOCAL_PROCESS_COUNT": "4"}
    clean = clean_environment({**base, "LANG": "C"})
    assert not base.keys() & clean.keys()
    assert (clean["LANG"], clean["JAX_PLATFORMS"]) == ("C", "tpu,cpu")
    assert clean["PJRT_DEVICE"] == "TPU"
    assert clean_environment({"PJRT_DEVICE": "CPU"})["PJRT_DEVICE"] == "CPU"


@pytest.mark.parametrize("code", [0, 3, -9])
def test_endings_are_described(code: int) -> None:
    assert (
        member.describe(code) == {0: "exit code 0", 3: "exit code 3", -9: "killed by SIGKILL"}[code]
    )


def test_a_silent_host_is_noticed_while_another_one_talks() -> None:
    """A frozen host keeps its connection; heartbeats and output of others must not hide it."""
    quiet, chatty = (0, 0), (0, 1)
    gang = Gang("127.0.0.9", PLACES, [Member(*p) for p in PLACES], silence=PATIENCE)
    links = []
    for place in (quiet, chatty):
        address, _, port = gang.callback.rpartition(":")
        link = socket.create_connection((address, int(port)))
        link.sendall(json.dumps({"kind": "hello", "key": gang.key, "host": place}).encode() + b"\n")
        links.append(link)
    gang.await_links()
    gang.links.heard[quiet] -= 2 * PATIENCE
    stop = threading.Event()

    def talk() -> None:
        while not stop.wait(0.01):
            links[1].sendall(b'{"kind": "alive"}\n')

    talker = threading.Thread(target=talk)
    talker.start()
    (lost,) = gang.follow(Feed(), lambda _: None)
    stop.set()
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
    assert not gang.links.sockets
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


def test_the_last_words_go_along_with_an_ending(hosts: Hosts) -> None:
    hosts.start(python(AS_JAX), python(SLEEP))
    (first,) = hosts.follow()
    assert first.tail == hosts.feed.bytes[Member(0, 0)][-(2**14) :].decode()
    found = find(first.tail)
    assert found
    assert found.text == "ValueError: bad batch"


def test_the_last_words_outlive_their_disk(hosts: Hosts, tmp_path: Path) -> None:
    """What the supervisor has is freed on the host, and reads as zeros there."""
    hosts.gang.kept = 1
    go = tmp_path / "go"
    hosts.start(python(f"print('on', flush=True){WAIT}"), python(SLEEP), env={"GO": str(go)})
    (attempt,) = hosts.hosts[0, 0].attempts
    hosts.take_until(lambda: (attempt / "output-0").read_bytes() == bytes(3))
    go.touch()
    (first,) = hosts.take_until(lambda: hosts.feed.endings)
    assert first.tail == "on\n"


def test_what_is_left_of_a_group_may_finish_its_last_words(hosts: Hosts) -> None:
    after = "(while kill -0 $$; do sleep 0.01; done 2> /dev/null; echo last) &"
    hosts.start(["bash", "-c", after], python(SLEEP))
    hosts.take_until(lambda: hosts.feed.endings)
    assert hosts.feed.bytes[Member(0, 0)] == b"last\n"


def test_a_supervisor_that_stood_still_does_not_hold_it_against_the_hosts(
    hosts: Hosts, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    hosts.start(python(WAIT), python(WAIT), env={"GO": str(go)})
    links, pauses = hosts.gang.links, itertools.count()
    hosts.gang.silence = PATIENCE

    def pause(_: float) -> None:
        if next(pauses) == 0:  # it stood still, and the heartbeats wait unread
            links.looked -= 2 * PATIENCE
            for place in PLACES:
                links.heard[place] -= 2 * PATIENCE
        else:
            go.touch()

    assert [e.code for e in hosts.gang.follow(hosts.feed, pause)] == [0, 0]


def test_a_frozen_host_is_lost(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP))
    hosts.gang.silence = 4.0
    hosts.hosts[0, 1].process.send_signal(19)  # SIGSTOP
    (lost,) = hosts.follow()
    assert (lost.member, lost.code, lost.reason) == (
        Member(0, 1),
        None,
        "its host was silent for 4 s",
    )
    (ended,) = hosts.stop()
    assert ended.member == Member(0, 0)
    frozen = hosts.gang.report([lost, ended]).hosts[1]
    assert frozen.alive is False
    assert frozen.silent_since is not None
    assert lost.time - frozen.silent_since > 3
    hosts.hosts[0, 1].process.send_signal(18)  # when it wakes, it obeys
    wait_until(lambda: not hosts.descendants())


def test_an_attempt_is_followed_to_its_end_and_forgotten(hosts: Hosts) -> None:
    attempt = fanout.Attempt(0, "k", "c0de", (), {}, 0.2, None)

    def begin() -> list[member.Ending]:
        hosts.start(python("print('one')"), python("print('two')"))
        return []

    report = fanout.conduct(hosts.gang, attempt, hosts.feed, lambda _: None, begin)
    assert [(e.code, e.collateral) for e in report.endings] == [(0, False), (0, False)]
    assert [(h.place, h.alive, h.oom_kills) for h in report.hosts] == [
        ((0, 0), True, 0),
        ((0, 1), True, 0),
    ]
    assert (report.notices, report.hang) == ((), None)
    wait_until(lambda: not any(host.attempts for host in hosts.hosts.values()))


def test_a_new_agent_ends_what_a_killed_one_has_left(hosts: Hosts) -> None:
    daemon = python(f"import os\nif os.fork() == 0: os.setsid()\n{SLEEP}")
    hosts.start(daemon, python(SLEEP))
    first = hosts.hosts[0, 0]
    strays = wait_until(lambda: len(found := first.descendants()) == 2 and found)
    psutil.Process(first.process.pid).kill()
    assert all(stray.is_running() for stray in strays)
    again = Host(first.home, "127.0.0.9:1")
    assert again.call("prepare", "c0de", "next")["left"] == []
    assert not any(not has_ended(stray) for stray in strays)
    assert not again.attempts
    again.kill()
    first.process.wait()
    for pipe in (first.process.stdin, first.process.stdout):
        assert pipe
        pipe.close()


def test_output_that_has_arrived_takes_no_disk_on_the_host(hosts: Hosts) -> None:
    hosts.gang.kept = 2**20
    write = "import os, time; [os.write(1, b'x' * 2**20) for _ in range(8)]; time.sleep(600)"
    hosts.start(python(write), python(SLEEP))
    (attempt,) = hosts.hosts[0, 0].attempts
    output = attempt / "output-0"
    hosts.take_until(
        lambda: output.stat().st_size == 2**23 and output.stat().st_blocks * 512 < 2**21
    )
    (first, second) = hosts.stop()
    assert (first.code, second.code) == (-15, -15)
    assert hosts.feed.bytes[Member(0, 0)] == b"x" * 2**23


def test_all_that_an_agent_is_made_of_is_shipped() -> None:
    """Ray would otherwise look for `launcher` on a host that has not got it."""
    shipped = {module.__name__ for module in cluster.ON_HOSTS}
    for module in cluster.ON_HOSTS:
        imported = re.findall(r"^(?:from|import) (launcher[.\w]*)", inspect.getsource(module), re.M)
        assert set(imported) <= shipped
