"""`down` and `cancel`: end runs and remove what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from launcher import registry
from launcher.errors import ConfigError, LauncherError, ProvisioningError
from launcher.verbs import Arguments

CANCEL_SECONDS = 120.0


def down(arguments: Arguments) -> int:
    names = list(arguments.names)
    if "--all" in arguments.flags:
        names = [record["name"] for record in registry.records()]
        if not names:
            print("nothing is up")
    elif not names:
        raise ConfigError("down needs a name, or --all; `python -m launcher status` lists them")
    require_known(names)
    each(names, end)
    return 0


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


def end(name: str) -> None:
    """Stop the supervisor of a run, if it has one, and remove what is left of the run."""
    from launcher import provision
    from launcher.session import LazyProvider
    from launcher.spec import ProviderSpec

    record = registry.record(name)
    if record is None:
        print(f"{name}: nothing is up under this name")
        return
    if registry.is_alive(record["supervisor"]) and record["supervisor"]["pid"] != os.getpid():
        os.kill(record["supervisor"]["pid"], signal.SIGTERM)
    late = f"{name} did not stop in {CANCEL_SECONDS:g} s"
    with registry.lock(f"run-{name}", late, CANCEL_SECONDS):
        if record := registry.record(name):
            spec = ProviderSpec(**record["provider"])
            with contextlib.closing(LazyProvider(spec)) as provider:
                provision.take_down(record, provider.get)
    print(f"{name}: nothing is left")
