"""Everything that one emulator holds: what the answers to calls work on."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.emulator.calls import Calls
from launcher.emulator.compute.firewalls import Firewalls
from launcher.emulator.compute.instances import Instances
from launcher.emulator.project.projects import Projects
from launcher.emulator.tpu.fleet import Fleet


@dataclass(frozen=True, slots=True)
class World:
    """The state of each API, and the way of a call. `rest` is the URL of the REST front."""

    fleet: Fleet
    instances: Instances
    firewalls: Firewalls
    projects: Projects
    calls: Calls
    rest: str

    @property
    def in_use(self) -> bool:
        """Whether anything exists that a user would have to delete, and is billed for."""
        return self.fleet.in_use or bool(self.instances.all)
