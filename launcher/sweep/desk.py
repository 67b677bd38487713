"""Which trial runs next, and where each of them stands; asked by the threads of all places."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from launcher.errors import LauncherError
from launcher.sweep.entries import OUTCOMES, Entry, Status
from launcher.sweep.protocol import Decision, Exploit, Past, Search, Suggestion, Verb

LOOK_SECONDS = 0.5  # between questions to a searcher that had nothing


class Stopped(LauncherError):
    """A trial is to end now; `again` is whether it goes on later."""

    def __init__(self, reason: str, *, again: bool, exploit: Exploit | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.exploit = exploit  # with what it is to go on


@dataclass(slots=True)
class Stop:
    """Where a trial looks whether it may go on."""

    ordered: Stopped | None = None

    def order(self, stopped: Stopped) -> None:
        self.ordered = self.ordered or stopped

    def check(self) -> None:
        if self.ordered:
            raise self.ordered


class Spot(Protocol):
    """A place, as far as the desk knows it."""

    @property
    def title(self) -> str: ...

    @property
    def slices(self) -> tuple[int, ...]: ...

    @property
    def usable(self) -> bool: ...


class Listener(Protocol):
    """Is told of every change, by the thread that made it."""

    def changed(self, entry: Entry) -> None: ...


@dataclass(slots=True)
class _Running:
    entry: Entry
    spot: Spot
    stop: Stop
    over: bool = False  # its program has ended by itself


def _is_as_it_was(running: _Running) -> bool:
    """Whether a trial that was to go on from another has ended before, or found nothing there."""
    ordered = running.stop.ordered
    exploit = ordered.exploit if ordered else None
    return exploit is not None and running.entry.suggested != exploit.overrides


@dataclass
class Desk:
    """`make` is what makes an entry of a suggestion. Every method takes the lock by itself."""

    search: Search
    make: Callable[[Suggestion], Entry]
    listener: Listener
    max_concurrent: int | None = None
    fail_fast: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._running: dict[str, _Running] = {}
        self._waiting: list[Entry] = []
        self._closed: Stopped | None = None
        self.error: BaseException | None = None
        self.progress = 0  # grows with every line of metrics that is new, and every end

    def go_on(self, search: Search, make: Callable[[Suggestion], Entry]) -> None:
        """The places wait for more: these trials are the next, those of before have ended."""
        with self._changed:
            self.search, self.make = search, make

    def restore(self, entries: Iterable[Entry], history: Sequence[Past]) -> None:
        """Trials of earlier invocations: those that have not ended go on first."""
        with self._changed:
            self.search.restore(history)
            for entry in entries:
                self.entries[entry.trial.id] = entry
                if not entry.ended:
                    self._waiting.append(entry)
            self._changed.notify_all()

    # --- for the places -------------------------------------------------------------------------

    def take(self, spot: Spot) -> tuple[Entry, Stop] | None:
        """The next trial for this place, waited for; None when nothing begins there any more."""
        with self._changed:
            while spot.usable and not self._closed:
                if self._may_begin() and (entry := self._next(spot)):
                    stop = Stop()
                    self._running[entry.trial.id] = _Running(entry, spot, stop)
                    entry.begin(spot.title)
                    self.listener.changed(entry)
                    return entry, stop
                self._changed.wait(LOOK_SECONDS)
        return None

    def _may_begin(self) -> bool:
        return self.max_concurrent is None or len(self._running) < self.max_concurrent

    def _is_done(self) -> bool:
        return not self._running and not self._waiting and self.search.exhausted

    def _next(self, spot: Spot) -> Entry | None:
        """Its own, then one that waits again, then what the searcher has to offer."""
        now = time.monotonic()
        ready = [entry for entry in self._waiting if entry.not_before <= now]
        mine = [entry for entry in ready if entry.wanted == spot.title]
        for entry in mine or [entry for entry in ready if not entry.wanted]:
            self._waiting.remove(entry)
            return entry
        while not self._closed and (suggestion := self.search.next()):
            if suggestion.trial_id in self.entries:
                continue  # of an earlier invocation: it has ended, or waits
            entry = self.make(suggestion)
            self.entries[suggestion.trial_id] = entry
            if not entry.ended:
                return entry
            self._end(entry)
        return None

    def reported(self, entry: Entry, values: Mapping[str, Any]) -> None:
        """A metrics line of a trial that runs; what the searcher decides is done.

        The last lines of one that has been told to stop are no matter of the searcher's.
        """
        with self._changed:
            running = self._running.get(entry.trial.id)
            if running is None or running.stop.ordered:
                return
            if not (report := entry.take(values)):
                return
            self.progress += 1
            decision = self.search.report(entry.trial.id, report.step, report.metrics)
            if not running.over:
                self._decide(running, decision)
            elif isinstance(decision, Exploit):
                self.search.kept(entry.trial.id)
            self.listener.changed(entry)

    def over(self, entry: Entry) -> None:
        """Its program ended while nobody watched: what it has told is heard now, and is too late to
        stop it.
        """
        with self._changed:
            self._running[entry.trial.id].over = True

    def _decide(self, running: _Running, decision: Decision) -> None:
        if isinstance(decision, Exploit):
            text = f"goes on from {decision.source_trial}"
            running.stop.order(Stopped(text, again=True, exploit=decision))
        elif decision is Verb.STOP:
            running.stop.order(Stopped(f"stopped early, at step {running.entry.step}", again=False))

    def left(self, entry: Entry, status: Status, not_before: float = 0.0) -> None:
        """A trial has ended, or waits again from then on."""
        with self._changed:
            running = self._running.pop(entry.trial.id, None)
            entry.leave(status)
            if running and _is_as_it_was(running):
                self.search.kept(entry.trial.id)
            if entry.ended:
                self._end(entry)
            else:
                entry.not_before = not_before
                self._waiting.insert(0, entry)
                self.listener.changed(entry)
            self._changed.notify_all()

    def _end(self, entry: Entry) -> None:
        self.progress += 1
        self.search.ended(entry.trial.id, entry.values or None, OUTCOMES[entry.status])
        self.listener.changed(entry)
        if entry.status is Status.FAILED and self.fail_fast:
            self.close(Stopped(f"{entry.trial.id} has failed (sweep.fail_fast)", again=True))

    def fail(self, error: BaseException) -> None:
        """Something that is no trial's own went wrong: the sweep ends."""
        with self._changed:
            self.error = self.error or error
            self.close(Stopped("the sweep ends", again=True))

    # --- for the driver -------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Until something has changed, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    @property
    def done(self) -> bool:
        """Whether nothing runs, and nothing is to run any more."""
        with self._changed:
            if self._closed:
                return not self._running
            return self._is_done()

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def close(self, stopped: Stopped) -> None:
        """Nothing begins any more, and what runs is stopped."""
        with self._changed:
            self._closed = self._closed or stopped
            for running in self._running.values():
                running.stop.order(stopped)
            self._changed.notify_all()

    def lost(self, slices: frozenset[int], reason: str = "its slice is lost") -> None:
        """What runs on them goes on elsewhere, or there once they have been replaced."""
        with self._changed:
            for running in self._running.values():
                if slices & {*running.spot.slices}:
                    running.stop.order(Stopped(reason, again=True))
            self._changed.notify_all()

    def busy(self) -> frozenset[int]:
        """Slices on which trials run."""
        with self._changed:
            return frozenset(s for running in self._running.values() for s in running.spot.slices)

    def keep_places(self, titles: Collection[str]) -> None:
        """No processes run anywhere else: trials that waited for them may go to any place."""
        with self._changed:
            for entry in self._waiting:
                if entry.wanted not in titles:
                    entry.wanted = ""
            self._changed.notify_all()
