"""Takes away what a record names, and whatever else carries the run's labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher import coordinator, registry
from launcher.deadline import Deadline
from launcher.errors import ProvisioningError, Unanswered
from launcher.providers import Pause, Provider
from launcher.provisioning.requests import LABEL_MACHINE, LABEL_OWNER, LABEL_RUN, is_queued

DELETE_SECONDS = 600.0
LOOK_SECONDS = 0.02
AGAIN_SECONDS = 1.0  # until another look at a service that does not answer
SWEEPS = 3  # deletions by label before what keeps appearing is reported


def take_down(
    record: Mapping[str, Any], provider: Callable[[], Provider], pause: Pause = time.sleep
) -> None:
    """Remove all that a record names. The record is dropped only when everything is gone.

    `pause` is called all the while, and may raise to end the wait.
    Raises ProvisioningError if something could not be deleted; the record stays for the next try.
    """
    with ThreadPoolExecutor(1) as pool:
        asked = bool(record["resources"])
        deleting = pool.submit(
            lambda: delete_resources(record, provider(), pause) if asked else None
        )
        coordinator.release_head(record["head"], but_for=record["name"])
        while not deleting.done():
            pause(LOOK_SECONDS)
    deleting.result()
    registry.forget(record["name"])


def delete_resources(
    record: Mapping[str, Any], provider: Provider, pause: Pause = time.sleep
) -> None:
    """Delete what the record names, then what a look by label finds besides: a late grant."""
    labels = labels_of(record)
    delete_all(provider, record["resources"], labels, pause)
    for _ in range(SWEEPS):
        left = listed(provider, labels, pause)
        if not left:
            return
        delete_all(provider, left, labels, pause)
    raise ProvisioningError(f"{', '.join(left)} came back after being deleted")


def listed(provider: Provider, labels: Mapping[str, str], pause: Pause) -> list[str]:
    """The names of all that carries the labels. Raises Unanswered after DELETE_SECONDS."""
    late = Deadline(DELETE_SECONDS)
    while True:
        try:
            return [resource.name for resource in provider.list(labels).resources]
        except Unanswered:
            if late.passed:
                raise
            pause(AGAIN_SECONDS)


def labels_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Only what this very run has made, and none of its namesakes on other machines."""
    return {
        LABEL_RUN: record["name"],
        LABEL_OWNER: record["owner"],
        LABEL_MACHINE: registry.machine_id(),
    }


def delete_all(
    provider: Provider,
    names: Iterable[str],
    labels: Mapping[str, str],
    pause: Pause = time.sleep,
) -> None:
    """Queued resources first, with their nodes; then the nodes that are none of theirs.

    A name on record may have been taken by somebody else: what lacks the labels is left alone.
    Raises ProvisioningError with every failure, after all have been tried; what is none, such as
    an interrupt or a fault of ours, as it is.
    """
    names = list(dict.fromkeys(names))
    queued = [name for name in names if is_queued(name)]
    nodes = [name for name in names if not is_queued(name)]
    errors: list[BaseException] = []
    for group in (queued, nodes):
        with ThreadPoolExecutor(8) as pool:
            deletions = [
                pool.submit(provider.delete, name, labels, DELETE_SECONDS, pause) for name in group
            ]
        errors += [error for deletion in deletions if (error := deletion.exception())]
    for error in errors:
        if not isinstance(error, ProvisioningError):
            raise error
    if errors:
        raise ProvisioningError("; ".join(dict.fromkeys(map(str, errors))))
