"""The processes of one attempt on one host: started, watched, ended. Runs on a host.

They outlive their supervisor for `reattach` seconds: another one may attach meanwhile, learn what
it does not know, and go on. Of two supervisors the later one wins.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.hosts.descendants import KILL_SECONDS, end_descendants, end_group, signal_group
from launcher.hosts.journal import Journal, Offsets, Teller
from launcher.hosts.link import Link
from launcher.hosts.lobby import Lobby
from launcher.hosts.pulse import Pulse
from launcher.hosts.recorder import Recorder
from launcher.hosts.stacks import stacks
from launcher.hosts.standby import Standbys

# How long what a process started and left in its group may go on after it: to write the last
# words of a pipeline when it ended well.
PATIENCE_SECONDS = {True: 1.0, False: 0.1}
DISK_FULL_SECONDS = 5.0  # for the last output of a process to find room
NOTED_SECONDS = 10.0  # for the news of processes that were killed
END_SECONDS = KILL_SECONDS + NOTED_SECONDS + 10.0
AT_WORK_SECONDS = 10.0  # at most, from the start of a program to that of its standby
LOOK_SECONDS = 0.025  # whether it is at work, or when it has been told to leave does anything


class HostProcesses:
    """See `fanout.make_orders` for the order. Raises OSError if the supervisor is not there.

    `refresh` has notices that are in force by now told at once.
    """

    def __init__(
        self,
        order: dict[str, Any],
        code: Path,
        environment: Mapping[str, str],
        folder: Path,
        refresh: Callable[[], None],
        standbys: Standbys,
    ) -> None:
        self.refresh = refresh
        self.standbys = standbys
        self.with_standby = bool(order.get("standby"))
        self.key: str = order["key"]
        self.grace = float(order["grace"])
        self.peers: list[str] = order.get("peers", [])
        self.reattach = float(order.get("reattach", 0))
        indices = [process["process"] for process in order["processes"]]
        self.journal = Journal(folder, indices)
        self.changed = threading.Condition()
        self.starting = threading.Lock()
        self.link: Link | None = None
        self.since = -1  # when the supervisor took over, by its clock: nanoseconds
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.recorders: dict[int, Recorder] = {}
        self.ended: set[int] = set()
        self.noted: set[int] = set()  # those of which the journal tells
        self.deadline = math.inf  # for SIGKILL; finite once the processes have been told to end
        self.why = ""  # they were told to, if not by the supervisor
        self.hurried = False  # what does nothing is to end before the deadline
        self.doomed = False  # the host has been told to shut down
        self.is_gone = False
        self.left: list[int] = []  # processes that did not die
        self.oom_kills = self._count_oom_kills()
        self.attach(order["callback"], order["host"], {}, order.get("since", 0))
        self.lobby = lobby_of(order)
        with self.starting:
            for process in order["processes"]:
                env = {**environment, **process["env"]}
                self._start(process["process"], process["argv"], env, code)

    # --- the supervisor ---------------------------------------------------------------------------

    def attach(self, callback: str, host: list[int], offsets: Offsets, since: int) -> bool:
        """Report to this supervisor from now on; False when a later one has been here."""
        link = Link(callback, self.key, host)
        with self.changed:
            if is_late := self.link is not None and since < self.since:
                earlier: Link | None = link
            else:
                earlier, self.link, self.since = self.link, link, since
            self.changed.notify_all()
        if earlier:
            earlier.close(kind="replaced")
        if is_late:
            return False
        teller = Teller(self.journal, link, offsets)
        threading.Thread(target=teller.run, daemon=True).start()
        threading.Thread(target=self._follow_orders, args=(link,), daemon=True).start()
        return True

    def _follow_orders(self, link: Link) -> None:
        for order in link.orders():
            if link is self.link and order.get("key") == self.key:
                self._obey(order)
        link.close()
        self._wait_for_another(link)

    def _obey(self, order: dict[str, Any]) -> None:
        match order["kind"]:
            case "stop":
                self.stop(order["grace"], hurried=order.get("hurried", False))
            case "stacks":
                threading.Thread(target=self._write_stacks, daemon=True).start()
            case "kept":
                self.journal.free(order["process"], order["size"])
            case "done":  # the supervisor has all
                self.journal.discard()

    def _wait_for_another(self, link: Link) -> None:
        """The supervisor is gone: go on for a while, then end, since nobody is left to run for."""
        with self.changed:
            if self.link is not link:
                return
            self.link = None
            self.changed.wait_for(lambda: self.link or self.is_gone or self.doomed, self.reattach)
            if self.link or self.is_gone:
                return
        grace = 0.0 if self.doomed else self.grace
        self.stop(grace, f"stopped: no supervisor for {self.reattach:g} s")

    def notice(self, notice: Mapping[str, Any]) -> None:
        """Pass a notice on. At SIGTERM without a supervisor Ray itself ends the agent: be first."""
        self.hurried = False
        self.journal.tell(kind="notice", **notice)
        if notice["told"] == "SIGTERM":
            with self.changed:
                self.doomed = True
                self.changed.notify_all()

    def state(self) -> dict[str, Any]:
        """What runs, and what has happened so far."""
        exits = {e["process"]: e for e in self.journal.told("exit")}
        return {
            "key": self.key,
            "running": [index for index in self.journal.processes if index not in exits],
            "exits": exits,
            "notices": self.journal.told("notice"),
            "supervised": self.link is not None,
            "gone": self.is_gone,
        }

    # --- the processes ----------------------------------------------------------------------------

    def _start(self, index: int, argv: list[str], env: dict[str, str], code: Path) -> None:
        env["LAUNCHER_METRICS"] = str(self.journal.metrics(index))
        recorder = self.recorders[index] = Recorder(self.journal.output(index))
        try:
            child = self.standbys.start(index, argv, env, code, recorder.writer)
        except OSError as error:
            recorder.finish()  # its own words, if there is room
            recorder.say(f"cannot start {argv[0]}: {error}")
            self._note_exit(index, exec_failure_code(error))
            return
        finally:
            recorder.close_writer()
        self.children[index] = child
        threading.Thread(target=self._await, args=(index, child), daemon=True).start()
        if self.with_standby:
            later = (index, argv, env, code)
            threading.Thread(target=self._prepare_next, args=later, daemon=True).start()

    def _prepare_next(self, index: int, argv: list[str], env: dict[str, str], code: Path) -> None:
        """A standby, once the program is at work and no longer needs every processor to begin."""
        metrics, soon = self.journal.metrics(index), time.monotonic() + AT_WORK_SECONDS
        has_ended = False
        while not has_ended and not size_of(metrics) and time.monotonic() < soon:
            with self.changed:
                has_ended = self.changed.wait_for(lambda: index in self.ended, LOOK_SECONDS)
        if has_ended or self.deadline == math.inf:  # not while it saves
            try:
                self.standbys.prepare(index, argv, env, code)
            except OSError as error:
                self.recorders[index].say(f"no standby: {error}")

    def _await(self, index: int, child: subprocess.Popen[bytes]) -> None:
        """Say how a process ended once nothing of its group is left."""
        code = child.wait()
        ended_at, was_told = time.time(), self.deadline < math.inf
        # A shell ends at once when it is told to, while its program still saves.
        patience = math.inf if was_told else PATIENCE_SECONDS[code == 0]
        patience = min(patience, self.deadline - time.monotonic())
        end_group(child.pid, patience)
        self.recorders[index].finish(min(DISK_FULL_SECONDS, self.deadline - time.monotonic()))
        self._note_exit(index, code, ended_at, was_told)

    def _note_exit(
        self, index: int, code: int, ended_at: float | None = None, was_told: bool = False
    ) -> None:
        with self.changed:
            self.ended.add(index)
            is_last = self.ended == set(self.journal.processes)
        if is_last:  # whatever left its group as well
            end_descendants(self._leaders(), self.standbys.pids)
        event = {"ordered": was_told, "why": self.why if was_told else ""}
        exit_ = {"kind": "exit", "process": index, "code": code, **event}
        self.journal.tails[index] = self.recorders[index].tail
        self.journal.tell(**exit_, time=ended_at or time.time())
        with self.changed:
            self.noted.add(index)
            self.changed.notify_all()

    def stop(self, grace: float, why: str = "", *, hurried: bool = False) -> None:
        """SIGTERM to every process group; after `grace` seconds SIGKILL to all descendants.

        `hurried` does not wait so long for what does nothing, unless the host has had a notice: a
        process that waits for a dead peer would use up all its grace. Returns at once; a later
        order can only shorten the grace.
        """
        with self.changed:
            is_first = self.deadline == math.inf
            self.deadline = min(self.deadline, time.monotonic() + grace)
            self.why = why if is_first else self.why
            self.hurried = hurried and not self.journal.told("notice")
            self.changed.notify_all()
        if is_first:
            threading.Thread(target=self._end, daemon=True).start()

    def end(self) -> list[int]:
        """End all now; returns the ids of processes that do not die."""
        self.stop(grace=0)
        with self.changed:
            if self.changed.wait_for(lambda: self.is_gone, END_SECONDS):
                return self.left
        return end_descendants(self._leaders(), self.standbys.pids)

    def _end(self) -> None:
        with self.starting:  # all have been started
            pass
        asking = threading.Thread(target=self.refresh)
        asking.start()
        if self.deadline > time.monotonic():
            for index, child in self.children.items():
                if index not in self.ended:
                    signal_group(child.pid, signal.SIGTERM)
        self._await_leaving()
        self.left = end_descendants(self._leaders(), self.standbys.pids)
        if self.lobby:
            self.lobby.close()
        for recorder in self.recorders.values():
            recorder.close()
        with self.changed:
            self.changed.wait_for(lambda: not self._remaining() or self.left, NOTED_SECONDS)
        asking.join()
        oom_kills = self._count_oom_kills() - self.oom_kills
        self.standbys.rest()
        self.journal.tell(kind="gone", left=self.left, oom_kills=oom_kills)
        with self.changed:
            self.is_gone = True
            self.changed.notify_all()

    def _await_leaving(self) -> None:
        """Until none remains, or the deadline has passed."""
        pulses = {index: Pulse(child.pid, self.peers) for index, child in self.children.items()}
        with self.changed:
            while self._remaining() and (left := self.deadline - time.monotonic()) > 0:
                if self.hurried:
                    self._end_quiet(pulses)
                self.changed.wait(min(left, LOOK_SECONDS) if self.hurried else left)

    def _end_quiet(self, pulses: Mapping[int, Pulse]) -> None:
        """SIGKILL to the groups that do nothing any more."""
        for index in pulses.keys() - self.ended:
            if pulses[index].stopped():
                signal_group(pulses[index].leader, signal.SIGKILL)

    def _remaining(self) -> set[int]:
        """Those of whose end the journal does not tell yet."""
        return set(self.journal.processes) - self.noted

    def _count_oom_kills(self) -> int:
        return count_oom_kills() - self.standbys.count_killed()

    def is_running(self) -> bool:
        return any(child.poll() is None for child in self.children.values())

    def _leaders(self) -> list[int]:
        return [child.pid for child in self.children.values()]

    def _write_stacks(self) -> None:
        """Where each process hangs, as lines of ours among its output."""
        for index, child in self.children.items():
            if child.poll() is None:
                self.recorders[index].say(stacks(child.pid))
        self.journal.tell(kind="stacks")


def lobby_of(order: Mapping[str, Any]) -> Lobby | None:
    """None where there can be none: then the processes meet a little later."""
    with contextlib.suppress(OSError):
        return Lobby(*order["coordinator"]) if "coordinator" in order else None
    return None


def exec_failure_code(error: OSError) -> int:
    """As a shell would say it: 127 not found, 126 found but cannot be run."""
    return 127 if isinstance(error, FileNotFoundError) else 126


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def count_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since this machine's boot."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
