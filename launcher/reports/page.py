"""What became of a run, and where its time went: one page from the run folder alone.

`read` gathers the facts, `text` tells them to a terminal; `launcher.reports.html` draws the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.attempts.timeline import PHASES
from launcher.record import read_lines
from launcher.words import counted

BAR = 40  # characters
BUDGETS = ("preemption", "failure")
Point = tuple[float, int]  # seconds since the run began, step


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: its judgement, and where the logs of its processes are.

    `points` are the steps that were told, `outcome` is empty for one that goes on.
    """

    number: int
    outcome: str
    summary: str
    cause: str
    budget: str
    first_step: int | None
    last_step: int | None
    logs: Path
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """`seconds` are by phase, in the order of the timeline, without those that took no time."""

    name: str
    folder: Path
    status: str
    message: str
    facts: Mapping[str, str]
    seconds: Mapping[str, float]
    attempts: tuple[Attempt, ...]


def read(folder: Path) -> Page:
    """Everything is taken from files; a run that goes on has less of them."""
    result = registry.read_json(folder / "result.json") or {}
    account = registry.read_json(folder / "account.json") or {}
    seconds = result.get("seconds") or account.get("seconds") or {}
    spent = {phase: seconds[phase] for phase in PHASES if seconds.get(phase, 0.0) >= 0.05}
    return Page(
        folder.name,
        folder,
        str(result.get("status", "no result yet")),
        str(result.get("message", "")),
        dict(_facts(result, seconds)),
        spent,
        tuple(_attempts(folder)),
    )


def _facts(result: Mapping[str, Any], seconds: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    if "total" in seconds:
        yield "time", duration(seconds["total"])
    if result.get("goodput") is not None:
        yield "goodput", f"{result['goodput']:.0%} of the time were steps that count"
    if result:
        cost = result.get("cost_usd")
        yield "cost", "unknown: no list price" if cost is None else f"{cost:.2f} USD"
        yield "charged", ", ".join(counted(result[f"{each}s"], each) for each in BUDGETS)
    if result.get("final_step") is not None:
        yield "final step", str(result["final_step"])
    if resumed := result.get("resumed_from"):
        yield "resumed from", ", ".join("?" if step is None else str(step) for step in resumed)
    if failure := result.get("first_failure"):
        yield "first failure", f"{failure['member']}: {failure['reason']}"


def _attempts(folder: Path) -> Iterator[Attempt]:
    events = read_lines(folder / "events.jsonl")
    told = read_lines(folder / "metrics.jsonl")
    started = [int(e["attempt"]) for e in events if e["kind"] == "started"]
    points = _points(events)
    for number in dict.fromkeys(started):
        verdict = registry.read_json(folder / "verdicts" / f"attempt-{number}.json") or {}
        steps = [
            line["step"]
            for line in told
            if line.get("attempt") == number and type(line.get("step")) is int
        ]
        yield Attempt(
            number,
            str(verdict.get("outcome", "")),
            str(verdict.get("summary", "no verdict: it goes on, or its launcher was killed")),
            str(verdict.get("cause") or ""),
            str(verdict.get("budget", "none")),
            min(steps, default=None),
            max(steps, default=None),
            folder / "logs" / f"attempt-{number}",
            tuple(points.get(number, ())),
        )


def _points(events: Sequence[Mapping[str, Any]]) -> dict[int, list[Point]]:
    """The steps in the events by attempt. `elapsed` begins anew with each launcher of a run."""
    found: dict[int, list[Point]] = {}
    attempt, before, last = None, 0.0, 0.0
    for event in events:
        elapsed = float(event["elapsed"])
        if before + elapsed < last:
            before = last
        last = before + elapsed
        if event["kind"] in ("started", "attached"):
            attempt = int(event["attempt"])
        if event["kind"] == "step" and attempt is not None:
            found.setdefault(attempt, []).append((last, int(event["step"])))
    return found


def duration(seconds: float) -> str:
    """`12.3 s`, `5 m 12 s` or `3 h 04 m`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} m {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def text(page: Page) -> str:
    """The page for a terminal, 100 columns wide but for long messages."""
    lines = [f"{page.name}: {page.status}"]
    if page.message:
        lines.append(f"  {page.message}")
    lines += [f"  {name:<14}{value}" for name, value in page.facts.items()]
    if page.seconds:
        lines += ["", "where the time went", *_bars(page.seconds)]
    if page.attempts:
        lines += ["", "attempts", *(line for each in page.attempts for line in _attempt(each))]
    lines += ["", f"all of it: {page.folder}"]
    return "\n".join(lines)


def _bars(seconds: Mapping[str, float]) -> Iterator[str]:
    longest, total = max(seconds.values()), sum(seconds.values())
    for phase, value in seconds.items():
        bar = "█" * max(1, round(BAR * value / longest))
        yield f"  {phase:<14}{duration(value):>10} {value / total:>4.0%}  {bar}"


def _attempt(attempt: Attempt) -> Iterator[str]:
    charged = "" if attempt.budget == "none" else f" (charged to {attempt.budget})"
    yield f"  {attempt.number}  {attempt.outcome or 'open':<10}  {attempt.summary}{charged}"
    if attempt.first_step is not None:
        yield f"     steps {attempt.first_step} to {attempt.last_step}"
    yield f"     logs: {attempt.logs}"
