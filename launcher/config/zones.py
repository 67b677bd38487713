"""`cluster.zone`: which zones a configuration means."""

from __future__ import annotations

from launcher.accelerators import Accelerator
from launcher.config.values import as_list

ANY = "any"


def chosen_zones(given: str | list[str] | None, accelerator: Accelerator) -> list[str]:
    """The zones to try, in order; `any` is every zone that offers the type, null the first."""
    if given is None:
        return list(accelerator.zones[:1])
    named = [accelerator.zones if zone == ANY else (zone,) for zone in as_list(given)]
    return list(dict.fromkeys(zone for zones in named for zone in zones))
