"""What the state machine's processes run: the launcher's own acquisition, with Ray left out.

A child is forked from a process that has imported this module and opened no channel, so that it
begins within milliseconds. It runs real verbs, under real locks, over the real wire; only the head
is not started, and the hosts count as joined once the emulator says that their slices are READY.
Pauses pass ten times as fast, and the longest patience is short, so that a sequence takes a second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import tenacity.nap

import launcher.providers.google
import launcher.providers.local
import launcher.providers.rest
import launcher.verbs.down
import launcher.verbs.gc
from launcher import cluster, coordinator, invocation
from launcher.__main__ import dispatch
from launcher.compose import compose
from launcher.emulator import client as emulator
from launcher.errors import ClusterError, ConfigError, Superseded
from launcher.head_watch import HeadWatch
from launcher.interrupt import Interrupt
from launcher.providers import calls, waiting
from launcher.provisioning import chain, joining, provision, removal
from launcher.verbs import exit_code, loading, take_apart

SPEED = 10.0
OTHERS = ("far", "alien")  # names that others have taken; their things are not to be touched
PATIENCE: Mapping[tuple[Any, str], float] = {
    (chain, "SHORTEST_ROUND"): 0.5,
    (removal, "DELETE_SECONDS"): 3.0,
    (launcher.providers.google, "DELETE_LEFTOVER_SECONDS"): 3.0,
    (waiting, "APPEAR_SECONDS"): 1.0,
    (calls, "AWAY_SECONDS"): 1.0,
    (joining, "LOOK_SECONDS"): 0.1,
    (provision, "JOIN_AGAIN_SECONDS"): 0.5,
}


@dataclass(frozen=True)
class Moment:
    """When something befalls a launcher, and what: at one of its calls of the API, by number or by
    method, or at a time.

    The deed is `kill`, `interrupt`, `interrupt twice`, or a fault, which strikes the launcher's
    node of that index, or its queued resource if `queued`.
    """

    deed: str
    call: int = 0
    method: str = ""
    after: bool = False  # not before the call is made, but when it has been answered
    seconds: float | None = None  # since the start; in place of a call
    state: str = ""
    index: int = 0
    queued: bool = False

    def is_at(self, count: int, method: str) -> bool:
        by_method = bool(self.method) and method.endswith(f"/{self.method}")
        return self.seconds is None and (self.call == count or by_method)


@dataclass(frozen=True)
class Act:
    """One process: the words of its command line, and what befalls it."""

    verb: str  # launch | up | down | gc
    words: tuple[str, ...]
    home: str = "a"
    name: str = ""
    moments: tuple[Moment, ...] = ()
    joins: bool = True
    hold: float = 0.0  # seconds until the hosts have joined
    renewals: int = 0  # how often the first slice is lost after that, and made anew
    superseded: bool = False  # by another supervisor, in the end
    adopts: bool = False  # finds the head of the launcher before it
    hurried: bool = True


def main(act: Act, base: str, endpoint: str) -> None:
    """In a child: leaves with the exit code of the command line."""
    screen = os.open(f"{base}/{act.home}/screens", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    os.environ |= {"LAUNCHER_HOME": f"{base}/{act.home}", "GRPC_VERBOSITY": "NONE"}
    os.chdir(f"{base}/{act.home}")
    leave_ray_out(act, endpoint)
    code = exit_code(lambda: meet_fate(act, Fate(act, f"{base}/deeds", endpoint)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    os._exit(code)  # no thread of a child may keep it


def meet_fate(act: Act, fate: Fate) -> int:
    fate.start()
    return VERBS[act.verb](act)


def launch(act: Act) -> int:
    """`up` without its last line; `launch` takes it down again."""
    stays = act.verb == "up"
    spec, plan = loading.load(take_apart("up", act.words), workload=False)
    with (
        invocation.session(spec, plan) as session,
        provision.acquired(session, stays=stays) as joined,
    ):
        for _ in range(act.renewals):
            joined = provision.renew(session, joined, {0})
        assert len(joined.choice.nodes) == spec.mode.slices
        if act.superseded:
            raise Superseded("another supervisor has taken this attempt over")
    return 0


VERBS: Mapping[str, Callable[[Act], int]] = {
    "launch": launch,
    "up": launch,
    "down": lambda act: dispatch(["down", *act.words]),
    "gc": lambda act: dispatch(["gc", *act.words]),
}


def leave_ray_out(act: Act, endpoint: str) -> None:
    if act.hurried:
        hurry()
    head = coordinator.Head("none", "127.0.0.2", (1, 2), "/nonexistent")
    coordinator.start_head = lambda *_, **__: head
    coordinator.Head.token = "token"
    cluster.is_connected = lambda: True
    coordinator.require_alive = HeadWatch.look = lambda _: None
    cluster.connect = cluster.disconnect = lambda _: None
    if act.adopts:
        coordinator.find_head = lambda _: head
        coordinator.is_up = lambda _: True

    def gather(
        slices: Mapping[int, cluster.Expected],
        hosts_per_slice: int,
        is_late: Callable[[], bool],
        pause: Callable[[float], None],
        *_: Any,
        partly: bool = False,
    ) -> dict[Any, Any]:
        nodes = [expected.node for expected in slices.values()]
        joined_at = None
        while joined_at is None or time.monotonic() < joined_at + act.hold:
            pause(0.2)
            if is_late():
                if partly:
                    return {}
                raise ClusterError("hosts did not join")
            if joined_at is None and act.joins and all_ready(endpoint, nodes):
                joined_at = time.monotonic()
        places = [(index, worker) for index in slices for worker in range(hosts_per_slice)]
        return dict.fromkeys(places)  # Ray's handles; nothing here uses them

    cluster.gather = gather


def hurry() -> None:
    for (module, name), seconds in PATIENCE.items():
        assert hasattr(module, name)
        setattr(module, name, seconds)
    nap: Any = tenacity.nap
    nap.time = Hurried
    slow = Interrupt.pause
    Interrupt.pause = lambda self, seconds: slow(self, seconds / SPEED)


class Hurried:
    """Stands for the module `time` in tenacity's own sleep."""

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds / SPEED)


