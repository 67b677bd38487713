"""What is said to be running, so that another supervisor can go on with it after a death."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from launcher import registry


class UnderWay(Protocol):
    """The attempt that runs on the hosts: its number, key and program (`supervise.run_gang`)."""

    @property
    def left_behind(self) -> bool:
        """Whether an invocation that has not come to its end was here before."""
        ...

    def read(self) -> Mapping[str, Any] | None: ...

    def write(self, attempt: Mapping[str, Any] | None) -> None: ...


@dataclass(frozen=True, slots=True)
class OnRecord:
    """Of a run: a field of its record, which also names the hosts."""

    name: str

    @property
    def left_behind(self) -> bool:
        return registry.record(self.name) is not None

    def read(self) -> Mapping[str, Any] | None:
        record = registry.record(self.name)
        return record["attempt"] if record else None

    def write(self, attempt: Mapping[str, Any] | None) -> None:
        registry.update(self.name, attempt=attempt)
