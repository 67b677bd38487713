"""Passes a gang's events on to the screen, the run folder and the account of the run."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

from launcher.attempts.account import Account
from launcher.hosts.member import Ending, Member
from launcher.judging.evidence import Hang, Notice
from launcher.record import read_lines
from launcher.session import Session

STEP_EVENT_SECONDS = 1.0  # every step is in metrics.jsonl; events tell where the run stands


class Feed:
    """The sink of one attempt."""

    def __init__(self, session: Session, account: Account) -> None:
        self.session = session
        self.account = account
        self.awaits_origin = account.resumed_from[-1:] == [None]
        self.failed = False
        self.told = -math.inf  # when the last step was made an event

    def output(self, member: Member, chunk: bytes) -> None:
        self.session.timeline.output()
        self.session.folder.output(member, chunk)
        self.session.screen.output(member, chunk)

    def metrics(self, member: Member, line: str) -> None:
        value = self.session.folder.metrics(member, line) or {}
        self.session.screen.metrics(value)
        self._understand(value)

    def catch_up(self) -> None:
        """Learn what this attempt has told a supervisor that died, perhaps before it was noted."""
        for value in read_lines(self.session.folder.path / "metrics.jsonl"):
            if value["attempt"] == self.session.folder.attempt:
                self._understand(value)

    def _understand(self, value: Mapping[str, Any]) -> None:
        restored, step = value.get("restored_step"), value.get("step")
        if type(restored) is int:
            self._originate(restored)
        if type(step) is int:
            self._originate(step - 1)  # of a program that does not tell what it restored
            self._step(step)

    def _originate(self, step: int) -> None:
        if not self.awaits_origin:
            return
        self.awaits_origin = False
        self.account.resumed_from[-1] = max(step, 0)
        if step > 0:  # it may have been reached, and saved, while nobody listened
            self.account.final_step = max(step, self.account.final_step or 0)
        self.session.timeline.resume(step)
        where = f"from step {step}" if step > 0 else "from the beginning: nothing was saved"
        self.session.tell("resumed", where, step=max(step, 0))
        self.account.save(self.session)

    def _step(self, step: int) -> None:
        account = self.account
        if account.step is None or step > account.step:
            account.step = account.final_step = step
            self.session.timeline.step(step)
        if time.monotonic() - self.told > STEP_EVENT_SECONDS:
            self.told = time.monotonic()
            self.session.folder.event("step", step=step)

    def ended(self, ending: Ending) -> None:
        failed = ending.code != 0
        if failed:
            self.session.timeline.enter("recovery")
        if failed and not self.failed and not ending.collateral:
            self.session.screen.phase("died", f"{ending.member}: {ending.reason}{self._others()}")
        self.failed = self.failed or failed
        self.session.folder.event("died" if failed else "ended", **in_event(ending))

    def _others(self) -> str:
        if len(self.session.plan.first.processes) == 1:
            return ""
        return f"; the others have up to {self.session.spec.retry.grace:g} s to save"

    def noticed(self, notice: Notice) -> None:
        self.session.timeline.enter("recovery")
        slice_, host = notice.place
        text = f"s{slice_} h{host} will go: {notice.told.value} {notice.word}".rstrip()
        self.session.tell("notice", text, told=notice.told, word=notice.word)

    def hung(self, hang: Hang) -> None:
        self.session.timeline.enter("recovery")
        text = f"no output and no metrics for {time.time() - hang.since:.0f} s"
        self.session.tell("hang", text, since=hang.since, step=hang.step)


def in_event(ending: Ending) -> dict[str, Any]:
    """An ending without its last lines, which the log has."""
    fields = dataclasses.asdict(ending) | {"member": str(ending.member)}
    del fields["tail"]
    return fields
