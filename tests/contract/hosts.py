"""Agents in processes of their own, as on hosts, and supervisors of them; Ray alone is left out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from launcher.attempts.gang import Gang
from launcher.hosts.descendants import has_ended
from launcher.hosts.member import Ending, Member
from launcher.judging.evidence import Hang, Notice

AGENT = """
import json, sys
from launcher.hosts import processes
from launcher.hosts.agent import Agent
processes.PATIENCE_SECONDS[True] = 60.0
agent = Agent()
for line in sys.stdin:
    method, arguments = json.loads(line)
    print(json.dumps(getattr(agent, method)(*arguments)), flush=True)
"""
ADDRESS = "127.0.0.9"
PLACES = [(0, 0), (0, 1)]
PATIENCE = 60.0  # for what must happen soon, on a machine that may be busy
WAIT = """
import os, time
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""
SLEEP = "import time; print('on', flush=True); time.sleep(600)"
NOWHERE = "127.0.0.9:1"  # nobody listens there


class Feed:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.bytes: dict[Member, bytes] = {}
        self.lines: list[str] = []
        self.endings: list[Ending] = []
        self.notices: list[Notice] = []
        self.hangs: list[Hang] = []

    def output(self, member: Member, chunk: bytes) -> None:
        self.bytes[member] = self.bytes.get(member, b"") + chunk

    def metrics(self, member: Member, line: str) -> None:
        self.lines.append(line)

    def ended(self, ending: Ending) -> None:
        self.endings.append(ending)

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)

    def hung(self, hang: Hang) -> None:
        self.hangs.append(hang)


class Host:
    """One agent; `call` is what Ray does for a supervisor."""

    def __init__(self, home: Path, metadata: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        (home / ".launcher" / "code" / "c0de").mkdir(parents=True, exist_ok=True)
        own = {"PATH": os.environ["PATH"], "GCE_METADATA_HOST": metadata}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"HOME": str(home), "LAUNCHER_HOST_ENVIRONMENT": json.dumps(own)},
        )

    def call(self, method: str, *arguments: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def descendants(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in found if not has_ended(p)]

    @property
    def attempts(self) -> list[Path]:
        return list((self.home / ".launcher" / "attempts").glob("*"))

    def kill(self) -> None:
        """As the end of a VM: everything at once."""
        for process in [psutil.Process(self.process.pid), *self.descendants()]:
            with contextlib.suppress(psutil.NoSuchProcess):  # the first may have been its reaper
                process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


class Hosts:
    """Two hosts, and one supervisor after another."""

    def __init__(self, folder: Path, metadata: str = NOWHERE) -> None:
        self.hosts = {p: Host(folder / f"s{p[0]}-h{p[1]}", metadata) for p in PLACES}
        self.gangs: list[Gang] = []
        self.feed = Feed()
        self.supervise()

    @property
    def gang(self) -> Gang:
        return self.gangs[-1]

    def supervise(self, key: str | None = None, **options: Any) -> Gang:
        """Another supervisor, of an attempt that runs if its key is given."""
        self.gangs.append(Gang(ADDRESS, PLACES, [Member(*p) for p in PLACES], key=key, **options))
        return self.gang

    def order(self, place: tuple[int, int], argv: list[str], **more: Any) -> dict[str, Any]:
        process = {"process": 0, "argv": argv, "env": more.pop("env", {})}
        common = {"callback": self.gang.callback, "key": self.gang.key, "host": list(place)}
        common |= {"code": "c0de", "grace": 0.2, "since": time.time_ns()}
        return {**common, "processes": [process], **more}

    def start(self, *argvs: list[str], **more: Any) -> None:
        for place, argv in zip(PLACES, argvs, strict=True):
            host = self.hosts[place]
            assert host.call("prepare", "c0de", self.gang.key)["left"] == []
            assert host.call("start", self.order(place, argv, **more))
        self.gang.ordered = True
        self.gang.await_links()

    def attach(self, feed: Feed, metrics: Sequence[int] = (0, 0)) -> list[str]:
        """The newest supervisor takes over with what the feed knows; the agents' answers."""
        answers = []
        for place, lines in zip(PLACES, metrics, strict=True):
            offsets = {0: [len(feed.bytes.get(Member(*place), b"")), lines]}
            common = {"callback": self.gang.callback, "key": self.gang.key, "host": list(place)}
            order = {**common, "offsets": offsets, "since": time.time_ns()}
            answers.append(self.hosts[place].call("attach", order))
        self.gang.ordered = True
        return answers

    def follow(self) -> list[Ending]:
        return self.gang.follow(self.feed, lambda _: None)

    def take_until(self, condition: Callable[[], Any]) -> list[Ending]:
        """Handle what comes until the condition holds; the endings among it."""
        running = set(self.gang.members.values())
        endings: list[Ending] = []

        def look() -> Any:
            endings.extend(self.gang._take(self.feed, running))
            return condition()

        wait_until(look)
        return endings

    def stop(self, grace: float = PATIENCE, *, hurried: bool = False) -> list[Ending]:
        left = set(self.gang.members.values()) - {e.member for e in self.feed.endings}
        return self.gang.stop(self.feed, grace, left, hurried=hurried)

    def descendants(self) -> list[psutil.Process]:
        return [p for host in self.hosts.values() for p in host.descendants()]

    def close(self) -> None:
        for gang in self.gangs:
            gang.close()
        for host in self.hosts.values():
            if host.process.poll() is None:
                host.process.send_signal(18)  # SIGCONT
                host.kill()


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def codes(endings: Sequence[Ending]) -> Mapping[str, int | None]:
    return {str(ending.member): ending.code for ending in endings}
