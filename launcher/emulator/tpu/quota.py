"""What a project may have: chips that exist, and creates a minute, as the rules say.

Everything that still exists counts, whatever its state: preempted nodes, queued resources that
wait, failed or are suspended (marin-community/marin#87, #1792). A queued resource counts with all
that it asked for, and its nodes not once more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.accelerators import Accelerator
from launcher.emulator.rules import Rule
from launcher.emulator.tpu.errors import quota_exceeded, rate_exceeded
from launcher.emulator.tpu.names import Place
from launcher.emulator.tpu.wire import v2

if TYPE_CHECKING:
    from launcher.emulator.tpu.fleet import Fleet

MINUTE = 60.0
# Parts of the names of quotas, around "Preemptible", where they are not the generation alone;
# as they were reported in marin-community/marin#1612 and its like.
_NAMES = {"v4": ("V4s", "Pod"), "v5e": ("V5s", "Litepod")}


class Quota:
    """The quotas of one fleet."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._creates: deque[float] = deque()

    def check(
        self,
        place: Place,
        ids: Sequence[str],
        chips: int,
        accelerator: Accelerator,
        node: v2.Node,
    ) -> None:
        """Raises ApiError 8 if that many more chips are too many for some `quota` rule.

        `ids` are those of what is to be created, `node` is its (first) node.
        """
        for rule in self._fleet.rules.of("quota"):
            if rule.concerns(ids, place.zone) and self._used(rule, place) + chips > rule.limit:
                name = metric(accelerator.generation, node.scheduling_config)
                raise quota_exceeded(name, rule.limit, place.zone)

    def _used(self, rule: Rule, place: Place) -> int:
        return sum(
            chips
            for where, ids, chips in self._everything()
            if where.project == place.project and rule.concerns(ids, where.zone)
        )

    def _everything(self) -> Iterator[tuple[Place, Sequence[str], int]]:
        for node in self._fleet.nodes.values():
            if not node.member:
                yield node.place, (node.node_id,), node.accelerator.chips
        for resource in self._fleet.queue.resources.values():
            yield resource.place, resource.ids, resource.chips

    def check_rate(self, place: Place, node_id: str) -> None:
        """Counts a create, or raises ApiError 8 if a `create-rate` rule allows no more of them."""
        now = self._clock()
        while self._creates and self._creates[0] <= now - MINUTE:
            self._creates.popleft()
        for rule in self._fleet.rules.of("create-rate"):
            if rule.concerns((node_id,), place.zone) and len(self._creates) >= rule.limit:
                raise rate_exceeded(place.project)
        self._creates.append(now)


def metric(generation: str, scheduling: v2.SchedulingConfig) -> str:
    """The name of the quota of that generation."""
    before, after = _NAMES.get(generation, (generation.upper(), ""))
    preemptible = "Preemptible" if scheduling.spot or scheduling.preemptible else ""
    return f"TPU{before}{preemptible}{after}PerProjectPerZoneForTPUAPI"
