"""What a run holds over all its attempts: slices and cluster, made whole before each of them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Protocol

from launcher import coordinator
from launcher.attempts import fanout
from launcher.cluster import Host
from launcher.errors import ProvisioningError, Superseded
from launcher.hosts.member import Place
from launcher.judging.losses import NODE_WORDS
from launcher.judging.outcome import Repair
from launcher.judging.verdict import Verdict
from launcher.plan import Choice
from launcher.provisioning import joining, looks, provision, unwanted
from launcher.provisioning.chain import REMEMBER_SECONDS, Memory
from launcher.provisioning.prices import Bill
from launcher.provisioning.probe import Probe, probe_for
from launcher.provisioning.provision import Joined
from launcher.session import Session

LOOK_SECONDS = 2.0  # between looks at the slices while nothing runs on them


def _answers(joined: Joined) -> bool:
    """Whether the Ray head does; that of a borrowed cluster is its owner's care."""
    return joined.states is not None or coordinator.answers(joined.head)


def _rate(choice: Choice, broken: Collection[int]) -> float | None:
    """USD an hour of the slices that are not broken; None where no price is known."""
    whole, count = choice.cost_per_hour_usd, len(choice.nodes)
    return None if whole is None else whole * (count - len(broken)) / count


class Hold(Protocol):
    """What an attempt needs of its hosts."""

    @property
    def held(self) -> bool:
        """Whether an attempt has been made with it."""
        ...

    def ready(self, *, partly: bool = False) -> Joined:
        """The hosts, joined. With `partly`, the first time, those that an earlier launcher has
        left: some may be absent, and what goes on on the others is to be taken up first.
        """
        ...

    def recalled(self) -> str:
        """Why the attempt that runs is to end for another one; "" if it is not."""
        ...

    def damaged(self, verdict: Verdict) -> None:
        """Told of every verdict: what it says must be made anew is no more to be relied on."""
        ...


