"""Deletes slices that a run wants no more: refused or lost ones, and those beside its choice.

What is deleted is on record until it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from launcher import registry
from launcher.plan import Choice
from launcher.providers import Pause
from launcher.provisioning import on_record, removal
from launcher.provisioning.requests import Request
from launcher.session import Session


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
    on_record.forget(session, record["resources"])
    registry.update(session.spec.name, offer=None, nodes=[])


def remove(session: Session, requests: Iterable[Request], pause: Pause = time.sleep) -> None:
    """Delete what comes of these requests; the record names it until it is gone."""
    delete(session, [name for request in requests for name in request.names], pause)


def drop_others(session: Session, choice: Choice, pause: Pause | None = None) -> None:
    """Delete what is on record beside a choice: spare slices, and those of a probe.

    Raises Interrupted, unless given another `pause`; what is left then is on record.
    """
    mine = {name for request in choice.requests for name in request.names}
    others = [name for name in on_record.resources(session) if name not in mine]
    delete(session, others, pause or session.interrupt.pause)


def delete(session: Session, names: Collection[str], pause: Pause = time.sleep) -> None:
    """Those of the names that are on record: of others there is nothing."""
    record = registry.record(session.spec.name) or {}
    if there := [name for name in record.get("resources", ()) if name in names]:
        removal.delete_all(session.provider.get(), there, removal.labels_of(record), pause)
        on_record.forget(session, there)
