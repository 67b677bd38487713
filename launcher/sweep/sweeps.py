"""A sweep from what is to be tried to the table, one cluster after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from launcher import ending, extras, invocation, registry
from launcher.attempts.packed import Snapshot
from launcher.attempts.result import STATUS
from launcher.errors import ConfigError, Interrupted, LauncherError, Problem, Superseded
from launcher.interrupt import Interrupt, interruptible
from launcher.provisioning import on_record
from launcher.session import Session
from launcher.source import Manifest
from launcher.spec import Spec
from launcher.sweep import layout, scores, table, trials
from launcher.sweep.board import Board, SweepScreen
from launcher.sweep.desk import Desk
from launcher.sweep.driver import Driver
from launcher.sweep.entries import OUTCOMES, Entry, Status, restored
from launcher.sweep.protocol import Past, Search, Suggestion
from launcher.sweep.scores import Goal
from launcher.sweep.spent import Spent
from launcher.sweep.trial_run import Runner
from launcher.sweep.trials import Group, Trial
from launcher.verbs.loading import scan
from launcher.words import counted

HERE = "here"
Make = Callable[[Suggestion], Entry]


def check(groups: Sequence[Group], here: Sequence[str] = ()) -> None:
    """What can be known to be wrong before anything is provisioned. Raises ConfigError, and
    ClusterError for packages that emulated hosts lack, or that are needed `here`.
    """
    extras.require(*(group.spec for group in groups), here=here)
    for group in groups:
        spec, sweep = group.spec, group.spec.sweep
        for offer in spec.cluster.offers:
            layout.parts(spec, offer.accelerator)
        if spec.cluster.coordinator != HERE:
            hint = "hydra/launcher=basic makes each trial a run of its own"
            message = f"the trials of a sweep share a cluster with coordinator={HERE}"
            raise ConfigError([Problem(message, "cluster.coordinator", hint=hint)])
        if len(spec.mode.sizes) > 1:
            message = "the places of a sweep are those of a fixed number of slices"
            raise ConfigError([Problem(message, "mode.slices")])
        if sweep.metric and not sweep.mode and not scores.mode_of(sweep.metric):
            message = f"is a small or a large {sweep.metric} good?"
            raise ConfigError([Problem(message, "sweep.mode", hint="sweep.mode=min, or max")])
        if spec.keep and len(groups) > 1:
            message = "trials that differ in their cluster leave none up"
            raise ConfigError([Problem(message, "keep")])


def own(trial: Trial, sweep: str) -> Trial:
    """The trial as one of a sweep: with a name, and a folder for checkpoints, of its own."""
    workload = trial.spec.workload
    assert workload is not None
    if workload.checkpoint_dir is not None:
        folder = f"{workload.checkpoint_dir.rstrip('/')}/{sweep}/{trial.id}"
        workload = replace(workload, checkpoint_dir=folder)
    return replace(trial, spec=replace(trial.spec, name=f"{sweep}-{trial.id}", workload=workload))


def in_order(name: str, groups: Sequence[Group]) -> list[Group]:
    """First the one whose slices an earlier invocation has left up."""
    record = registry.record(name) or {}

    def is_up(group: Group) -> bool:
        return any(
            record.get("offer") == on_record.offer_of(choice)
            and record["nodes"] == list(choice.node_names)
            for choice in group.plan.choices
        )

    return sorted(groups, key=lambda group: not is_up(group))


@dataclass
class Sweep:
    """One sweep: its trials, all that is known of them, and where that is shown.

    `remake` gives the trial of other values; only a searcher that changes trials needs it.
    """

    name: str
    spec: Spec  # of any trial, for what all have in common
    folder: Path
    screen: SweepScreen = field(default_factory=SweepScreen)
    cost_usd: float | None = 0.0
    remake: Callable[[Mapping[str, str]], Trial] | None = None

    def __post_init__(self) -> None:
        self.board = Board(self.spec.sweep, self.folder, self.screen)
        self.over = False  # the budget is used up, or `fail_fast` has ended it
        self.begun = False  # it has had its folder to itself
        self._spent = Spent(self.spec.sweep)
        self._stack = contextlib.ExitStack()  # of the cluster that there is
        self._asked: str | None = None  # for which this was asked
        self._interrupt: Interrupt | None = None  # of the cluster that there is, or was last
        self._open: tuple[Driver, Desk]
        self._manifests: dict[Any, Manifest] = {}
        self._snapshots: dict[Manifest, Snapshot] = {}
        self._lock = threading.Lock()  # around both

    def require_own_folder(self) -> None:
        """Raises ConfigError where a single run has its folder."""
        if (self.folder / "logs").exists():
            hint = "choose another name for the sweep"
            message = f"{self.folder} is the folder of a run"
            raise ConfigError([Problem(message, "sweep.name", hint=hint)])

    def restored(self, trials: Sequence[Trial]) -> list[Entry]:
        """What an earlier invocation has left of them."""
        retry = self.spec.sweep.retry_failed
        numbered = enumerate(trials, len(self.board.entries))
        entries = [restored(t, n, self.folder, retry_failed=retry) for n, t in numbered]
        self.board.add(entries)
        return entries

    def code(self, trial: Trial) -> Snapshot:
        """What travels for a trial, as it was when it was first asked for; by any thread.

        Raises ConfigError if its script is not among it, or its files change while they are read.
        """
        with self._lock:
            manifest = self._manifest(trial)
            if manifest not in self._snapshots:
                self._snapshots[manifest] = Snapshot(manifest)
            return self._snapshots[manifest]

    def _manifest(self, trial: Trial) -> Manifest:
        workload = trial.spec.workload
        assert workload is not None
        target = workload.target if workload.kind == "script" else ()
        key = (workload.working_dir, workload.include, workload.exclude, target)
        if key not in self._manifests:
            self._manifests[key] = scan(trial.spec)
        return self._manifests[key]

    def remade(self, entry: Entry, suggested: Mapping[str, str]) -> None:
        """From now on the trial has these values. Raises ConfigError."""
        assert self.remake is not None  # a searcher that changes trials comes with it
        entry.trial = replace(self.remake(suggested), id=entry.trial.id)
        entry.suggested = dict(suggested)

    # --- one cluster ----------------------------------------------------------------------------

    def run(self, group: Group, entries: Sequence[Entry], search: Search, make: Make) -> None:
        """The trials of a group; `entries` are those that an earlier invocation knew. Their cluster
        stays for the next group that can share it, and goes with any other, or with the sweep.

        Raises what ends the sweep before its trials have ended.
        """
        asked = trials.asks_for(group.spec, invocation.asker)
        if asked != self._asked:
            self._let_go()
            self._stack.enter_context(self._cluster(group, search, make))
            self._asked = asked
        driver, desk = self._open
        self._introduce(driver.session, entries)
        desk.go_on(search, make)
        desk.restore([e for e in entries if e.begun], history(entries))
        self._drive(driver)

    def _let_go(self) -> None:
        """Of the cluster there is; raises Interrupted if the user wanted to stop meanwhile, which
        ends no deletion.
        """
        self._stack.close()
        if self._interrupt:
            self._interrupt.check()

    @contextlib.contextmanager
    def _cluster(self, group: Group, search: Search, make: Make) -> Iterator[None]:
        settings = group.spec.sweep
        with invocation.session(group.spec, group.plan, self.screen) as session:
            self.begun = True
            self._interrupt = session.interrupt
            session.folder.begin()
            invocation.announce(session)
            desk = Desk(
                search,
                make,
                self.board,
                max_concurrent=settings.max_concurrent,
                fail_fast=settings.fail_fast,
            )
            driver = Driver(session, Runner(session, desk, self.code, self.remade), self._spent)
            try:
                with driver:
                    self._open = driver, desk
                    yield
            finally:
                self._asked = None
                both = self.cost_usd is not None and driver.cost_usd is not None
                self.cost_usd = (self.cost_usd or 0) + (driver.cost_usd or 0) if both else None

    def _introduce(self, session: Session, entries: Sequence[Entry]) -> None:
        self.board.save()
        session.tell("trials", f"{self.board.counts()}; {session.folder.shown}")
        if text := self._other_code(entries):
            session.tell("code", text)

    def pass_over(self, entries: Sequence[Entry]) -> None:
        """All have ended: nothing is made for them, and no folder is written to."""
        if text := self._other_code(entries):
            self.screen.phase("code", text)

    def _other_code(self, entries: Sequence[Entry]) -> str:
        """What there is to say about the code of trials that have ended, if anything."""
        ended = [entry for entry in entries if entry.ended and entry.code]
        other = sum(entry.code != self.code(entry.trial).digest() for entry in ended)
        text = f"other code than there is now has run in {counted(other, 'trial')}"
        hint = "another sweep.name begins anew"
        return f"{text}, and is not run again: {hint}" if other else ""

    def _drive(self, driver: Driver) -> None:
        self.screen.attach(self.board)
        try:
            driver.run()
        finally:
            self.over = driver.closed
            self.screen.detach()
            self.board.save()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
            if kind is None and not self.begun:
                self._remove_left()
        finally:
            for snapshot in self._snapshots.values():
                snapshot.close()

    def _remove_left(self) -> None:
        """Of a launcher that was killed once all trials had ended: no cluster of this one does.

        Raises ConfigError if it is still there.
        """
        with registry.lock(f"run-{self.name}", invocation.going_on(self.name)):
            left = registry.record(self.name)
            if left and not left["stays"] and left["folder"] == str(self.folder):
                with interruptible() as pause:
                    ending.remove(self.name, left, self._released, pause)

    def _released(self, text: str) -> None:
        self.screen.phase("released", text)

    # --- the end --------------------------------------------------------------------------------

    def summary(self, error: LauncherError | None) -> Mapping[str, Any]:
        """What `result.json` of a sweep holds."""
        entries, rows = self.board.entries, self.board.rows()
        counts = {status: sum(e.status is status for e in entries) for status in Status}
        goal = self.board.goal
        found, (made, saved) = table.best(rows, goal), table.steps(rows)
        failed = next((entry for entry in entries if entry.status is Status.FAILED), None)
        code = error.exit_code if error else failed.exit_code if failed else 0
        status = STATUS.get(type(error), "error") if error else None
        return {
            "name": self.name,
            "status": status or ("failed" if failed else "succeeded"),
            "exit_code": code,
            "message": str(error) if error else "",
            "trials": counts,
            "metric": goal.metric if goal else None,
            "best": found["trial"] if found else None,
            "steps": made,
            "steps_saved": saved,
            "cost_usd": self.cost_usd,
        }

    def tell(self, status: str) -> None:
        """The table, the best first; and how the sweep has ended."""
        rows, goal = self.board.rows(), self.board.goal
        print(table.text(rows, goal), flush=True)
        words = [self.board.counts(), table.told_steps(rows), str(self.folder)]
        topic = "done" if status == "succeeded" else status
        self.screen.phase(topic, "; ".join(filter(None, words)))


@dataclass(frozen=True, slots=True)
class Ended:
    """In the order of the points, of which several may be one trial."""

    entries: Sequence[Entry]
    goal: Goal | None

    @property
    def values(self) -> list[float | None]:
        """For a sweeper of Hydra's: the metric; 0 where nothing is compared, None if it failed."""
        return [None if entry.exit_code else self._value(entry) for entry in self.entries]

    def _value(self, entry: Entry) -> float | None:
        return entry.values.get(self.goal.metric) if self.goal else 0.0

    @property
    def best(self) -> float | None:
        """The best value of the metric."""
        goal = self.goal
        return min(self.values, key=goal.key, default=None) if goal else None


def history(entries: Sequence[Entry]) -> list[Past]:
    """Of trials that have ended or go on: a searcher is not to draw them again."""
    return [
        Past(e.trial.id, e.suggested, tuple(e.reports), OUTCOMES.get(e.status))
        for e in entries
        if e.begun
    ]


@contextlib.contextmanager
def concluded(sweep: Sweep) -> Iterator[None]:
    """Whatever happens, the folder says how the sweep ended, and the screen shows the table.

    It is not touched where another launcher has it: that one held it first, or has taken it over.
    """
    error: LauncherError | None = None
    try:
        with sweep:
            yield
    except LauncherError as raised:
        error = raised
        raise
    except KeyboardInterrupt:  # while nothing heeds signals: there is no cluster
        error = Interrupted("stopped by SIGINT")
        raise
    except BaseException as raised:
        error = LauncherError(f"a fault of launcher: {raised!r}; please report it")
        raise
    finally:
        wrong = isinstance(error, ConfigError) and not sweep.begun
        if sweep.folder.is_dir() and not wrong and not isinstance(error, Superseded):
            sweep.board.save()
            result = sweep.summary(error)
            sweep.tell(result["status"])
            registry.write_json(sweep.folder / "result.json", result)
