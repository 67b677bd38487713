"""Asks for slices, all of a choice or a part of it, until they are there or nothing is left.

This is the part of acquiring that knows nothing of Ray. What is asked for is on record first.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any, TypeVar

from launcher import registry
from launcher.errors import ProvisioningError, Reason, Refused
from launcher.plan import Choice
from launcher.providers import Deadlines, Pause
from launcher.providers.states import State
from launcher.provisioning import looks, on_record, unwanted
from launcher.provisioning.chain import Chain, Memory
from launcher.provisioning.requests import LABEL_ATTEMPT, LABEL_MACHINE, LABEL_OWNER, Request, dated
from launcher.session import Session

T = TypeVar("T")

Creating = Sequence[Future[None]]
"""The creations under way; each raises Refused if it comes to nothing."""
Meanwhile = Callable[[Choice, str, Creating], T]
"""What goes on while the slices are created, and ends when it has what it wants of them: it is
given the choice, the incarnation that its hosts are labelled with, and the creations."""
Fill = Callable[[dict[str, Any], str], None]
"""Puts what is known only now, such as the token, into a node; it is given the incarnation."""


def acquire(session: Session, fill: Fill, meanwhile: Meanwhile[T]) -> T:
    """What `meanwhile` makes of the first choice of the plan that can be had.

    Raises Refused when none can be had in time.
    """
    chain = chain_of(session, session.plan.choices)
    return chain.walk(lambda choice: take(session, choice, fill, meanwhile))


def chain_of(session: Session, choices: Sequence[Choice]) -> Chain:
    return Chain(
        choices,
        memory=Memory(),
        queue_timeout=session.spec.cluster.queue_timeout,
        pause=session.interrupt.pause,
        tell=session.tell,
    )


def replace(
    session: Session, choice: Choice, broken: Collection[int], fill: Fill, meanwhile: Meanwhile[T]
) -> T:
    """New slices in the place of the broken ones of a choice; the others stay as they are."""
    unwanted.give_up(session, choice, broken)
    return chain_of(session, [choice]).walk(
        lambda choice: take(session, choice, fill, meanwhile, broken)
    )


def take(
    session: Session,
    choice: Choice,
    fill: Fill,
    meanwhile: Meanwhile[T],
    part: Collection[int] | None = None,
) -> T:
    """All slices of one choice, or a part of them, or Refused, and nothing of these is left.

    Raises PartlyLost, and leaves those that came, when others went while they were made; and
    PreemptionBudgetSpent when a part went too often while the rest is kept.
    """
    incarnation = secrets.token_hex(4)
    new = on_record.put(session, choice, choice.requests_of(part).values(), incarnation)
    return obtain(session, choice, fill, meanwhile, incarnation, part, new)


def take_up(
    session: Session, choice: Choice, record: Mapping[str, Any], fill: Fill, meanwhile: Meanwhile[T]
) -> T:
    """The same as `take` for all slices that a launcher before this one has asked for.

    What is there is not asked for again, so that what waits in a queue keeps its place.
    """
    (incarnation,) = set(record["incarnations"].values())
    return obtain(session, choice, fill, meanwhile, incarnation)


def obtain(
    session: Session,
    choice: Choice,
    fill: Fill,
    meanwhile: Meanwhile[T],
    incarnation: str,
    part: Collection[int] | None = None,
    new: Collection[str] = (),
) -> T:
    """What is on record is asked for; of the names there, the `new` ones never were before, and of
    the others a look tells first whether they are there.
    """
    asked = {
        index: filled(request, session, incarnation, fill)
        for index, request in choice.requests_of(part).items()
    }
    abort = threading.Event()

    def pause(seconds: float) -> None:
        session.interrupt.check()
        if abort.wait(seconds):
            raise ProvisioningError("given up, since another part of the run failed")

    with ThreadPoolExecutor(len(asked)) as pool:
        made = {
            index: pool.submit(create, session, choice, request, pause, request.name not in new)
            for index, request in asked.items()
        }
        try:
            return meanwhile(choice, incarnation, list(made.values()))
        except Refused as refused:
            if is_lost(refused) and (lost := lost_among(session, choice, made)):
                raise PartlyLost(choice, incarnation, made.keys() - lost, lost) from refused
            abort.set()
            take_back(session, choice, made, new, part)
            if is_lost(refused) and part is not None and len(part) < len(choice.nodes):
                session.setback(str(refused))  # the others are up meanwhile, and cost
            raise explained(session, refused) from refused
        finally:
            abort.set()


def take_back(
    session: Session,
    choice: Choice,
    creating: Mapping[int, Future[None]],
    new: Collection[str],
    part: Collection[int] | None,
) -> None:
    """Nothing is left of what was asked for, once every creation has ended."""
    wait(creating.values())
    wanted = choice.requests_of(part)
    never = [name for index in unmade(creating) for name in wanted[index].names]
    on_record.forget_unmade(session, never, new)
    unwanted.give_up(session, choice, part)


class PartlyLost(ProvisioningError):
    """Some slices went while they were made; others, which are `kept`, came."""

    def __init__(
        self, choice: Choice, incarnation: str, kept: Collection[int], lost: Collection[int]
    ) -> None:
        self.choice, self.incarnation = choice, incarnation
        self.kept, self.lost = frozenset(kept), frozenset(lost)
        names = ", ".join(choice.nodes[index] for index in sorted(lost))
        super().__init__(f"lost while the slices were made: {names}")


def is_lost(error: BaseException | None) -> bool:
    return isinstance(error, Refused) and error.reason is Reason.LOST


def lost_among(
    session: Session, choice: Choice, creating: Mapping[int, Future[None]]
) -> frozenset[int]:
    """Which slices went while they were made, once every creation has ended, by slice number.

    Empty if all did, or if one failed otherwise: then nothing is worth keeping.
    """
    wait(creating.values())
    errors = {index: error for index, one in creating.items() if (error := one.exception())}
    if not all(map(is_lost, errors.values())):
        return frozenset()
    lost = errors.keys() | looks.gone(session, choice, creating.keys() - errors.keys()).keys()
    return frozenset(lost) if len(lost) < len(creating) else frozenset()


def unmade(creating: Mapping[int, Future[None]]) -> Iterator[int]:
    """Those that were refused outright, of creations that have all ended."""
    for index, one in creating.items():
        if isinstance(error := one.exception(), Refused) and error.outright:
            yield index


def filled(request: Request, session: Session, incarnation: str, fill: Fill) -> Request:
    """The request with what is known only now; the same for another launcher of the same record."""
    record = registry.record(session.spec.name) or {}
    label = f"{record.get('asked_in')}-{incarnation}"

    def change(node: dict[str, Any]) -> None:
        node["labels"][LABEL_ATTEMPT] = label
        fill(node, incarnation)

    return dated(request.with_node(change), datetime.now(UTC))


def explained(session: Session, refused: Refused) -> Refused:
    """A quota error names what of ours holds quota for nothing."""
    if refused.reason is not Reason.QUOTA:
        return refused
    labels = {LABEL_OWNER: session.owner, LABEL_MACHINE: registry.machine_id()}
    try:
        listing = session.provider.get().list(labels)
    except ProvisioningError:
        return refused  # the refusal is what matters
    dead = [r for r in listing.resources if r.state is State.DEAD]
    held = "".join(f"\n    {r.name} is {r.raw_state}, and still counts" for r in dead)
    return Refused(Reason.QUOTA, f"{refused}{held}") if dead else refused


def create(
    session: Session, choice: Choice, request: Request, pause: Pause, is_on_record: bool
) -> None:
    try:
        provider = session.provider.get()
    except Exception:  # nothing was asked for: as when it is refused outright
        if not is_on_record:
            on_record.forget(session, request.names)
        raise
    pause(0)
    session.folder.event("provisioning", node=request.name, endpoint=provider.endpoint)
    deadlines = Deadlines(queue_seconds(session), choice.provision_timeout)

    def watch(word: str, state: State) -> None:
        session.states[request.id] = state
        if state in looks.WAITED_FOR:
            session.screen.wait(f"{request.id} {looks.WAITED_FOR[state]}: {word}")

    for node in provider.create(request, deadlines, pause, watch, asked=is_on_record):
        short = node.name.rpartition("/")[2]
        session.tell("ready", f"{short} is READY on {provider.title}", node=node.name)


def queue_seconds(session: Session) -> float:
    """How long one queued choice may wait: all of a chain share the time there is for capacity."""
    queued = sum(choice.requests[0].queued for choice in session.plan.choices)
    return session.spec.cluster.queue_timeout / max(1, queued)
