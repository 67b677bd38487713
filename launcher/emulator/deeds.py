"""What nodes, queued resources and VMs have in common when rules strike them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from launcher.emulator.rules import Rule, Rules
from launcher.emulator.tpu.errors import ApiError
from launcher.errors import LauncherError

Work = Coroutine[Any, Any, None]


async def rest(rule: Rule | None) -> None:
    """Wait as long as a rule says that has struck, if one has."""
    if rule:
        await asyncio.sleep(rule.seconds)


async def act_later(rules: Rules, rule: Rule, name: str, act: Callable[[], Work]) -> None:
    """Do to what has that name what a rule says, when its time has come and it is still armed."""
    await asyncio.sleep(rule.after)
    if rule not in rules:
        return
    try:
        await act()
    except (ApiError, LauncherError) as error:  # another change came first
        print(f"emulator: {rule.fault} of {name}: {error}", file=sys.stderr, flush=True)
