"""`down` and `cancel`: end runs and remove what is left of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from launcher import registry
from launcher.ending import each, end, every
from launcher.errors import ConfigError
from launcher.interrupt import interruptible
from launcher.providers import Pause
from launcher.record import runs_folder
from launcher.verbs import Arguments


def down(arguments: Arguments) -> int:
    names = list(arguments.names)
    if "--all" in arguments.flags:
        names = [record["name"] for record in registry.records()]
    elif not names:
        raise ConfigError("down needs a name, or --all; `python -m launcher status` lists them")
    vms = coordinator_names()
    require_known(set(names) - vms)
    runs = [name for name in names if name not in vms or registry.record(name)]
    served = None if "--all" in arguments.flags else names
    with interruptible() as pause:
        ended = partial(end, tell=print, pause=pause, for_good=frozenset(runs))
        every(partial(each, runs, ended), partial(release_coordinators, served, pause))
    if not names and not vms:
        print("nothing is up")
    return 0


def coordinator_names() -> set[str]:
    """Of the VMs on record."""
    if not (registry.home() / "coordinators").is_dir():
        return set()
    from launcher.remote.vm import on_record

    return {vm.name for vm in on_record()}


def release_coordinators(runs: Collection[str] | None, pause: Pause) -> None:
    """Of these runs, or all: VMs that serve no other run go."""
    if (registry.home() / "coordinators").is_dir():
        from launcher.remote.ending import release

        release(runs, print, pause)


def cancel(arguments: Arguments) -> int:
    if not arguments.names:
        raise ConfigError("cancel needs a name; `python -m launcher status` lists them")
    require_known(arguments.names)
    with interruptible() as pause:
        each(arguments.names, partial(end, tell=print, pause=pause))
    return 0


def require_known(names: Iterable[str]) -> None:
    """A misspelt name must not look as if it had been taken down."""
    unknown = [n for n in names if not registry.record(n) and not (runs_folder() / n).is_dir()]
    if unknown:
        known = "`python -m launcher status` lists them"
        raise ConfigError(f"no run of the name {', '.join(unknown)}; {known}")
