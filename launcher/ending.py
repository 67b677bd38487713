"""Ends runs that somebody may still supervise, and removes what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from launcher import registry
from launcher.errors import Interrupted, LauncherError, ProvisioningError
from launcher.providers import Pause

CANCEL_SECONDS = 120.0
Tell = Callable[[str], None]


def every(*acts: Callable[[], None]) -> None:
    """All of them, whatever happens to one: what is left costs. Raises ProvisioningError with every
    failure, and Interrupted at once.
    """
    failures = []
    for act in acts:
        try:
            act()
        except Interrupted:
            raise
        except LauncherError as error:
            failures.append(str(error))
    if failures:
        raise ProvisioningError("\n".join(failures))


def each(names: Iterable[str], act: Callable[[str], None]) -> None:
    """Act on all of these, as `every`; failures are told with the name."""

    def named(name: str) -> None:
        try:
            act(name)
        except Interrupted:
            raise
        except LauncherError as error:
            raise ProvisioningError(f"{name}: {error}") from error

    every(*(partial(named, name) for name in names))


def end(
    name: str, tell: Tell, pause: Pause = time.sleep, *, for_good: Collection[str] = ()
) -> None:
    """Stop the supervisor of a run, if it has one, and remove what is left of the run.

    Runs that are to end `for_good` are given up even where their coordinator does not answer.
    `pause` may raise to end the wait.
    """
    record = registry.record(name)
    if record is None:
        tell(f"{name}: nothing is up under this name")
        return
    if registry.is_alive(record["supervisor"]) and record["supervisor"]["pid"] != os.getpid():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(record["supervisor"]["pid"], signal.SIGTERM)
            os.kill(record["supervisor"]["pid"], signal.SIGCONT)  # one that Ctrl-Z has stopped
    late = f"{name} did not stop in {CANCEL_SECONDS:g} s"
    with registry.lock(f"run-{name}", late, CANCEL_SECONDS, pause):
        record = registry.record(name)
        remove(name, record, tell, pause, for_good=for_good)


def remove(
    name: str,
    record: Mapping[str, Any] | None,
    tell: Tell,
    pause: Pause,
    *,
    for_good: Collection[str] = (),
) -> None:
    """What is left of a run whose lock is held, wherever it is supervised."""
    if record is None or not record.get("remote"):
        clear(name, tell, pause)
        return
    from launcher.remote import ending

    ending.end(name, record, tell, pause, for_good=for_good)


def clear(name: str, tell: Tell, pause: Pause) -> None:
    """Remove what is left of a run whose lock is held."""
    from launcher.provisioning import removal
    from launcher.session import LazyProvider
    from launcher.spec import ProviderSpec

    if record := registry.record(name):
        spec = ProviderSpec(**record["provider"])
        with contextlib.closing(LazyProvider(spec)) as provider:
            removal.take_down(record, provider.get, pause)
    tell(f"{name}: nothing is left")
