"""One trial in one place, to its end or until it waits again: an attempt of a run's own kind."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher import coordinator, registry
from launcher.attempts import supervise
from launcher.attempts.account import FILE as ACCOUNT
from launcher.attempts.account import Account, open_account
from launcher.attempts.packed import Code
from launcher.attempts.result import summarise
from launcher.errors import ConfigError, Interrupted, LauncherError, Superseded
from launcher.hosts.member import Member
from launcher.interrupt import Together
from launcher.invocation import run_folder
from launcher.judging.outcome import Outcome
from launcher.judging.verdict import Verdict
from launcher.plan import Plan
from launcher.screen import Screen
from launcher.session import Session
from launcher.sweep import checkpoints
from launcher.sweep.desk import Desk, Stop, Stopped
from launcher.sweep.entries import ATTEMPT, STANDING, Entry, Status, plain
from launcher.sweep.place import TAKES_PLACE, Hold, Place
from launcher.sweep.protocol import Exploit
from launcher.sweep.trials import Trial


@dataclass(frozen=True, slots=True)
class InFile:
    """What runs of a trial, in its folder, with the place where it does."""

    path: Path
    place: str

    @property
    def left_behind(self) -> bool:
        return True  # the account of a trial is there as long as it has not ended

    def read(self) -> Mapping[str, Any] | None:
        found = registry.read_json(self.path)
        return found if found and found["place"] == self.place else None

    def write(self, attempt: Mapping[str, Any] | None) -> None:
        if attempt is None:
            self.path.unlink(missing_ok=True)
        else:
            registry.write_json(self.path, {**attempt, "place": self.place})


class TrialScreen(Screen):
    """Shows nothing itself: the sweep's table does. Hands metrics on."""

    def __init__(self, metrics: Callable[[Mapping[str, Any]], None]) -> None:
        self._metrics = metrics

    def phase(self, topic: str, text: str) -> None: ...

    def wait(self, text: str) -> None: ...

    def output(self, member: Member, chunk: bytes) -> None: ...

    def finish(self) -> None: ...

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._metrics(values)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs trials of one sweep; `session` is that of the sweep."""

    session: Session
    desk: Desk
    code: Callable[[Trial], Code]
    remade: Callable[[Entry, Mapping[str, str]], None]

    def run(self, entry: Entry, place: Place, stop: Stop) -> None:
        """To its end, or until it waits again; the desk is told. Raises what ends the sweep."""
        status, later = Status.WAITING, 0.0
        try:
            with self._opened(entry, place, stop) as session:
                status, later = self._attempt(session, entry, place)
        finally:
            self.desk.left(entry, status, later)

    @contextlib.contextmanager
    def _opened(self, entry: Entry, place: Place, stop: Stop) -> Iterator[Session]:
        spec, shared = entry.trial.spec, self.session
        path = shared.folder.path / entry.trial.id
        if (path / "result.json").exists():  # it is retried: what it has spent counts no more
            (path / ACCOUNT).unlink(missing_ok=True)
        with run_folder(path) as folder:
            folder.begin()
            folder.write(STANDING, _standing(entry))
            folder.write_text("spec.yaml", yaml.safe_dump(dict(spec.config), sort_keys=False))
            yield Session(
                spec,
                Plan(spec.name, (place.joined(spec).choice,)),
                shared.owner,
                folder,
                TrialScreen(lambda values: self.desk.reported(entry, values)),
                Together(shared.interrupt, stop.check),
                shared.provider,
                InFile(path / ATTEMPT, place.title),
                shared.setback,
            )

    def _attempt(self, session: Session, entry: Entry, place: Place) -> tuple[Status, float]:
        account, code = open_account(session), self.code(entry.trial)
        entry.message = ""
        session.tell(
            "trial", f"on {place.title}", place=place.title, overrides=entry.trial.overrides
        )
        ended: Verdict | LauncherError
        hold = Hold(place, session.spec)
        try:
            settle(session, entry)
            found = left_alone(session, entry, hold)
            if found:
                entry.ran += max(0.0, found["until"] - entry.known_at)
            if found and found["over"]:
                self.desk.over(entry)
            else:
                entry.code = code.digest()
            session.folder.write(STANDING, _standing(entry))
            ended = supervise.one_attempt(session, code, account, hold, keep_ended=True)
        except (ConfigError, Superseded):
            raise  # no trial's own: what it runs cannot be put on record, or is another launcher's
        except Interrupted as error:
            session.under_way.write(None)
            entry.attempts, entry.message = account.attempts, str(error)
            _keep(session, entry, account)
            raise
        except LauncherError as error:
            ended = error if coordinator.answers(hold.head) else place.stranded()
        except Exception as error:
            traceback.print_exc()
            ended = LauncherError(f"a fault of launcher: {error!r}; please report it")
        entry.attempts = account.attempts
        if isinstance(ended, Verdict) and ended.outcome is Outcome.HEAD_LOST:
            ended = place.stranded()
        if isinstance(ended, Stopped) and ended.exploit:
            ended = self._exploited(session, entry, ended.exploit)
        return conclude(session, entry, account, ended)

    def _exploited(self, session: Session, entry: Entry, exploit: Exploit) -> LauncherError:
        """The trial, whose processes have ended, gets the checkpoints and values of another."""
        source = self.desk.entries[exploit.source_trial]
        theirs = self.session.folder.path / source.trial.id / "checkpoints"
        if named := source.trial.spec.workload and source.trial.spec.workload.checkpoint_dir:
            theirs = Path(named)
        own = Path(supervise.checkpoint_dir(session) or "")
        try:
            if not checkpoints.fetch(theirs, own):
                return Stopped(f"{source.trial.id} has no checkpoint yet", again=True)
            self.remade(entry, exploit.overrides)
            session.under_way.write(None)
            entry.taken = True
            session.folder.write(STANDING, _standing(entry))
            settle(session, entry)
        except LauncherError as error:
            checkpoints.settle(own, taken=False)
            return error
        entry.go_back(source)
        return Stopped(f"goes on from {source.trial.id}", again=True)


def settle(session: Session, entry: Entry) -> None:
    """Have the trial's checkpoints be those that its folder says. Raises ClusterError."""
    own = supervise.checkpoint_dir(session) or ""
    if own and "://" not in own:
        checkpoints.settle(Path(own), taken=entry.taken)
    entry.taken = False


