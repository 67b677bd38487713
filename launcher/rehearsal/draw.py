"""Schedules drawn by chance. The same seed draws the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from launcher.rehearsal.scenarios import DRAWN, LAST, Scenario, make

MOST_STRIKES = 3
EARLIEST, LATEST = 5, 85  # percent of all steps: an attempt that is over can no more be struck

Draw = Callable[[random.Random], dict[str, Any]]
STRIKES: tuple[Draw, ...] = (
    lambda _: {"do": "preempt"},
    lambda r: {"do": "preempt", "notice": f"{r.randint(1, 10)}s"},
    lambda r: {"do": "maintenance-event", "notice": f"{r.randint(0, 5)}s"},
    lambda r: {"do": "kill-host", "worker": r.choice((0, LAST))},
    lambda r: {"do": "freeze-host", "worker": r.choice((0, LAST))},
    lambda _: {"do": "delete-node"},
    lambda _: {"do": "kill-launcher"},
)
# What waits for the new slice that a strike makes necessary.
AMBUSHES: tuple[Draw, ...] = (
    lambda r: {"do": "stockout", "count": r.randint(1, 3)},
    lambda r: {"do": "slow-create", "seconds": f"{r.randint(1, 4)}s", "count": 1},
    lambda _: {"do": "lost-reply", "count": 1},
)


def draw(number: int, seed: int) -> tuple[Scenario, ...]:
    """`number` scenarios of one to three strikes at random moments, in the order of their steps."""
    chance = random.Random(seed)
    rows = (_row(index, chance) for index in range(1, number + 1))
    return tuple(replace(make(row), by_chance=True) for row in rows)


def _row(index: int, chance: random.Random) -> dict[str, Any]:
    count = chance.randint(1, MOST_STRIKES)
    steps = sorted(chance.sample(range(EARLIEST, LATEST + 1), count))
    deeds = [deed for step in steps for deed in _strike(step, chance)]
    return {"name": f"{DRAWN}{index}", "about": "drawn by chance", "deeds": deeds}


def _strike(step: int, chance: random.Random) -> list[dict[str, Any]]:
    after = {"after": f"{chance.randint(0, 1500)}ms"} if chance.random() < 0.3 else {}
    when = {"when": {"step": f"{step}%", **after}}
    strike = chance.choice(STRIKES)(chance)
    if chance.random() < 0.4:
        return [{**when, **chance.choice(AMBUSHES)(chance)}, strike]
    return [{**when, **strike}]
