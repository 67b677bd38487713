"""`down` and `cancel`: end runs and remove what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal

from launcher import registry
from launcher.errors import ConfigError
from launcher.verbs import Arguments

CANCEL_SECONDS = 120.0


def down(arguments: Arguments) -> int:
    names = list(arguments.names)
    if "--all" in arguments.flags:
        names = [record["name"] for record in registry.records()]
    if not names and "--all" not in arguments.flags:
        raise ConfigError("down needs a name, or --all; `python -m launcher status` lists them")
    for name in names:
        end(name)
    return 0


def cancel(arguments: Arguments) -> int:
    if not arguments.names:
        raise ConfigError("cancel needs a name; `python -m launcher status` lists them")
    for name in arguments.names:
        end(name)
    return 0


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
    with registry.lock(
        f"run-{name}", f"{name} did not stop in {CANCEL_SECONDS:g} s", CANCEL_SECONDS
    ):
        if record := registry.record(name):
            spec = ProviderSpec(**record["provider"])
            with contextlib.closing(LazyProvider(spec)) as provider:
                provision.take_down(record, provider.get)
    print(f"{name}: nothing is left")
