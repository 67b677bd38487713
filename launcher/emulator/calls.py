"""What surrounds every call of the API, gRPC or REST: the count, and the faults."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpc import StatusCode

from launcher.emulator.presence import Presence
from launcher.emulator.project.projects import Projects
from launcher.emulator.rules import Rules
from launcher.emulator.tpu.errors import ApiError, injected, service_disabled

_LOST = ApiError(StatusCode.UNAVAILABLE, "Connection reset by peer")
_UNAVAILABLE = ApiError(StatusCode.UNAVAILABLE, "The service is currently unavailable.")
_ENDING = ApiError(StatusCode.UNAVAILABLE, "the emulator is ending")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: the API that it belongs to, and where; "" for what it does not name.

    `node` is the id of whatever it names: a node, a queued resource, an instance; `also` are the
    ids of the nodes that come with a queued resource.
    """

    service: str
    project: str = ""
    zone: str = ""
    node: str = ""
    also: tuple[str, ...] = ()


class Calls:
    """Carries out calls; `counts` says how many of each method have come in."""

    def __init__(self, rules: Rules, projects: Projects, presence: Presence) -> None:
        self.counts: Counter[str] = Counter()
        self.presence = presence
        self._rules = rules
        self._projects = projects

    async def carry_out(self, method: str, subject: Subject, answer: Callable[[], Any]) -> Any:
        """What `answer` gives, or awaits to; ApiError if it raises one, or a fault strikes."""
        self.presence.touch()
        self.counts[method] += 1
        if self.presence.ending:
            raise _ENDING
        strike = partial(
            self._rules.strike,
            node=subject.node,
            also=subject.also,
            zone=subject.zone,
            method=method,
        )
        if strike("unavailable"):
            raise _UNAVAILABLE
        if not self._projects.get(subject.project).is_enabled(subject.service):
            raise service_disabled(subject.service, subject.project)
        if rule := strike("call-error"):
            raise injected(rule.code, rule.message)
        given = answer()
        if inspect.isawaitable(given):
            given = await given
        if strike("lost-reply"):
            raise _LOST
        return given
