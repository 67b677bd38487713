"""`doctor`: what stands between a configuration and its run, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from launcher.doctor.checks import CHECKS
from launcher.doctor.context import Cloud, Context
from launcher.doctor.examine import Examined, examine, exit_code
from launcher.doctor.findings import Outcome
from launcher.errors import ConfigError
from launcher.invocation import owner
from launcher.verbs import Arguments
from launcher.verbs.loading import load

INDENT = " " * 26
COUNTED = (Outcome.WARNING, Outcome.PROBLEM)  # have a plural


def doctor(arguments: Arguments) -> int:
    """The exit code is 0 without a problem; with some, that of the error a run would meet first:
    2 the configuration, 4 this machine, 3 the provider.
    """
    context = make_context(arguments)
    try:
        seen = []
        for each in examine(CHECKS, context):
            seen.append(each)
            if "--json" not in arguments.flags:
                print("\n".join(lines(each)), flush=True)
    finally:
        if context.loaded:
            context.cloud.close()
    if "--json" in arguments.flags:
        print(json.dumps(as_json(seen), indent=2))
    else:
        print(summary(seen))
    return exit_code(seen)


def make_context(arguments: Arguments) -> Context:
    """A wrong configuration is a finding too: what does not need one is looked at all the same."""
    try:
        spec, plan = load(arguments)
    except ConfigError as error:
        return Context(Path.cwd(), owner(), None, error)
    return Context(Path.cwd(), owner(), (spec, plan, Cloud(spec.provider)))


def lines(each: Examined) -> Iterator[str]:
    for finding in each.findings:
        yield f"{finding.outcome:<8} {each.check.title:<16} {finding.text}"
        yield from (f"{INDENT}{line}" for line in finding.mend)


def as_json(seen: Iterable[Examined]) -> dict[str, Any]:
    found = [
        {
            "check": each.check.title,
            "outcome": finding.outcome.value,
            "text": finding.text,
            "mend": list(finding.mend),
            "exit_code": each.check.area.exit_code,
        }
        for each in seen
        for finding in each.findings
    ]
    return {"exit_code": exit_code(seen), "findings": found}


def summary(seen: Iterable[Examined]) -> str:
    outcomes = [finding.outcome for each in seen for finding in each.findings]
    counts = {outcome: outcomes.count(outcome) for outcome in Outcome}
    text = ", ".join(
        f"{number} {outcome}{'s' if outcome in COUNTED and number != 1 else ''}"
        for outcome, number in counts.items()
    )
    return f"{text}: {'a run would fail' if counts[Outcome.PROBLEM] else 'ready to run'}"
