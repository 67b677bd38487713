"""What a JSON Schema cannot say about durations: those in which something has to happen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from launcher.config.draft import Check, Draft
from launcher.config.values import seconds
from launcher.errors import Problem

# Null, where a key takes it, is no limit, or one that is chosen.
_POSITIVE = (
    "cluster.queue_timeout",
    "cluster.provision_timeout",
    "cluster.join_timeout",
    "mode.probe_interval",
    "retry.hang_timeout",
    "sweep.budget.time",
)


def _positive(draft: Draft, key: str) -> Iterator[Problem]:
    given = draft[key]
    if given is not None and seconds(given) == 0:
        yield draft.origins.problem("must be more than 0s", tuple(key.split(".")))


CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = tuple(
    ((key,), partial(_positive, key=key)) for key in _POSITIVE
)
