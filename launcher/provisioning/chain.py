"""The fallback chain: choices tried in order, and again in rounds, until one gives its slices.

What a refusal means is the table `launcher.providers.reasons.POLICIES`: some are asked again at
once, some in a later round, some never. What failed a short while ago is tried last, by whatever
run of this user it was found out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import tenacity

from launcher import registry
from launcher.errors import ConfigError, Reason, Refused
from launcher.plan import Choice
from launcher.providers import Pause
from launcher.providers.reasons import POLICIES

T = TypeVar("T")

REMEMBER_SECONDS = 900.0
"""How long a failure counts; also how long a slice has to live for its zone not to have failed."""
SHORTEST_ROUND, LONGEST_ROUND = 2.0, 60.0  # seconds between rounds, doubling
AGAIN_SECONDS = 1.0  # before the same offer is asked for again, doubling


class Tell(Protocol):
    """Writes a line for the user, and an event."""

    def __call__(self, topic: str, text: str, **fields: Any) -> None: ...


class Memory:
    """What failed lately, by project, zone, type and capacity, for all runs of a user."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._path = registry.home() / "failures.json"
        self._clock = clock

    def note(self, choice: Choice) -> None:
        """Keeps it in mind, if that can be written."""
        busy = registry.lock("failures", "the list of failed zones is busy", wait=10)
        with contextlib.suppress(ConfigError), busy:
            registry.write_json(self._path, {**self._recent(), key(choice): self._clock()})

    def order(self, choices: Sequence[Choice]) -> list[Choice]:
        """Those that have not failed lately in their own order, then the others, oldest first: of
        each number of slices, since a larger one is worth more than a better place.
        """
        failed = self._recent()
        return sorted(choices, key=lambda c: (-len(c.nodes), failed.get(key(c), 0.0)))

    def _recent(self) -> Mapping[str, float]:
        since = self._clock() - REMEMBER_SECONDS
        found = registry.read_json(self._path) or {}
        return {name: moment for name, moment in found.items() if moment > since}


def key(choice: Choice) -> str:
    offer = choice.offer
    parent = choice.requests[0].parent
    return f"{parent}/{offer.accelerator.accelerator_type}/{offer.capacity}"


class NothingYet(Exception):
    """Every choice was refused in this round; some may be had in another."""


class Chain:
    """One walk. `take` acquires a choice wholly, or leaves nothing of it and raises Refused."""

    def __init__(
        self,
        choices: Sequence[Choice],
        *,
        memory: Memory,
        queue_timeout: float,
        pause: Pause,
        tell: Tell,
    ) -> None:
        self._left = memory.order(choices)
        self._several = len(choices) > 1
        self._memory = memory
        self._queue_timeout = queue_timeout
        self._pause = pause
        self._tell = tell
        self._refusals: dict[str, Refused] = {}

    def walk(self, take: Callable[[Choice], T]) -> T:
        """What `take` gives for the first choice that can be had.

        Raises Refused, with the last words on every choice, when none is left to ask for,
        or when the next round would begin after `queue_timeout`.
        """
        rounds = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NothingYet),
            stop=tenacity.stop_before_delay(self._queue_timeout),
            wait=tenacity.wait_exponential_jitter(
                multiplier=SHORTEST_ROUND, max=LONGEST_ROUND, jitter=1
            ),
            sleep=self._pause,
            before_sleep=self._tell_round,
            reraise=True,
        )
        try:
            taken: T = rounds(self._round, take)
            return taken
        except NothingYet:
            waited = f"no capacity within {self._queue_timeout:g} s (cluster.queue_timeout)"
            raise self._failure(waited) from None

    def _round(self, take: Callable[[Choice], T]) -> T:
        for choice in list(self._left):
            if self._several:
                self._tell("trying", choice.title)
            try:
                return self._ask(choice, take)
            except Refused as refused:
                self._refuse(choice, refused)
        if not self._left:
            raise self._failure("none of the ways to get slices is open")
        raise NothingYet

    def _ask(self, choice: Choice, take: Callable[[Choice], T]) -> T:
        """Ask, and ask again for what passes by itself."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Refused),
            stop=lambda state: state.attempt_number > POLICIES[reason_of(state)].again,
            wait=tenacity.wait_exponential_jitter(multiplier=AGAIN_SECONDS, max=20),
            sleep=self._pause,
            before_sleep=lambda state: self._tell(
                "again", f"{choice.title}: {error_of(state)}; asked again"
            ),
            reraise=True,
        )
        taken: T = again(take, choice)
        return taken

    def _refuse(self, choice: Choice, refused: Refused) -> None:
        policy = POLICIES[refused.reason]
        self._refusals[choice.title] = refused
        if policy.later:
            self._memory.note(choice)
        else:
            self._left.remove(choice)
        self._tell(
            "refused",
            f"{choice.title}: {refused.reason}: {refused}",
            zone=choice.offer.zone,
            accelerator_type=choice.offer.accelerator.accelerator_type,
            capacity=choice.offer.capacity,
            reason=refused.reason.name.lower(),
        )

    def _tell_round(self, state: tenacity.RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        self._tell("waiting", f"for capacity; asks again in {seconds:.1f} s")

    def _failure(self, why: str) -> Refused:
        if len(self._refusals) == 1:
            refused = next(iter(self._refusals.values()))
            hint = POLICIES[refused.reason].hint
            waited = f"\n{why}" if POLICIES[refused.reason].later else ""
            return Refused(refused.reason, f"{refused}{waited}{hint and f'{chr(10)}{hint}'}")
        lines = [f"  {title}: {r.reason}: {r}" for title, r in self._refusals.items()]
        reasons = [refused.reason for refused in self._refusals.values()]
        hints = dict.fromkeys(POLICIES[reason].hint for reason in reasons)
        hopeful = [reason for reason in reasons if POLICIES[reason].later] or reasons
        return Refused(hopeful[-1], "\n".join([f"{why}:", *lines, *filter(None, hints)]))


def error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def reason_of(state: tenacity.RetryCallState) -> Reason:
    error = error_of(state)
    return error.reason if isinstance(error, Refused) else Reason.BAD_REQUEST
