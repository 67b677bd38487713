"""`down` and `cancel`: end runs and remove what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from launcher import registry
from launcher.errors import ConfigError, LauncherError, ProvisioningError
from launcher.verbs import Arguments

CANCEL_SECONDS = 120.0


def down(arguments: Arguments) -> int:
    names = list(arguments.names)
    if "--all" in arguments.flags:
        names = [record["name"] for record in registry.records()]
    elif not names:
        raise ConfigError("down needs a name, or --all; `python -m launcher status` lists them")
    vms = coordinator_names()
    require_known(set(names) - vms)
    each([name for name in names if name not in vms], partial(end, for_good=True))
    released = release_coordinators(None if "--all" in arguments.flags else names)
    if not names and not released:
        print("nothing is up")
    return 0


def coordinator_names() -> set[str]:
    """Of the VMs on record."""
    if not (registry.home() / "coordinators").is_dir():
        return set()
    from launcher.remote.vm import on_record

    return {vm.name for vm in on_record()}


def release_coordinators(runs: Collection[str] | None) -> int:
    """Of these runs, or all: VMs that serve no other run go; how many there were."""
    if not (registry.home() / "coordinators").is_dir():
        return 0
    from launcher.remote.runs import release

    done = list(release(runs))
    print("\n".join(done), end="\n" if done else "")
    return len(done)


def cancel(arguments: Arguments) -> int:
    if not arguments.names:
        raise ConfigError("cancel needs a name; `python -m launcher status` lists them")
    require_known(arguments.names)
    each(arguments.names, end)
    return 0


def require_known(names: Iterable[str]) -> None:
    """A misspelt name must not look as if it had been taken down."""
    unknown = [n for n in names if not registry.record(n) and not (Path("runs") / n).is_dir()]
    if unknown:
        known = "`python -m launcher status` lists them"
        raise ConfigError(f"no run of the name {', '.join(unknown)}; {known}")


def each(names: Iterable[str], act: Callable[[str], None]) -> None:
    """Act on all, whatever happens to one. Raises ProvisioningError with every failure."""
    failures = []
    for name in names:
        try:
            act(name)
        except LauncherError as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise ProvisioningError("\n".join(failures))


def end(name: str, *, for_good: bool = False) -> None:
    """Stop the supervisor of a run, if it has one, and remove what is left of the run.

    `for_good` gives up a run whose cluster does not answer.
    """
    record = registry.record(name)
    if record is None:
        print(f"{name}: nothing is up under this name")
        return
    if record.get("remote"):
        from launcher.remote import runs

        runs.end(name, record, for_good=for_good)
        return
    if registry.is_alive(record["supervisor"]) and record["supervisor"]["pid"] != os.getpid():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(record["supervisor"]["pid"], signal.SIGTERM)
    late = f"{name} did not stop in {CANCEL_SECONDS:g} s"
    with registry.lock(f"run-{name}", late, CANCEL_SECONDS):
        clear(name)


def clear(name: str) -> None:
    """Remove what is left of a run whose lock is held."""
    from launcher import removal
    from launcher.session import LazyProvider
    from launcher.spec import ProviderSpec

    if record := registry.record(name):
        spec = ProviderSpec(**record["provider"])
        with contextlib.closing(LazyProvider(spec)) as provider:
            removal.take_down(record, provider.get)
    print(f"{name}: nothing is left")
