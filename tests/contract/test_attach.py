"""A supervisor dies, and another one goes on: over the real connection, with real processes."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.attempts import fanout
from launcher.attempts.links import read_frame
from launcher.errors import Superseded
from launcher.hosts import link
from launcher.hosts.journal import LINE_BYTES, Lines
from launcher.hosts.member import Ending, Member
from tests.contract.hosts import PLACES, SLEEP, Feed, Hosts, codes, python, wait_until

ONE, TWO = (Member(*place) for place in PLACES)
LONG = 600.0
# Writes random bytes of many sizes, newlines and none, on both streams; tells their digest.
NOISE = """
import hashlib, os, random, sys
choose = random.Random(int(sys.argv[1]))
left, digest = int(sys.argv[2]), hashlib.sha256()
while left:
    chunk = choose.randbytes(min(left, choose.choice([1, 7, 4096, 100_000, 1_000_000])))
    left -= len(chunk)
    digest.update(chunk)
    stream = choose.choice([1, 2])
    while chunk:
        chunk = chunk[os.write(stream, chunk):]
with open(os.environ["DIGEST"], "w") as file:
    file.write(digest.hexdigest())
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def die(hosts: Hosts) -> None:
    """The newest supervisor is gone, as by SIGKILL: its connections break, nobody says a word."""
    for connection in (hosts.gang.links.server, *hosts.gang.links.sockets.values()):
        connection.shutdown(socket.SHUT_RDWR)


def follow_for(hosts: Hosts, size: int) -> None:
    """Follow until that many bytes more have come, or the end."""
    running = set(hosts.gang.members.values())
    limit = size + sum(map(len, hosts.feed.bytes.values()))
    while sum(map(len, hosts.feed.bytes.values())) < limit and running:
        hosts.gang._take(hosts.feed, running)


@pytest.mark.parametrize("seed", [1, 2])
def test_output_is_exact_however_often_the_supervisor_changes(
    hosts: Hosts, tmp_path: Path, seed: int
) -> None:
    size = 25_000_000
    digests = [tmp_path / "one", tmp_path / "two"]
    noise = [[*python(NOISE), str(seed), str(size)], [*python(NOISE), str(seed + 9), str(size)]]
    for place, argv, digest in zip(PLACES, noise, digests, strict=True):
        host = hosts.hosts[place]
        host.call("prepare", "c0de", hosts.gang.key)
        more = {"env": {"DIGEST": str(digest)}, "reattach": LONG}
        assert host.call("start", hosts.order(place, argv, **more))
    choose = random.Random(seed)
    for _ in range(8):
        follow_for(hosts, choose.randrange(8_000_000))
        die(hosts)
        hosts.supervise(hosts.gang.key)
        assert hosts.attach(hosts.feed) == [hosts.gang.key] * 2
    hosts.feed.endings.clear()  # told again at each attachment
    assert codes(hosts.follow()) == {"s0 h0": 0, "s0 h1": 0}
    for member, digest in zip((ONE, TWO), digests, strict=True):
        assert len(hosts.feed.bytes[member]) == size
        assert hashlib.sha256(hosts.feed.bytes[member]).hexdigest() == digest.read_text()


def test_metrics_go_on_after_the_lines_that_are_known(hosts: Hosts) -> None:
    write = """
import os, sys, time
with open(os.environ["LAUNCHER_METRICS"], "a", buffering=1) as file:
    for step in range(200):
        file.write('{"step": %d}\\n' % step)
        time.sleep(0.005)
    file.write('{"step": 200}')
"""
    hosts.start(python(write), python("pass"), reattach=LONG)
    hosts.take_until(lambda: len(hosts.feed.lines) > 20)
    die(hosts)
    hosts.supervise(hosts.gang.key)
    hosts.attach(hosts.feed, metrics=[len(hosts.feed.lines), 0])
    hosts.follow()
    assert [json.loads(line)["step"] for line in hosts.feed.lines] == list(range(201))


