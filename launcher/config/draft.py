"""A configuration that fits the schemas, on its way to a Spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.origins import Key, Origins
from launcher.config.resolve import takes_environment
from launcher.errors import Problem


@dataclass(frozen=True, slots=True)
class Draft:
    """`plain` is resolved, `written` is not; `shipped` holds the launcher's conf/ and workloads/.

    Relative paths are those of `cwd`, where the user stands, except in the files that ship.
    """

    plain: Mapping[str, Any]
    written: Mapping[str, Any]
    origins: Origins
    cwd: Path
    shipped: Path

    def __getitem__(self, key: str) -> Any:
        """The value of a dotted key; KeyError where it was left out because of a problem."""
        value: Any = self.plain
        for part in key.split("."):
            value = value[part]
        return value

    def show(self, key: Key, text: str) -> str:
        """`text` for a message: as written where it came from an environment variable."""
        origin = self.origins.get(key)
        secret = takes_environment(self.written, key)
        return (origin and origin.text) or "the value" if secret else text

    def is_shipped(self, key: Key) -> bool:
        """Whether a file that ships set this key last."""
        origin = self.origins.get(key)
        return bool(origin and origin.file and origin.file.is_relative_to(self.shipped / "conf"))


Check = Callable[[Draft], Iterator[Problem]]
"""Finds what is wrong with some keys of a configuration that fits the schemas."""
