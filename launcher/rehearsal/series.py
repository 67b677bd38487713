"""All scenarios of a rehearsal in their order; the clean run, by which they are timed, is first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ProvisioningError
from launcher.interrupt import Interrupt
from launcher.rehearsal import place as places
from launcher.rehearsal.conduct import Job, Ran, conduct
from launcher.rehearsal.judge import Finding, Told, course, judge, read
from launcher.rehearsal.scenarios import CLEAN, Expect, Scenario
from launcher.rehearsal.triggers import Course
from launcher.screen import Screen

CLEAN_SECONDS = 3600.0
LEAST_SECONDS = 300.0  # a scenario boots slices anew, and waits for hosts that are silent
TIMES_CLEAN = 6.0
FILE = "rehearsal.json"


@dataclass(slots=True)
class Series:
    """A rehearsal in its folder. `terms` are what else `rehearsal.json` is to hold."""

    folder: Path
    job: Job
    screen: Screen
    interrupt: Interrupt
    tolerance: float = 0.0
    strict: bool = False
    terms: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def run(self, scenarios: Sequence[Scenario]) -> bool:
        """Whether all passed. After a clean run that fails there is nothing to compare with."""
        clean = Scenario(CLEAN, (), Expect((0, 0)), "nothing happens", CLEAN_SECONDS)
        first = self._one(clean, None, Course(None, 0.0, False), CLEAN_SECONDS)
        if first.passed:
            told = read(self.folder / CLEAN)
            limit = max(LEAST_SECONDS, TIMES_CLEAN * first.seconds.get("total", 0.0))
            for scenario in scenarios:
                self._one(scenario, told, course(told), scenario.limit or limit)
        self._write(finished=True)
        return self.passed

    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings)

    def _one(
        self, scenario: Scenario, clean: Told | None, of_clean: Course, limit: float
    ) -> Finding:
        name = scenario.name
        self.screen.wait(f"{name}: {scenario.about}")
        with places.opened(self.folder, name) as place:
            tell = lambda text: self.screen.phase(name, text)  # noqa: E731
            try:
                ran = conduct(self.job, scenario, place, of_clean, limit, self.interrupt, tell)
            except ProvisioningError as error:  # of its emulator: the others have their own
                ran = Ran(troubles=[str(error)])
            told = read(place.folder)
            finding = judge(
                scenario,
                ran,
                told,
                clean or told,
                place.folder,
                tolerance=self.tolerance,
                strict=self.strict and clean is not None,
            )
        self.findings.append(finding)
        self.screen.wait("")
        self.screen.phase(name, in_short(finding))
        self._write(finished=False)
        return finding

    def _write(self, *, finished: bool) -> None:
        content = {
            **self.terms,
            "passed": self.passed and finished and bool(self.findings),
            "finished": finished,
            "tolerance": self.tolerance,
            "strict": self.strict,
            "scenarios": [finding.to_json() for finding in self.findings],
        }
        registry.write_json(self.folder / FILE, content)


def in_short(finding: Finding) -> str:
    if finding.passed is None:
        return finding.warnings[0]
    if not finding.passed:
        return f"FAILED: {finding.failures[0]}"
    return f"passed in {finding.seconds.get('total', 0.0):.1f} s"
