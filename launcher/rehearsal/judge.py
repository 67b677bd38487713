"""What a scenario has shown: from how it ran, and the two run folders, to a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.record import read_lines
from launcher.rehearsal.compare import Comparison, Line, Lost, compare, last_step, lost
from launcher.rehearsal.conduct import Ran
from launcher.rehearsal.scenarios import Range, Scenario
from launcher.rehearsal.triggers import Course


@dataclass(frozen=True, slots=True)
class Told:
    """A run folder, as far as it is needed here; `result` is empty if the run came to none."""

    result: Mapping[str, Any]
    metrics: Sequence[Line]
    events: Sequence[Line]
    saves: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """`passed` is None for a scenario that could not be, `steps_lost` for a program without steps.

    `seconds` are those of `result.json`, `seconds_more` by how many each phase was longer than in
    the clean run.
    """

    scenario: str
    about: str
    passed: bool | None
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    resumed_from: tuple[int | None, ...]
    steps_lost: int | None
    lost_everything: bool
    metrics_equal: bool | None
    metrics: str
    seconds: Mapping[str, float]
    seconds_more: Mapping[str, float]
    charged: Mapping[str, int]
    left: tuple[str, ...]
    done: tuple[str, ...]
    folder: str
    definition: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(folder: Path) -> Told:
    checkpoints = folder / "checkpoints"
    return Told(
        registry.read_json(folder / "result.json") or {},
        read_lines(folder / "metrics.jsonl"),
        read_lines(folder / "events.jsonl"),
        checkpoints.is_dir() and any(checkpoints.iterdir()),
    )


def course(clean: Told) -> Course:
    """What later scenarios are timed by."""
    moments = {str(event["kind"]): float(event["elapsed"]) for event in clean.events}
    seconds = moments.get("verdict", 0.0) - moments.get("started", 0.0)
    return Course(last_step(clean.metrics), max(seconds, 0.0), clean.saves)


def judge(
    scenario: Scenario,
    ran: Ran,
    told: Told,
    clean: Told,
    folder: Path,
    *,
    tolerance: float = 0.0,
    strict: bool = False,
) -> Finding:
    """With `strict`, what is else a warning fails too."""
    compared, gone = compare(clean.metrics, told.metrics, tolerance), lost(told.metrics)
    failures = [] if ran.skipped else list(_failures(scenario, ran, told, compared))
    warnings = list(_warnings(scenario, ran, told, compared, gone))
    if strict:
        failures, warnings = [*failures, *warnings], []
    skipped = bool(ran.skipped) and not failures
    seconds = told.result.get("seconds", {})
    before = clean.result.get("seconds", {})
    return Finding(
        scenario.name,
        scenario.about,
        None if skipped else not failures,
        tuple(failures),
        tuple(warnings),
        tuple(told.result.get("resumed_from", ())),
        None if last_step(told.metrics) is None else gone.steps,
        gone.everything,
        compared.equal,
        compared.text if told.result else "not compared",
        seconds,
        {phase: round(value - before.get(phase, 0.0), 3) for phase, value in seconds.items()},
        {key: told.result[key] for key in ("preemptions", "failures") if key in told.result},
        tuple(ran.left),
        tuple(ran.done),
        str(folder),
        scenario.source,
    )


def _is_excused(scenario: Scenario, ran: Ran) -> bool:
    """Whether something of it may not have happened."""
    return scenario.by_chance and bool(ran.done)


def _missed(ran: Ran) -> Iterator[str]:
    yield from (f"never happened: {deed}" for deed in ran.undone)


def _failures(scenario: Scenario, ran: Ran, told: Told, compared: Comparison) -> Iterator[str]:
    expect = scenario.expect
    yield from ran.troubles
    if not _is_excused(scenario, ran):
        yield from _missed(ran)
    status = told.result.get("status")
    if status is None:
        yield f"came to no result (exit code {ran.exit_code})"
    elif status != expect.status:
        message = str(told.result.get("message", "")).partition("\n")[0]
        yield f"{status}, not {expect.status}: {message}".rstrip(": ")
    elif (status == "succeeded") != (ran.exit_code == 0):
        yield f"exit code {ran.exit_code}, though it {status}"
    for name, allowed in (("preemptions", expect.preemptions), ("failures", expect.failures)):
        charged = told.result.get(name)
        if charged is not None and not allowed[0] <= charged <= allowed[1]:
            yield f"charged to {name}: {charged}, not {in_words(allowed)}"
    if compared.equal is False and expect.status == "succeeded":
        yield f"other metrics than the clean run: {compared.text}"
    if ran.left:
        yield f"left behind: {', '.join(ran.left)}"


def _warnings(
    scenario: Scenario, ran: Ran, told: Told, compared: Comparison, gone: Lost
) -> Iterator[str]:
    if ran.skipped:
        yield f"skipped: {ran.skipped}"
        return
    if _is_excused(scenario, ran):
        yield from _missed(ran)
    if compared.equal is None:
        yield compared.text
    if gone.everything:
        yield f"all steps were lost once: {'' if told.saves else 'nothing was saved, '}begun anew"


def in_words(allowed: Range) -> str:
    least, most = allowed
    return str(least) if least == most else f"{least} to {most}"
