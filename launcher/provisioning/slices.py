"""Slices on record: what is asked for is written down first, and given up as a whole.

This is the part of acquiring that knows nothing of Ray. A record of a run names the offer that is
being asked for and the full names of all that may come of it, so that after a death at any instant
the same command, `down` or `gc` finds it.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any, TypeVar

from launcher import registry
from launcher.errors import ConfigError, ProvisioningError, Reason, Refused
from launcher.plan import Choice, part_of
from launcher.providers import Deadlines, Pause
from launcher.providers.states import State
from launcher.provisioning import looks, removal
from launcher.provisioning.chain import Chain, Memory
from launcher.provisioning.requests import LABEL_ATTEMPT, LABEL_MACHINE, LABEL_OWNER, Request, dated
from launcher.session import Session
from launcher.spec import Spec

T = TypeVar("T")

UNSET = "unset"  # of a setting

Creating = Sequence[Future[None]]
"""The creations under way; each raises Refused if it comes to nothing."""
Meanwhile = Callable[[Choice, str, Creating], T]
"""What goes on while the slices are created, and ends when it has what it wants of them: it is
given the choice, the incarnation that its hosts are labelled with, and the creations."""
Fill = Callable[[dict[str, Any], str], None]
"""Puts what is known only now, such as the token, into a node; it is given the incarnation."""


def recorded_choice(session: Session, record: Mapping[str, Any]) -> Choice | None:
    """The choice that a record was made for; None if none of them was asked for yet.

    What is up under a name is adopted or removed only by a run that might have asked for the same.
    """
    name = session.spec.name
    if record["provider"] != provider_of(session):
        raise ConfigError(taken(name, f"from another provider ({record['provider']})"))
    if record["offer"] is None:
        return None
    for choice in session.plan.choices:
        if record["offer"] == offer_of(choice) and (found := same(session, choice, record)):
            require_same_settings(session.spec, record, found)
            return found
    offer = record["offer"]
    what = f"{len(record['nodes'])} x {offer['accelerator_type']} {offer['capacity']}"
    raise ConfigError(taken(name, f"as {what} in {offer['zone']}, not as what is asked for"))


def same(session: Session, choice: Choice, record: Mapping[str, Any]) -> Choice | None:
    """The choice, if its nodes are those on record, or a part of it that an elastic run has."""
    names = list(choice.node_names)
    if record["nodes"] == names:
        return choice
    mode = session.spec.mode
    if not (mode.is_elastic and set(record["nodes"]) <= set(names)):
        return None
    nodes = [name.rpartition("/")[2] for name in record["nodes"]]
    return part_of(session.spec, choice, nodes) if len(nodes) in mode.sizes else None


def require_same_settings(spec: Spec, record: Mapping[str, Any], choice: Choice) -> None:
    """Raises ConfigError where what is on record was asked for with other settings: it has them
    still, and would go on with them without a word.
    """
    now, then = settings_of(spec, choice), record.get("settings")
    if then is None or then == now:
        return
    changed = sorted(key for key in {*now, *then} if now.get(key) != then.get(key))
    what = ", ".join(f"{k}: {then.get(k, UNSET)}, not {now.get(k, UNSET)}" for k in changed)
    raise ConfigError(taken(spec.name, f"with other settings than what is asked for ({what})"))


def settings_of(spec: Spec, choice: Choice) -> dict[str, Any]:
    """Those that all slices of a choice share, by dotted keys, as a record holds them: of the
    requests, and those of the user's own that take effect when a host boots.
    """
    asked = json.loads(json.dumps(choice.requests[0].settings))
    machine = spec.cluster.machine
    own = {"cluster.env": dict(machine.env), "cluster.startup": [*machine.startup]}
    found: dict[str, Any] = {}
    for key, value in {**asked, **own}.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{name}".rstrip("."): each for name, each in inner.items()}
    return found


def taken(name: str, how: str) -> str:
    down = f"or `python -m launcher down {name}` first"
    return f"{name} is up {how}: choose another name=, {down}"


def intent(session: Session, head_id: str, stays: bool) -> dict[str, Any]:
    """What is put on record before anything exists."""
    return {
        "name": session.spec.name,
        "owner": session.owner,
        "folder": str(session.folder.path),
        "head": head_id,
        "stays": stays,
        "incarnations": {},  # of each node's hosts, by node id
        "attempt": None,  # what runs on the hosts: its number and key
        "joined": False,  # whether all hosts of these have been in the cluster
        "asked_in": None,  # the attempt that the slices were first asked for
        "offer": None,  # what is being asked for, and what comes of it
        "settings": None,  # of the requests: what must not change while it is up
        "nodes": [],
        "resources": [],
        "provider": provider_of(session),
        "supervisor": registry.this_process(),
        "created": time.time(),
        "cost_per_hour_usd": None,
    }


def provider_of(session: Session) -> dict[str, Any]:
    provider = session.spec.provider
    return {
        "kind": provider.kind,
        "project": provider.project,
        "options": {k: v for k, v in provider.options.items() if k != "rules"},
    }


def offer_of(choice: Choice) -> dict[str, str]:
    offer = choice.offer
    return {
        "accelerator_type": offer.accelerator.accelerator_type,
        "capacity": offer.capacity,
        "zone": offer.zone,
    }


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
    give_up(session, choice, broken)
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
    new = put_on_record(session, choice, choice.requests_of(part).values(), incarnation)
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
    wanted = choice.requests_of(part)
    asked = {i: filled(request, session, incarnation, fill) for i, request in wanted.items()}
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
            wait(made.values())
            forget_unmade(session, [name for i in unmade(made) for name in wanted[i].names], new)
            give_up(session, choice, part)
            if is_lost(refused) and part is not None and len(part) < len(choice.nodes):
                session.setback(str(refused))  # the others are up meanwhile, and cost
            raise explained(session, refused) from refused
        finally:
            abort.set()


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


def put_on_record(
    session: Session, choice: Choice, wanted: Collection[Request], incarnation: str
) -> set[str]:
    """The names that were not there before. With nothing `wanted` what is held goes on as it is."""
    names = [name for request in choice.requests for name in request.names]
    record = registry.record(session.spec.name) or {}
    before = record.get("resources", ())
    others = record.get("incarnations", {}) if len(wanted) < len(choice.requests) else {}
    mine = {node: incarnation for request in wanted for node in request.nodes}
    registry.update(
        session.spec.name,
        incarnations={**others, **mine},
        attempt=None,
        joined=not wanted and record.get("joined", True),
        asked_in=session.folder.attempt if wanted else record.get("asked_in"),
        offer=offer_of(choice),
        settings=settings_of(session.spec, choice),
        nodes=list(choice.node_names),
        resources=list(dict.fromkeys([*names, *before])),
        cost_per_hour_usd=choice.cost_per_hour_usd,
    )
    return set(names) - set(before)


def add_to_record(session: Session, wanted: Sequence[Request], incarnation: str) -> None:
    """What is asked for beside the slices that the run has."""
    record = registry.record(session.spec.name) or {}
    names = [name for request in wanted for name in request.names]
    mine = {node: incarnation for request in wanted for node in request.nodes}
    registry.update(
        session.spec.name,
        incarnations={**record.get("incarnations", {}), **mine},
        resources=list(dict.fromkeys([*record.get("resources", ()), *names])),
    )


def filled(request: Request, session: Session, incarnation: str, fill: Fill) -> Request:
    """The request with what is known only now; the same for another launcher of the same record."""
    record = registry.record(session.spec.name) or {}
    label = f"{record.get('asked_in')}-{incarnation}"

    def change(node: dict[str, Any]) -> None:
        node["labels"][LABEL_ATTEMPT] = label
        fill(node, incarnation)

    return dated(request.with_node(change), datetime.now(UTC))


def forget_unmade(session: Session, names: Collection[str], new: Collection[str]) -> None:
    """Take off the record what was refused outright: where creates are forbidden, looks may be too,
    and what never was could never be seen to be gone. What was asked for before may be there.
    """
    left = [name for name in on_record(session) if name not in names or name not in new]
    registry.update(session.spec.name, resources=left)


def on_record(session: Session) -> list[str]:
    """The names of all that may have come of what this run has asked for."""
    return list((registry.record(session.spec.name) or {}).get("resources", ()))


def give_up(session: Session, choice: Choice, part: Collection[int] | None = None) -> None:
    """Delete what was refused or lost, whole: a part of it would be billed, or granted late.

    Raises Interrupted; what is left then is on record.
    """
    record = registry.record(session.spec.name)
    assert record is not None  # written before the first call
    if part is not None:
        remove(session, choice.requests_of(part).values(), session.interrupt.pause)
        return
    if record["resources"]:
        removal.delete_resources(record, session.provider.get(), session.interrupt.pause)
    registry.update(session.spec.name, offer=None, nodes=[], resources=[])


def remove(session: Session, unwanted: Iterable[Request], pause: Pause = time.sleep) -> None:
    """Delete what comes of these requests; the record names it until it is gone."""
    delete(session, [name for request in unwanted for name in request.names], pause)


def drop_others(session: Session, choice: Choice, pause: Pause | None = None) -> None:
    """Delete what is on record beside a choice: spare slices, and those of a probe.

    Raises Interrupted, unless given another `pause`; what is left then is on record.
    """
    mine = {name for request in choice.requests for name in request.names}
    others = [name for name in on_record(session) if name not in mine]
    delete(session, others, pause or session.interrupt.pause)


def delete(session: Session, names: Collection[str], pause: Pause = time.sleep) -> None:
    """Those of the names that are on record: of others there is nothing."""
    record = registry.record(session.spec.name) or {}
    if there := [name for name in record.get("resources", ()) if name in names]:
        removal.delete_all(session.provider.get(), there, removal.labels_of(record), pause)
        left = [name for name in on_record(session) if name not in there]
        registry.update(session.spec.name, resources=left)


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
    provider = session.provider.get()
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
