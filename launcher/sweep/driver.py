"""Has the trials of one cluster run in all its places, and makes anew what is lost meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType

from launcher import coordinator, registry
from launcher.attempts.holding import Holding
from launcher.attempts.supervise import HEAD_LOOK_SECONDS
from launcher.errors import PreemptionBudgetSpent, Refused, SliceLost
from launcher.head_watch import HeadWatch
from launcher.interrupt import Together
from launcher.provisioning.provision import Joined
from launcher.session import Session
from launcher.sweep import layout
from launcher.sweep.desk import Desk, Stopped
from launcher.sweep.place import Place, end_others
from launcher.sweep.spent import Spent
from launcher.sweep.trial_run import Runner
from launcher.words import counted

WAIT_SECONDS = 0.1
LEAVE_SECONDS = 60.0  # beyond the grace, for the threads to end their trials


class Driver:
    """One cluster, which is gone with the block: `run`, as often as there are trials for it."""

    def __init__(self, session: Session, runner: Runner, spent: Spent) -> None:
        self.session = session
        self._runner = runner
        self._desk: Desk = runner.desk
        self._places: list[Place] = []
        self._threads: list[threading.Thread] = []
        self._broken: frozenset[int] = frozenset()
        self._missing: frozenset[int] = frozenset()  # could not be had again
        self._lock = threading.Lock()
        self._headless = self._awaiting = False
        self._joined: Joined | None = None
        self._head_watch: HeadWatch | None = None
        self._spent = spent
        self._repairs = 0  # since the desk's progress was this
        self._progress = -1
        self.cost_usd: float | None = None
        self.closed = False  # whether trials were left that are not to run

    def __enter__(self) -> Driver:
        patience = Together(self.session.interrupt, self._require_need)
        own = replace(
            self.session,
            interrupt=patience,
            apart=True,
            setback=lambda _: self._count_repair(),
        )
        self._holding = Holding(own)
        self._holding.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._leave()
        finally:
            self._spent.hold(0)
            self.cost_usd = self._holding.cost_usd
            self._holding.__exit__(kind, error, trace)

    def run(self) -> None:
        """Until no trial is left that can run, on a cluster that is there from the first use on.

        Raises what ends the sweep before: Interrupted, Refused, Superseded, a fault of ours.
        """
        with contextlib.suppress(NoneLeft):
            if self._joined is None:
                self._open()
            self._watch(self._holding)
        self.closed = self._desk.closed

    def _open(self) -> None:
        before = incarnations_of(self.session.spec.name)
        self._settle(self._awaited(self._holding, partly=True))
        if incarnations_of(self.session.spec.name) != before:
            self._desk.keep_places([])  # what ran is gone with its hosts
        self._begin()

    def _settle(self, joined: Joined) -> None:
        """Places for the hosts that there are; those whose hosts have stayed remain.

        Where hosts of a place are absent, all its slices are to be made anew: what still runs on
        the others of it ends with them.
        """
        parts = layout.parts(self.session.spec, joined.choice.offer.accelerator)
        old = {place.part: place for place in self._places if self._is_whole(place, joined)}
        with self._lock:
            places = [old.get(part) or Place(part, joined, self._lost) for part in parts]
            self._places, self._joined, self._headless = places, joined, False
            halves = [place for place in places if joined.absent & {*place.slices}]
            for place in halves:
                place.usable = False
            self._broken = frozenset(index for place in halves for index in place.slices)
            self._missing = frozenset()
            self._head_watch = HeadWatch(joined.head, HEAD_LOOK_SECONDS)
        self._spent.hold(self._chips_without(joined.absent))
        end_others(places, incarnations_of(self.session.spec.name))
        self._desk.keep_places({place.title for place in places})

    def _is_whole(self, place: Place, joined: Joined) -> bool:
        before = self._joined.hosts if self._joined else {}
        there = place.part.places.values()
        return place.usable and all(joined.hosts.get(p) is before.get(p) for p in there)

    def _begin(self) -> None:
        """A thread for each place of use that has none."""
        served = {thread.name for thread in self._threads if thread.is_alive()}
        incarnations = incarnations_of(self.session.spec.name)
        for place in self._places:
            name = f"{place.title} {id(place)}"
            if place.usable and name not in served:
                arguments = (place, incarnations)
                thread = threading.Thread(target=self._serve, args=arguments, name=name)
                thread.daemon = True  # a place that does not answer holds no process back
                thread.start()
                self._threads.append(thread)
        self.session.folder.event("started", places=len(self._places))

    def _serve(self, place: Place, incarnations: Mapping[str, str]) -> None:
        try:
            place.open(incarnations)
            while task := self._desk.take(place):
                self._runner.run(task[0], place, task[1])
        except SliceLost:
            place.give_up()
        except BaseException as error:
            self._desk.fail(error)

    def _lost(self, slices: frozenset[int]) -> None:
        """Told by a place, in its thread."""
        with self._lock:
            mine = [place for place in self._places if slices & {*place.slices}]
            if not any(not place.usable for place in mine):
                return  # of a place that has been replaced
            for place in mine:
                place.usable = False
            self._broken |= slices
        self._desk.lost(slices)

    def _watch(self, holding: Holding) -> None:
        while not self._desk.done:
            self.session.interrupt.check()
            if self._desk.error:
                break
            self._desk.wait(WAIT_SECONDS)
            self._look_at_head()
            self._heed_budget()
            if self._can_repair() and not self._desk.done:
                self._repair(holding)
        if self._desk.error:
            raise self._desk.error

    def _heed_budget(self) -> None:
        if (reason := self._spent.reason()) and not self._desk.closed:
            self.session.tell("budget", f"{reason}: what runs is stopped, and can go on later")
            self._desk.close(Stopped(reason, again=True))

    def _look_at_head(self) -> None:
        """Without it no place is of use; the slices are, once another has taken its place.

        All begin again as well when one place did not reach a head that answers now.
        """
        if self._joined is None or self._headless:
            return
        if any(place.headless for place in self._places) or not self._hears_head():
            self._headless = True
            for place in self._places:
                place.usable = False
            self._desk.lost(
                frozenset(range(len(self._joined.choice.nodes))), "the Ray head is gone"
            )

    def _hears_head(self) -> bool:
        try:
            if self._head_watch:
                self._head_watch.look()
        except coordinator.HeadLost:
            return False
        return True

    def _can_repair(self) -> bool:
        """Whether something is lost, and nothing runs on it any more."""
        busy = self._desk.busy()
        return not busy if self._headless else bool(self._broken) and not self._broken & busy

    def _repair(self, holding: Holding) -> None:
        """New slices in the place of those that were lost; the others go on meanwhile."""
        self._count_repair()
        with self._lock:
            wanted = self._broken | self._missing
        if wanted:
            self.session.tell("repair", f"{_names(wanted)} made anew; the trials there wait")
            holding.lose(wanted)
            self._spent.hold(self._chips_without(wanted))
        self.session.folder.next()
        try:
            self._settle(self._awaited(holding))
        except NoneLeft:
            return
        except Refused as refused:
            self._go_without(wanted, refused)
        else:
            self._begin()

    def _go_without(self, missing: frozenset[int], refused: Refused) -> None:
        """Slices that cannot be had are asked for again with the next that are lost. Where no place
        is of use without them, all are made anew, wherever they can be had.

        Raises the refusal of all.
        """
        assert self._joined is not None
        count = len(self._joined.choice.nodes)
        if len(missing) in (0, count) or self._headless:
            raise refused
        with self._lock:
            useful = {place.title for place in self._places if place.usable}
            others = self._broken - missing
            self._missing = missing
            self._broken = others if useful or others else frozenset(range(count))
        self._desk.keep_places(useful)
        text = f"{_names(missing)} cannot be had again: {refused}"
        self.session.tell("without", text, slices=sorted(missing))

    def _chips_without(self, slices: frozenset[int]) -> int:
        assert self._joined is not None
        choice = self._joined.choice
        return choice.chips * (len(choice.nodes) - len(slices)) // len(choice.nodes)

    def _awaited(self, holding: Holding, *, partly: bool = False) -> Joined:
        """As `Holding.ready`. Raises NoneLeft, as long as it waits and no longer."""
        self._awaiting = True
        try:
            return holding.ready(partly=partly)
        finally:
            self._awaiting = False

    def _count_repair(self) -> None:
        """Raises PreemptionBudgetSpent where slices are lost again and again, and nothing comes of
        them meanwhile.
        """
        limit, progress = self.session.spec.retry.max_preemptions, self._desk.progress
        self._repairs = 1 if progress > self._progress else self._repairs + 1
        self._progress = progress
        if self._repairs > limit:
            text = f"slices were lost {counted(self._repairs, 'time')} and no trial got further"
            raise PreemptionBudgetSpent(f"{text}, retry.max_preemptions is {limit}")

    def _require_need(self) -> None:
        """While slices are waited for: raises NoneLeft once nothing is to run on them."""
        if self._awaiting:
            self._heed_budget()
            if self._desk.done:
                raise NoneLeft("no trial is left to run", again=True)

    def _leave(self) -> None:
        self._desk.close(Stopped("the sweep ends", again=True))
        end = time.monotonic() + self.session.spec.retry.grace + LEAVE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def _names(slices: Iterable[int]) -> str:
    return ", ".join(f"s{index}" for index in sorted(slices))


def incarnations_of(name: str) -> Mapping[str, str]:
    """Of the hosts that are on record, by node."""
    record = registry.record(name)
    return dict(record["incarnations"]) if record else {}


class NoneLeft(Stopped):
    """What was waited for is needed no more: the other slices have done it all."""