def test_what_ended_meanwhile_is_told_with_its_time(hosts: Hosts) -> None:
    fail = "import time; print('soon', flush=True); time.sleep(0.5); raise SystemExit(7)"
    hosts.start(python(SLEEP), python(fail), reattach=LONG)
    follow_for(hosts, 8)
    die(hosts)
    host = hosts.hosts[0, 1]
    state = wait_until(lambda: (s := host.call("state"))["exits"] and not s["supervised"] and s)
    assert (state["key"], state["running"], state["gone"]) == (hosts.gang.key, [], False)
    assert state["exits"]["0"]["code"] == 7
    assert hosts.hosts[0, 0].call("state")["running"] == [0]
    hosts.supervise(hosts.gang.key)
    hosts.attach(hosts.feed)
    (first,) = hosts.follow()
    assert (first.member, first.code, first.collateral) == (TWO, 7, False)
    assert first.time == state["exits"]["0"]["time"]
    assert first.tail == "soon\n"
    (second,) = hosts.stop()
    assert second.collateral
    assert not hosts.descendants()


def test_nobody_comes_back_and_all_is_ended(hosts: Hosts) -> None:
    tree = f"import os\nif os.fork() == 0: os.setsid()\nos.fork()\n{SLEEP}"
    hosts.start(python(tree), python(tree), reattach=0.5)
    wait_until(lambda: len(hosts.descendants()) == 8)
    die(hosts)
    wait_until(lambda: not hosts.descendants())
    assert wait_until(lambda: (s := hosts.hosts[0, 0].call("state"))["gone"] and s)["key"]
    hosts.supervise(hosts.gang.key)
    hosts.attach(hosts.feed)
    (first,) = hosts.follow()[:1]
    assert first.collateral  # no failure of its own
    assert first.reason == "stopped: no supervisor for 0.5 s"
    hosts.stop()


def test_without_a_reattach_time_a_dead_supervisor_ends_all_at_once(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP))
    wait_until(lambda: len(hosts.descendants()) == 2)
    die(hosts)
    wait_until(lambda: not hosts.descendants())


