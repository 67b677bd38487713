"""One scenario: a real launcher in a place of its own, watched, and disturbed when it is due."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from launcher.interrupt import Interrupt
from launcher.rehearsal import place as places
from launcher.rehearsal.deeds import Hands, Refused
from launcher.rehearsal.place import Place
from launcher.rehearsal.scenarios import KILL_LAUNCHER, Deed, Scenario
from launcher.rehearsal.triggers import Course, Lookout, News, Trigger, Unreachable

POLL_SECONDS = 0.02
STOP_SECONDS = 120.0  # for a launcher that was told to stop: it deletes its slices first


@dataclass(slots=True)
class Ran:
    """How a scenario went. `exit_code` is that of the last launcher, None if it had to be killed.

    `done` are the deeds with the step and the event that were the last before them; `skipped`
    says why the scenario could not be; `troubles` are faults of the course itself.
    """

    exit_code: int | None = None
    seconds: float = 0.0
    done: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    skipped: str = ""
    troubles: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Job:
    """The same for all scenarios: the words behind `run`, and the number of hosts of a slice."""

    words: Sequence[str]
    hosts: int


def conduct(
    job: Job,
    scenario: Scenario,
    place: Place,
    course: Course,
    limit: float,
    interrupt: Interrupt,
    tell: Callable[[str], None],
) -> Ran:
    """Runs the scenario to its end, at most `limit` seconds. `tell` hears of every deed.

    Raises Interrupted when the user stops it; the launcher is then told to stop first.
    """
    try:
        for deed in scenario.deeds:
            Trigger(deed.when, course)
    except Unreachable as error:
        return Ran(skipped=str(error))
    with places.emulator(place) as endpoint:
        hands = Hands(place, endpoint, job.hosts)
        watch = _Conductor(job, place, course, hands, interrupt, tell, deque(scenario.deeds))
        ran = watch.run(limit)
        ran.left += places.leaks(place, endpoint)
    ran.left += places.remains(place)
    return ran


class _Conductor:
    """Watches one launcher, and does what is due."""

    def __init__(
        self,
        job: Job,
        place: Place,
        course: Course,
        hands: Hands,
        interrupt: Interrupt,
        tell: Callable[[str], None],
        deeds: deque[Deed],
    ) -> None:
        self.job, self.place, self.course = job, place, course
        self.hands, self.interrupt, self.tell, self.deeds = hands, interrupt, tell, deeds
        self.lookout = Lookout(place.folder)
        self.ran = Ran()
        self.refusal = ""
        self.trigger: Trigger | None = None

    def run(self, limit: float) -> Ran:
        began = time.monotonic()
        while self.deeds and self.deeds[0].when is None:
            self.hands.do(self.deeds[0])
            self._note(self.deeds.popleft())
        self.process = self._start()
        try:
            while self.process.poll() is None and time.monotonic() < began + limit:
                self._act(self.lookout.look())
                self.interrupt.pause(POLL_SECONDS)
        finally:
            if self.process.poll() is None:
                self._stop(limit)
        self.ran.exit_code = self.process.returncode
        self.ran.seconds = round(time.monotonic() - began, 3)
        self.ran.undone = [f"{deed}: {self._why(deed)}" for deed in self.deeds]
        return self.ran

    def _start(self) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches it through us."""
        argv = [sys.executable, "-m", "launcher", "run", *self.job.words, f"name={self.place.name}"]
        with self.place.screen.open("ab") as screen:
            return subprocess.Popen(
                argv,
                env=self.place.env,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _act(self, news: News) -> None:
        """Does the deeds that are due. One that is refused is tried again in the next round."""
        while self.deeds:
            deed = self.deeds[0]
            self.trigger = self.trigger or Trigger(deed.when, self.course)
            if not self.trigger.has_come(news, time.monotonic()):
                return
            try:
                self._do(deed)
            except Refused as error:
                self.refusal = str(error)
                return
            self._note(self.deeds.popleft())
            self.trigger, self.refusal = None, ""
            news = News(files=news.files)  # the next deed waits for what comes after this one

    def _do(self, deed: Deed) -> None:
        if deed.do != KILL_LAUNCHER:
            self.hands.do(deed)
            return
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def _note(self, deed: Deed) -> None:
        step = self.lookout.last_step
        where = self.lookout.last_event if step is None else f"step {step}"
        self.ran.done.append(f"{deed} after {where}")
        self.tell(self.ran.done[-1])

    def _why(self, deed: Deed) -> str:
        if self.refusal and deed is self.deeds[0]:
            return f"refused to the end: {self.refusal}"
        return f"the run ended before it was due ({deed.when or 'at once'})"

    def _stop(self, limit: float) -> None:
        step = self.lookout.last_step
        where = (
            f"last event {self.lookout.last_event}, {'no step' if step is None else f'step {step}'}"
        )
        self.ran.troubles.append(f"not done within {limit:.0f} s: {where}")
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.ran.troubles.append(f"did not stop within {STOP_SECONDS:.0f} s of SIGTERM")
            self.process.kill()
            self.process.wait()
