"""Carries out checks, all at once, each with a deadline: no check can stop another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher.doctor.answers import finding_of
from launcher.doctor.context import CONFIG, MACHINE, PROVIDER, Check, Context
from launcher.doctor.findings import Finding, Outcome, Skip, problem, skipped

DEADLINE_SECONDS = 45.0  # of one check: more than one call, and the start of an emulator
ORDER = (CONFIG, MACHINE, PROVIDER)  # in which a run would meet them


@dataclass(frozen=True, slots=True)
class Examined:
    """One check and what it found."""

    check: Check
    findings: Sequence[Finding]

    @property
    def has_problem(self) -> bool:
        return any(finding.outcome is Outcome.PROBLEM for finding in self.findings)


def examine(
    checks: Sequence[Check], context: Context, deadline: float = DEADLINE_SECONDS
) -> Iterator[Examined]:
    """The results in the order of the checks, each as soon as those before it are known."""
    end = time.monotonic() + deadline
    results: list[queue.SimpleQueue[Sequence[Finding]]] = []
    for check in checks:
        result: queue.SimpleQueue[Sequence[Finding]] = queue.SimpleQueue()
        # A daemon: one that hangs in a library must not keep the process alive.
        threading.Thread(target=_look, args=(check, context, result), daemon=True).start()
        results.append(result)
    for check, result in zip(checks, results, strict=True):
        try:
            findings = result.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            findings = [
                problem(f"no answer within {deadline:g} s", "look again; is there a network?")
            ]
        yield Examined(check, findings)


def _look(check: Check, context: Context, result: queue.SimpleQueue[Sequence[Finding]]) -> None:
    try:
        result.put(list(check.look(context)))
    except Skip as skip:
        result.put([skipped(str(skip))])
    except BaseException as error:  # SystemExit too: whatever it is, the other checks go on
        project = context.cloud.project if context.loaded else ""
        result.put([finding_of(error, project)])


def exit_code(examined: Iterable[Examined]) -> int:
    """0 without a problem; else that of the error which a run would meet first."""
    areas = {each.check.area for each in examined if each.has_problem}
    return next((area.exit_code for area in ORDER if area in areas), 0)