def test_the_later_supervisor_wins_and_the_earlier_one_learns_why(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    earlier, attempt = hosts.gang, fanout.Attempt(0, "k", "c0de", (), {}, 0.2, None)
    errors: list[Exception] = []

    def follow_earlier() -> None:
        try:
            fanout.conduct(earlier, attempt, Feed(), lambda _: None, list[Ending])
        except Superseded as error:
            errors.append(error)

    thread = threading.Thread(target=follow_earlier)
    thread.start()
    hosts.supervise(earlier.key)
    hosts.attach(hosts.feed)
    thread.join(60)
    assert "another supervisor has taken this attempt over" in str(errors[0])
    assert len(hosts.descendants()) == 2
    hosts.take_until(lambda: len(hosts.feed.bytes) == 2)
    assert codes(hosts.stop()) == {"s0 h0": -15, "s0 h1": -15}


def test_of_two_at_once_the_one_that_came_later_is_obeyed(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    first = hosts.gang
    late = hosts.supervise(first.key)
    order = {"callback": late.callback, "key": late.key, "host": [0, 0], "offsets": {}}
    assert hosts.hosts[0, 0].call("attach", order | {"since": 1}) == "later"
    with pytest.raises(Superseded):
        late.follow(Feed(), lambda _: None)
    assert late.stop(Feed(), 0, late.members.values()) == []
    assert len(hosts.descendants()) == 2
    assert len(first.stop(hosts.feed, 0.3, first.members.values())) == 2


def test_one_that_is_replaced_has_no_host_forget_the_attempt(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    hosts.gang.gone = {PLACES[0]}
    assert isinstance(hosts.gang.supersede(), Superseded)
    hosts.gang.close()
    wait_until(lambda: not hosts.hosts[0, 0].call("state")["supervised"])
    (attempt,) = hosts.hosts[0, 0].attempts
    assert (attempt / "output-0").exists()


def test_orders_of_a_replaced_attempt_are_ignored(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    old, host = hosts.gang, hosts.hosts[0, 0]
    before = host.descendants()
    hosts.supervise()
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    assert not any(p.pid in {b.pid for b in before} for p in host.descendants())
    assert len(host.attempts) == 1
    order = hosts.order((0, 0), python(SLEEP)) | {"key": old.key, "callback": old.callback}
    assert host.call("start", order) is False
    attach = {"callback": old.callback, "key": old.key, "host": [0, 0], "offsets": {}}
    assert host.call("attach", attach | {"since": time.time_ns()}) == hosts.gang.key
    for place in PLACES:
        old.links.send(place, kind="stop", grace=0)
        hosts.gang.links.sockets[place].sendall(b'{"kind": "stop", "grace": 0, "key": "old"}\n')
    assert host.call("state")["key"] == hosts.gang.key
    assert len(host.descendants()) == 1
    assert codes(hosts.stop()) == {"s0 h0": -15, "s0 h1": -15}  # the connection has lived on


def test_a_start_twice_is_one_start(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP))
    assert hosts.hosts[0, 0].call("start", hosts.order((0, 0), python(SLEEP))) is False
    assert len(hosts.hosts[0, 0].descendants()) == 1


def test_who_ended_long_before_an_attachment_has_left_nobody(hosts: Hosts) -> None:
    hosts.start(python("pass"), python("import time; time.sleep(2)"), reattach=LONG)
    die(hosts)
    wait_until(lambda: all(not h.call("state")["running"] for h in hosts.hosts.values()))
    hosts.supervise(hosts.gang.key, straggler_timeout=1.0)
    hosts.attach(hosts.feed)
    waiting = hosts.gang.links.frames.queue
    wait_until(lambda: sum(frame["kind"] == "exit" for _, frame, _ in list(waiting)) == 2)
    assert codes(hosts.follow()) == {"s0 h0": 0, "s0 h1": 0}


def test_a_host_without_the_attempt_is_lost(hosts: Hosts) -> None:
    hosts.start(python(SLEEP), python(SLEEP), reattach=LONG)
    die(hosts)
    hosts.hosts[0, 1].call("prepare", "c0de", "another")
    key = hosts.gang.key
    later = hosts.supervise(key)
    assert hosts.attach(hosts.feed) == [key, ""]
    (lost,) = later.lose([(0, 1)], "nothing is there", hosts.feed)
    assert (lost.member, lost.code) == (TWO, None)
    later.await_links()
    (ended,) = hosts.stop()
    assert (ended.member, ended.collateral) == (ONE, True)


def test_a_metrics_line_without_end_is_cut_and_the_next_are_whole(
    hosts: Hosts, tmp_path: Path
) -> None:
    """A supervisor that comes back in the midst of it neither misses a line nor gets one twice."""
    write = """
import os, pathlib, time
with open(os.environ["LAUNCHER_METRICS"], "ab", buffering=0) as file:
    file.write(b'{"step": 1}\\n')
    for _ in range(40):
        file.write(b'x' * 100_000)
    print("long", flush=True)
    while not pathlib.Path(os.environ["GO"]).exists():
        time.sleep(0.01)
    file.write(b'\\n{"step": 2}\\n' + b'y' * 200_000)
"""
    go = tmp_path / "go"
    hosts.start(python(write), python("pass"), reattach=LONG, env={"GO": str(go)})
    hosts.take_until(lambda: hosts.feed.bytes.get(ONE))
    die(hosts)
    hosts.supervise(hosts.gang.key)
    hosts.attach(hosts.feed, metrics=[len(hosts.feed.lines), 0])
    go.touch()
    hosts.follow()
    cut, last = "x" * LINE_BYTES, "y" * LINE_BYTES
    assert [line.rstrip("\n") for line in hosts.feed.lines] == [
        '{"step": 1}',
        cut,
        '{"step": 2}',
        last,
    ]


@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"a", b"\n"))), st.integers(0, 9))
def test_lines_come_whole_and_once(pieces: list[bytes], skip: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics"
        lines, seen = Lines(path, skip), list(Lines(path, skip).read(ended=True))
        for piece in pieces:
            with path.open("ab") as file:
                file.write(piece)
            seen += lines.read(ended=False)
            assert all(line.endswith(b"\n") for line in seen)
        seen += lines.read(ended=True)
        lines.close()
    whole = b"".join(pieces)
    expected = [line + b"\n" for line in whole.split(b"\n")[:-1]]
    expected += [whole.rpartition(b"\n")[2]] if not whole.endswith(b"\n") and whole else []
    assert seen == expected[skip:]


def test_a_blocked_link_is_closed_all_the_same() -> None:
    """A supervisor that reads nothing must not keep the next one from taking over."""
    with socket.create_server(("127.0.0.9", 0)) as server:
        address, port = server.getsockname()
        made = link.Link(f"{address}:{port}", "key", [0, 0])
        peer, _ = server.accept()
        blocked = threading.Thread(target=lambda: made.send(b"x" * 2**25, kind="output"))
        blocked.start()
        wait_until(made.lock.locked)
        made.close(kind="replaced")
        blocked.join(30)
        assert not blocked.is_alive()
        with peer, peer.makefile("rb") as stream:
            assert read_frame(stream)
            assert read_frame(stream) is None