class Holding:
    """Nothing at first. `ready` makes whole what there is; leaving the block lets go of it."""

    def __init__(
        self,
        session: Session,
        clock: Callable[[], float] = time.time,
        bill: Bill | None = None,
    ) -> None:
        self._session = session
        self._clock = clock
        self._stack = contextlib.ExitStack()
        self._joined: Joined | None = None
        self._probe: Probe | None = None
        self._broken: frozenset[int] = frozenset()
        self._bill = bill or Bill()
        self._used = False

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bill.go_on(0.0)
        try:
            self._let_go_of_probe(keeps=isinstance(error, Superseded))
        finally:  # whatever becomes of a probe, the slices are let go of
            self._stack.__exit__(kind, error, trace)

    @property
    def cost_usd(self) -> float | None:
        """Of what was held so far, while it was; None where some slices have no list price."""
        return self._bill.usd

    @property
    def held(self) -> bool:
        """Whether an attempt has been made with it."""
        return self._used

    def ready(self, *, partly: bool = False) -> Joined:
        """The hosts of every slice, joined; what a verdict called broken has been replaced.

        With `partly`, the first time, some may be absent of what an earlier launcher has left.
        """
        if self._joined is None:
            self._bill.go_on(0.0)  # what a launcher before this has left is adopted, or removed
            keep = self._session.spec.keep
            acquiring = provision.acquired(self._session, stays=keep, partly=partly)
            self._joined = self._stack.enter_context(acquiring)
        else:
            self._joined = self._mended(self._joined)
        if self._probe is None:
            self._probe = probe_for(self._session, self._joined)
        self._broken = frozenset()
        self._bill.go_on(_rate(self._joined.choice, self._joined.absent))
        self._used = True
        return self._joined

    def _mended(self, joined: Joined) -> Joined:
        """With a head that is there, and new slices for those that are broken or have grown."""
        if not _answers(joined):
            joined = self._with_new_head(joined)
        broken = self._broken | joined.absent
        grown = self._probe is not None and self._probe.grown
        return self._renewed(joined, broken) if broken or grown else joined

    def _with_new_head(self, joined: Joined) -> Joined:
        """A probe goes: its hosts know the old head alone. What it asks of Ray is not answered
        before there is a head again, and Ray ends a process that waits for one for a minute.
        """
        if self._probe:
            self._probe.abort()
        gone = f"the Ray head at {joined.head.gcs_address} is gone"
        joining.renew_head(self._session, joined.head, gone)
        self._let_go_of_probe()
        return provision.join_head(self._session, joined, self._broken)

    def _renewed(self, joined: Joined, broken: Collection[int]) -> Joined:
        session, grown = self._session, self._end_probe()
        renewed = provision.renew(session, joined, broken, grown)
        before, now = len(joined.choice.nodes), len(renewed.choice.nodes)
        if now != before:
            names = ", ".join(renewed.choice.nodes)
            session.tell("resized", f"{before} to {now}: {names}", slices=now, before=before)
        return renewed

    def _end_probe(self, *, keeps: bool = False) -> Mapping[Place, Host]:
        """No probe goes on; the hosts that the last one has brought."""
        probe, self._probe = self._probe, None
        if probe is None:
            return {}
        probe.end(keeps=keeps)
        return probe.grown

    def _let_go_of_probe(self, *, keeps: bool = False) -> None:
        """Nothing of a probe outlives the run, unless another supervisor `keeps` what there is."""
        if self._end_probe(keeps=keeps) and self._joined and not keeps:
            with contextlib.suppress(ProvisioningError):  # it stays on record
                unwanted.drop_others(self._session, self._joined.choice, time.sleep)

    def recalled(self) -> str:
        """Why the attempt that runs is to end, for another one on more slices; "" if it is not."""
        return self._probe.look() if self._probe else ""

    def damaged(self, verdict: Verdict) -> None:
        """Keep in mind what the verdict says must be made anew, and where slices do not live."""
        if verdict.repair in (Repair.SLICES, Repair.ZONE):
            self.lose(verdict.slices)

    def lose(self, slices: Collection[int]) -> None:
        """These must be made anew, with those that could not be had; all where none is named."""
        joined = self._joined
        if joined is None:
            return
        if self._clock() - joined.made < REMEMBER_SECONDS:
            Memory().note(joined.choice)
        everything = frozenset(range(len(joined.choice.nodes)))
        self._replace(joined, self._broken | frozenset(slices) if slices else everything)

    def rest(self, seconds: float) -> Mapping[int, str]:
        """Wait so long, but no longer once a slice has gone: that one can be replaced meanwhile.

        No attempt is made with slices that are known to be gone. Returns what is said of these.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._session.interrupt.pause(min(left, LOOK_SECONDS))
            if self._joined and (gone := self._gone(self._joined)):
                said = ", ".join(f"slice {index}: {word}" for index, word in gone.items())
                self._session.tell("again", f"{said}: replaced at once")
                self._replace(self._joined, self._broken | gone.keys())
                return gone
        return {}

    def _gone(self, joined: Joined) -> dict[int, str]:
        """What the API or its hosts say of each slice that goes, but for the broken ones."""
        kept = {p: h for p, h in joined.hosts.items() if p[0] not in self._broken}
        if not kept or not _answers(joined):
            return {}
        told = {p[0]: word for p, word in fanout.going(kept, LOOK_SECONDS).items()}
        ask = joined.states or functools.partial(looks.words, self._session, joined.choice)
        said = {index: word for index, word in ask().items() if word in NODE_WORDS}
        return {i: word for i, word in (told | said).items() if i not in self._broken}

    def _replace(self, joined: Joined, broken: frozenset[int]) -> None:
        """Keep in mind what is to be made anew; what was borrowed, from the beginning."""
        self._broken = broken
        is_borrowed = joined.states is not None
        self._bill.go_on(0.0 if is_borrowed else _rate(joined.choice, broken))
        if is_borrowed:
            self._stack.close()
            self._joined = None
