"""How the processes of an attempt find each other: the variables for it. Pure.

`torchrun` is known from the plan on; a `Meeting` has what is new in each attempt. No port is used
twice: a process of an earlier attempt that lives on somewhere meets nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.hosts.member import Place
from launcher.ranks import chips, megascale

if TYPE_CHECKING:
    from launcher.plan import Process

_JAX, _TORCH, _PROCESSES = 0, 1, 2  # where the ports of a host begin


def ports_of_host(processes: int) -> int:
    """How many free ports a host needs: for JAX, for torch, and two for each process."""
    return _PROCESSES + 2 * processes


def torchrun(run: str, rank: int, ranks: int, index: int, per_host: int) -> dict[str, str]:
    """What a process that torchrun starts would find.

    PyTorch/XLA takes the run's id as the sign that there is a process for each chip already:
    `torch_xla.launch(f)` then calls f, and the init method `xla://` sets this process's chip up.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(per_host),
        "PJRT_LOCAL_PROCESS_RANK": str(index),
        "PJRT_LOCAL_PROCESS_COUNT": str(per_host),
        "TORCHELASTIC_RUN_ID": run,
    }


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where one attempt meets: the address of each host, `ports_of_host` free ports there, and the
    name of its slice.
    """

    addresses: Mapping[Place, str]
    ports: Mapping[Place, Sequence[int]]
    nodes: Mapping[Place, str]

    @property
    def _first(self) -> Place:
        return min(self.addresses)

    @property
    def coordinator(self) -> tuple[str, int]:
        """Where JAX's processes meet, in the first of them."""
        return self.addresses[self._first], self.ports[self._first][_JAX]

    @property
    def _slices(self) -> int:
        return len({slice_ for slice_, _ in self.addresses})

    def env(self, process: Process) -> dict[str, str]:
        """What a plain `jax.distributed.initialize()`, torch.distributed and libtpu read."""
        hosts = self._hosts(process.slice)
        return {
            "TPU_WORKER_HOSTNAMES": ",".join(self.addresses[place] for place in hosts),
            "LAUNCHER_SLICE_NAME": self.nodes[process.place],
            "JAX_COORDINATOR_PORT": str(self.coordinator[1]),
            "MASTER_ADDR": self.addresses[self._first],
            "MASTER_PORT": str(self.ports[self._first][_TORCH]),
            **self._megascale(process),
            **(self._of_chips(process, hosts) if process.chips else {}),
        }

    def _hosts(self, slice_: int) -> list[Place]:
        return sorted(place for place in self.addresses if place[0] == slice_)

    def _own_ports(self, place: Place) -> Sequence[int]:
        """Two for each process, those of libtpu first."""
        return self.ports[place][_PROCESSES:]

    def _of_chips(self, process: Process, hosts: Sequence[Place]) -> dict[str, str]:
        count = len(self._own_ports(process.place)) // 2
        listening = [self._own_ports(place)[:count] for place in hosts]
        names = [self.addresses[place] for place in hosts]
        return {
            "TPU_PROCESS_ADDRESSES": chips.meeting(names, listening),
            "TPU_PROCESS_PORT": str(self._own_ports(process.place)[process.index]),
        }

    def _megascale(self, process: Process) -> dict[str, str]:
        """Always set, empty for one slice: JAX asks a metadata server for those that are absent.

        Processes that share a host each need a port of their own.
        """
        if self._slices == 1:
            return dict.fromkeys(megascale.KEYS, "")
        own, first = self._own_ports(process.place), self._own_ports(self._first)
        return {
            megascale.COORDINATOR: f"{self.addresses[self._first]}:{first[len(first) // 2]}",
            megascale.COUNT: str(self._slices),
            megascale.INDEX: str(process.slice),
            megascale.PORT: str(own[len(own) // 2 + process.index]),
        }
