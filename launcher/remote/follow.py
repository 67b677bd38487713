"""A job's frames into the run folder and on the screen."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher import registry
from launcher.errors import ClusterError, ConfigError
from launcher.hosts.member import Member
from launcher.remote.frames import Decoder, Frame, Mirror, as_bytes
from launcher.remote.jobs import Jobs, Pause, State
from launcher.screen import Screen

AGAIN_SECONDS = 1.0
_LOG = re.compile(r"logs/attempt-[0-9]+/s([0-9]+)-h([0-9]+)(?:-p([0-9]+))?\.log")


@dataclass(frozen=True, slots=True)
class End:
    """The last word of a job: its exit code, and whether slices of the run stay up."""

    code: int
    up: bool


class Lost(ClusterError):
    """A job has ended without a last word: its coordinator died, or it was killed."""


class Follower:
    """One follower of one job. Only one process at a time writes to the mirror of a run."""

    def __init__(
        self, jobs: Jobs, job: str, name: str, folder: Path, screen: Screen | None
    ) -> None:
        self._jobs = jobs
        self._job = job
        self._name = name
        self._folder = folder
        self._screen = screen
        self._end: End | None = None
        self._told = False

    def follow(self, pause: Pause) -> End:
        """Until the job has ended. Raises Lost when it had no last word.

        Raises ConfigError when another process is following.
        """
        with self._alone():
            while True:
                decoder, mirror = Decoder(), Mirror(self._folder, self._job)
                self._take(self._jobs.tail(self._job, pause), decoder, mirror)
                if self._end is not None:
                    return self._end
                state = self._jobs.state(self._job)
                if state is None or state.ended:
                    return self._last_words(state)
                pause(AGAIN_SECONDS)

    def catch_up(self) -> End | None:
        """Bring the mirror up to now; the end of a job that has ended.

        Returns at once when another process is following. Raises Lost as `follow` does.
        """
        try:
            with self._alone():
                state = self._jobs.state(self._job)
                if state is None or state.ended:
                    return self._last_words(state)
                mirror = Mirror(self._folder, self._job)
                self._take(iter([self._jobs.log(self._job)]), Decoder(), mirror)
                return self._end
        except ConfigError:
            return None

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        busy = f"{self._name} is followed by another process; `logs -f` shows it here as well"
        return registry.lock(f"mirror-{self._name}", busy)

    def _last_words(self, state: State | None) -> End:
        """Of a job that has ended: what it said after the last look is still in its log."""
        decoder, mirror = Decoder(), Mirror(self._folder, self._job)
        if state is not None:
            self._take(iter([self._jobs.log(self._job)]), decoder, mirror)
        if self._end is not None:
            return self._end
        raise Lost(lost(self._name, state, decoder.strays))

    def _take(self, texts: Iterator[str], decoder: Decoder, mirror: Mirror) -> None:
        for text in texts:
            for frame in decoder.feed(text):
                if frame["do"] == "exit":
                    self._end = End(frame["code"], frame["up"])
                if mirror.apply(frame) and self._screen:
                    show(frame, self._screen)
            mirror.save()
            if mirror.trouble and self._screen and not self._told:
                self._told = True
                self._screen.phase("record", f"{mirror.trouble}; the run goes on, seen from here")
            if self._end is not None:
                return


def lost(name: str, state: State | None, strays: list[str]) -> str:
    again = "the same command adopts or removes what it left"
    if state is None:
        return f"{name} has lost its coordinator, which knows no such job any more; {again}"
    said = "".join(f"\n    | {line}" for line in strays[-12:])
    first = (state.message.strip().splitlines() or [""])[0]
    return f"the job of {name} is {state.status} without a result: {first}; {again}{said}"


def show(frame: Frame, screen: Screen) -> None:
    """As a local run would show it."""
    match frame["do"]:
        case "phase":
            screen.phase(frame["topic"], frame["text"])
        case "wait":
            screen.wait(frame["text"])
        case "append":
            if member := member_of(frame["path"]):
                screen.output(member, as_bytes(frame["text"]))
        case "finish":
            screen.finish()
        case "print":
            print(frame["text"], flush=True)
        case "error":
            screen.wait("")
            print(frame["text"], file=sys.stderr, flush=True)


def member_of(path: str) -> Member | None:
    """Whose log a file of the run folder is."""
    if not (found := _LOG.fullmatch(path)):
        return None
    slice_, host, process = found.groups()
    return Member(int(slice_), int(host), int(process or 0), process is None)
