"""What of `sweep.budget` is used up, over all clusters of one command."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.spec import Sweep


class Spent:
    """Counts from now on; `clock` gives seconds. No chips are held at first."""

    def __init__(self, settings: Sweep, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._began = self._since = clock()
        self._chips = 0
        self._chip_seconds = 0.0

    def hold(self, chips: int) -> None:
        """From now on so many are held."""
        now = self._clock()
        self._chip_seconds += self._chips * (now - self._since)
        self._chips, self._since = chips, now

    @property
    def chip_hours(self) -> float:
        return (self._chip_seconds + self._chips * (self._clock() - self._since)) / 3600

    def reason(self) -> str:
        """Why the sweep is to end; empty while it may go on."""
        time_limit = self._settings.budget_seconds
        chip_limit = self._settings.budget_chip_hours
        if time_limit is not None and self._clock() - self._began > time_limit:
            return f"{time_limit:g} s have passed (sweep.budget.time)"
        if chip_limit is not None and self.chip_hours > chip_limit:
            return f"{chip_limit:g} chip-hours are used up (sweep.budget.chip_hours)"
        return ""
