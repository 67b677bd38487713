"""Where the time of a run goes: every moment belongs to one phase, so that the phases add up.

queue         waiting for capacity
create        from the grant until the slices are READY
boot          from READY until the first host has joined
join          … until all have
dependencies  the code on its way to the hosts
init          from the start of the processes to the first step, or to the first output
productive    steps that count
lost          steps that were made again, since no checkpoint held them
recovery      from the first death, notice or hang to the next attempt: the stop, with the steps
              and the save of its grace, the evidence, the back-off
teardown      deleting what is left
other         the rest
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

PHASES = (
    "queue",
    "create",
    "boot",
    "join",
    "dependencies",
    "init",
    "productive",
    "lost",
    "recovery",
    "teardown",
    "other",
)
MARK_SECONDS = 0.2  # between remembered steps: what is lost is known as exactly as that


class Timeline:
    """A clock that runs for one phase at a time. Not for more than one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase = "other"
        self._since = self.started = clock()
        self._marks: list[tuple[int, float]] = []  # step, productive seconds when it was done
        self._before = 0.0  # productive seconds of earlier attempts
        # Of the attempt before: marks, start, end.
        self._last: tuple[list[tuple[int, float]], float, float] = ([], 0.0, 0.0)

    def continue_from(self, seconds: Mapping[str, float], elapsed: float) -> None:
        """Go on for a supervisor that died: `elapsed` seconds have passed since its beginning, and
        those that it did not live to charge were spent on recovery.
        """
        for phase in PHASES:
            self._seconds[phase] += seconds.get(phase, 0.0)
        self._seconds["recovery"] += max(0.0, elapsed - sum(self._seconds.values()))
        self.started = self._since - sum(self._seconds.values())

    @property
    def phase(self) -> str:
        return self._phase

    def enter(self, phase: str) -> None:
        """Charge the time since the last change to the phase that ends now."""
        now = self._clock()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def begin_attempt(self) -> None:
        """The processes start now. What the last attempt did stays; see `resume`."""
        self.enter("init")
        self._last = (self._marks, self._before, self._seconds["productive"])
        self._marks, self._before = [], self._seconds["productive"]

    def output(self) -> None:
        """A process has written something: one that reports no steps is at work from then on."""
        if self._phase == "init":
            self.enter("productive")

    def step(self, step: int) -> None:
        """A step is done. The first one ends the start-up, whatever was written before.

        One that is done while the attempt is being stopped costs no productive time.
        """
        if not self._marks and self._phase in ("init", "productive"):
            self.enter("init")
            self._move("productive", "init", self._seconds["productive"] - self._before)
            self._before = self._seconds["productive"]
            self.enter("productive")
        running = self._clock() - self._since if self._phase == "productive" else 0.0
        now = self._seconds["productive"] + running
        if not self._marks or now - self._marks[-1][1] >= MARK_SECONDS:
            self._marks.append((step, now))

    def resume(self, step: int | None) -> None:
        """This attempt goes on from that step: what the last one did beyond it was lost.

        None: from the beginning, or from somewhere unknown; then all of it counts as lost.
        """
        marks, start, end = self._last
        kept = [seconds for done, seconds in marks if step is not None and done <= step]
        lost = end - max(kept, default=start)
        self._move("productive", "lost", lost)
        self._before -= lost
        self._marks = [(done, seconds - lost) for done, seconds in self._marks]
        self._last = ([], self._before, self._before)

    def _move(self, source: str, target: str, seconds: float) -> None:
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def seconds(self) -> dict[str, float]:
        """By phase, up to now; `total` is their sum."""
        self.enter(self._phase)
        rounded = {phase: round(self._seconds[phase], 3) for phase in PHASES}
        return {**rounded, "total": round(self._since - self.started, 3)}

    def goodput(self) -> float | None:
        """The productive share of the time."""
        seconds = self.seconds()
        return round(seconds["productive"] / seconds["total"], 4) if seconds["total"] else None
