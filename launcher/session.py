"""One invocation on one run: what is to be done, and where it is written and shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from launcher.attempts.timeline import Timeline
from launcher.attempts.under_way import UnderWay
from launcher.errors import PreemptionBudgetSpent
from launcher.interrupt import Interrupt
from launcher.plan import Plan
from launcher.providers import Provider, open_provider
from launcher.providers.states import State
from launcher.record import RunFolder
from launcher.screen import Screen
from launcher.spec import ProviderSpec, Spec


class LazyProvider:
    """A provider that is opened, once and in the background, when a thread first needs it."""

    def __init__(self, spec: ProviderSpec, nodes: Sequence[str] = ()) -> None:
        self._spec = spec
        self._nodes = nodes
        self._pool = ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._opening: Future[Provider] | None = None

    def open(self) -> Future[Provider]:
        with self._lock:
            if self._opening is None:
                self._opening = self._pool.submit(open_provider, self._spec, self._nodes)
            return self._opening

    def get(self) -> Provider:
        return self.open().result()

    def close(self) -> None:
        if self._opening is not None and self._opening.exception() is None:
            self._opening.result().close()
        self._pool.shutdown()


class Setbacks:
    """Counts what is lost before processes run on it: slices of several, or the Ray head."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def __call__(self, what: str) -> None:
        """Raises PreemptionBudgetSpent when it was once too often."""
        self._count += 1
        if self._count > self._limit:
            limit = f"retry.max_preemptions is {self._limit}"
            raise PreemptionBudgetSpent(f"{what}; {self._count} preemptions, {limit}")


class Arrivals:
    """Tells hosts that are bad from a configuration with which none can join."""

    def __init__(self) -> None:
        self._any = False
        self._was_missed = False

    def joined(self) -> None:
        """All have."""
        self._any, self._was_missed = True, False

    def missed(self, *, others: bool) -> bool:
        """Some have not, though `others` have; whether new ones are worth another try: once."""
        first, self._was_missed = not self._was_missed, True
        return first and (others or self._any)


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation on one run: what is to be done, and where it is written and shown.

    `setback` is told of what is lost before processes run on it, and raises PreemptionBudgetSpent
    when that is to go on no longer.
    `apart`: its slices are of use without each other, so that none is given up for another's sake.
    """

    spec: Spec
    plan: Plan
    owner: str
    folder: RunFolder
    screen: Screen
    interrupt: Interrupt
    provider: LazyProvider
    under_way: UnderWay
    setback: Callable[[str], None]
    timeline: Timeline = field(default_factory=Timeline)
    arrivals: Arrivals = field(default_factory=Arrivals)
    states: dict[str, State] = field(default_factory=dict)  # of what is being created, by id
    apart: bool = False

    def tell(self, topic: str, text: str, **fields: Any) -> None:
        self.screen.phase(topic, text)
        self.folder.event(topic, text=text, **fields)