def all_ready(endpoint: str, nodes: Sequence[str]) -> bool:
    rows = emulator.control(endpoint, {"command": "ledger"})["nodes"]
    ready = {id_of(r["name"]) for r in rows if r["ended"] is None and r["state"] == "READY"}
    return ready >= set(nodes)


def id_of(name: str) -> str:
    return name.rpartition("/")[2]


class Fate(grpc.UnaryUnaryClientInterceptor):
    """Counts the calls of this process, and does what is to be done at each."""

    def __init__(self, act: Act, deeds: str, endpoint: str) -> None:
        self._act = act
        self._deeds = Path(deeds)
        self._endpoint = endpoint
        self._count = 0
        self._lock = threading.Lock()
        self._open = emulator.open_channel

    def start(self) -> None:
        emulator.open_channel = lambda endpoint: grpc.intercept_channel(self._open(endpoint), self)
        for moment in self._act.moments:
            if moment.seconds is not None:
                timer = threading.Timer(moment.seconds, self._do, (moment,))
                timer.daemon = True
                timer.start()

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        method = details.method if isinstance(details.method, str) else details.method.decode()
        if not method.startswith("/google."):
            return continuation(details, request)
        with self._lock:
            self._count += 1
            count = self._count
        now = [moment for moment in self._act.moments if moment.is_at(count, method)]
        for moment in now:
            if not moment.after:
                self._do(moment)
        answer = continuation(details, request)
        for moment in now:
            if moment.after:
                answer.code()  # waits for it
                self._do(moment)
        return answer

    def _do(self, moment: Moment) -> None:
        match moment.deed:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            case "interrupt twice":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGINT)
            case fault:
                self._strike(fault, moment)

    def _strike(self, fault: str, moment: Moment) -> None:
        ledger = emulator.control(self._endpoint, {"command": "ledger"})
        if self._act.name in OTHERS:
            return
        kind, pattern = ("queuedResources", "") if moment.queued else ("nodes", "-s")
        prefix = f"/{kind}/{self._act.name}{pattern}"
        found = sorted(name for name in ledger["left"] if prefix in name)
        if not found:
            return
        name = found[moment.index % len(found)]
        rule = {"fault": fault, "node": name} | ({"state": moment.state} if moment.state else {})
        try:
            emulator.control(self._endpoint, {"command": "fault", **rule})
        except ConfigError:
            return  # in no state for it
        with self._deeds.open("a") as deeds:
            deeds.write(f"{name} {fault} {moment.state}\n")


# Fills its caches.
compose(["cluster=v2-8"], config_dirs=(), cwd=Path("/"), require_workload=False)