def left_alone(session: Session, entry: Entry, hold: Hold) -> Mapping[str, Any] | None:
    """The attempt that went on, or came to its end, after the launcher of before was killed."""
    attempt = session.under_way.read() if entry.known_at else None
    return supervise.alive_on(session, hold.ready(), attempt) if attempt else None


def conclude(
    session: Session, entry: Entry, account: Account, ended: Verdict | LauncherError
) -> tuple[Status, float]:
    """What becomes of a trial, and when it may go on; its folder says so too."""
    if isinstance(ended, Stopped):
        return _stopped(session, entry, account, ended)
    if isinstance(ended, Verdict):
        if account.stop is None:
            return _again(session, entry, account, ended)
        error = supervise.failure_of(ended, account)
        return _final(session, entry, account, ended, error)
    return _final(session, entry, account, None, ended)


def _again(
    session: Session, entry: Entry, account: Account, ended: Verdict
) -> tuple[Status, float]:
    """It waits for a place; longer each time without progress, unless its place was taken away."""
    longer = min(2 ** (account.budget.fruitless - 1), 60)
    seconds = 0.0 if ended.repair in TAKES_PLACE else longer * session.spec.retry.backoff
    entry.message = ended.summary
    session.folder.event("again", text=ended.summary, seconds=seconds)
    _keep(session, entry, account)
    return Status.WAITING, time.monotonic() + seconds


def _stopped(
    session: Session, entry: Entry, account: Account, stopped: Stopped
) -> tuple[Status, float]:
    entry.message = str(stopped)
    session.under_way.write(None)
    account.save(session)
    if stopped.again:
        session.folder.event("again", text=str(stopped))
        _keep(session, entry, account)
        return Status.WAITING, 0.0
    result = summarise(session, account, cost(session, entry), None, None)
    result |= {"status": Status.STOPPED}
    return _written(session, entry, result | {"message": str(stopped)}, Status.STOPPED)


def _final(
    session: Session,
    entry: Entry,
    account: Account,
    ended: Verdict | None,
    error: LauncherError | None,
) -> tuple[Status, float]:
    session.under_way.write(None)
    result = summarise(session, account, cost(session, entry), ended, error)
    entry.exit_code, entry.message = result["exit_code"], result["message"]
    return _written(session, entry, result, Status.FAILED if error else Status.SUCCEEDED)


def cost(session: Session, entry: Entry) -> float | None:
    """Of the part of the cluster that the trial had, for as long as it ran."""
    price = session.plan.first.cost_per_hour_usd
    return None if price is None else price * entry.seconds / 3600


def _written(
    session: Session, entry: Entry, result: Mapping[str, Any], status: Status
) -> tuple[Status, float]:
    session.folder.write("result.json", {**result, **_standing(entry)})
    (session.folder.path / STANDING).unlink(missing_ok=True)
    session.folder.event("done", text=status.value)
    return status, 0.0


def keep_failed(entry: Entry, folder: Path) -> None:
    """One that has failed before it could begin, in the folder of the sweep."""
    name = f"{folder.name}-{entry.trial.id}"
    own = {"name": name, "status": Status.FAILED, "exit_code": entry.exit_code}
    result = {**own, "message": entry.message, **_standing(entry)}
    registry.write_json(folder / entry.trial.id / "result.json", result)


def _keep(session: Session, entry: Entry, account: Account) -> None:
    account.save(session)
    session.folder.write(STANDING, _standing(entry))


def _standing(entry: Entry) -> dict[str, Any]:
    metrics = {key: plain(value) for key, value in entry.values.items()}
    return {
        "number": entry.number,
        "origin": dict(entry.origin),
        "suggested": dict(entry.suggested),
        "params": dict(entry.trial.params),
        "place": entry.place,
        "ran": round(entry.seconds, 3),
        "metrics": metrics,
        "iterations": entry.iterations,
        "attempts": entry.attempts,
        "code": entry.code,
        "taken": entry.taken,
    }
