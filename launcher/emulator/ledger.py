"""The ledger: everything ever created, what it was billed, and what is still there.

A file beside the emulator, written whole at each change, that outlives it. Of what is gone it keeps
the last KEPT, so that writing stays quick. It holds no metadata values, which may be secrets.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.errors import ProvisioningError

GONE = "DELETED"
"""The state of an entry whose resource does not exist any more; the API has no word for it."""


KEPT = 1000
"""How many resources that are gone stay in the ledger, the latest created."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of resource: the ledger's keys for its list and its type, and what is billed."""

    plural: str
    type_key: str
    billed_state: str | None


KINDS: Mapping[str, Kind] = {
    "node": Kind("nodes", "accelerator_type", "READY"),
    "queued_resource": Kind("queued_resources", "accelerator_type", None),
    "instance": Kind("instances", "machine_type", "RUNNING"),
}


@dataclass(slots=True)
class Entry:
    """One resource's life. Times are seconds since 1970; `ended` is when it ceased to exist.

    `type_` is the accelerator type, or the machine type of an instance. Billing runs only in the
    billed state of its kind, so a preempted node costs nothing and still exists.
    """

    name: str
    zone: str
    type_: str
    created: float
    kind: str = "node"
    ready: float | None = None
    ended: float | None = None
    reason: str = ""
    state: str = "CREATING"
    billed: float = 0.0
    billing_since: float | None = None

    def enter(self, state: str, now: float, reason: str = "") -> None:
        """It is in that state from now on; the first reason given is kept."""
        if self.billing_since is not None:
            self.billed += now - self.billing_since
            self.billing_since = None
        self.state, self.reason = state, self.reason or reason
        if state == KINDS[self.kind].billed_state:
            self.ready = self.ready or now
            self.billing_since = now
        if state == GONE:
            self.ended = now

    def to_json(self, now: float) -> dict[str, Any]:
        running = 0.0 if self.billing_since is None else now - self.billing_since
        return {
            "name": self.name,
            "zone": self.zone,
            KINDS[self.kind].type_key: self.type_,
            "created": _to_text(self.created),
            "ready": _to_text(self.ready),
            "ended": _to_text(self.ended),
            "reason": self.reason,
            "billed_seconds": round(self.billed + running, 3),
            "billing_since": _to_text(self.billing_since),
            "state": self.state,
        }

    @classmethod
    def from_json(cls, kind: str, row: dict[str, Any], written: float) -> Entry:
        since = _to_time(row["billing_since"])
        return cls(
            name=row["name"],
            zone=row["zone"],
            type_=row[KINDS[kind].type_key],
            kind=kind,
            created=_to_time(row["created"]) or written,
            ready=_to_time(row["ready"]),
            ended=_to_time(row["ended"]),
            reason=row["reason"],
            state=row["state"],
            billed=row["billed_seconds"] - (0.0 if since is None else written - since),
            billing_since=since,
        )


class Ledger:
    """All entries, and their file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._entries = _read(path)

    def open(self, name: str, zone: str, type_: str, kind: str = "node") -> Entry:
        """A new resource of one of the KINDS."""
        entry = Entry(name, zone, type_, created=self._clock(), kind=kind)
        gone = sum(entry.ended is not None for entry in self._entries)
        self._entries = [*_without_oldest(self._entries, gone - KEPT), entry]
        self.save()
        return entry

    def enter(self, entry: Entry, state: str, reason: str = "") -> None:
        """Notes a change of state."""
        entry.enter(state, self._clock(), reason)
        self.save()

    def bury(self, died: float) -> None:
        """Ends what an emulator that died at that time left behind: its hosts died with it."""
        for entry in self._entries:
            if entry.ended is None:
                entry.enter(GONE, max(died, entry.created), "emulator died")

    def to_json(self) -> dict[str, Any]:
        now = self._clock()
        return {
            "written": _to_text(now),
            **{kind.plural: self._rows(name, now) for name, kind in KINDS.items()},
            "left": [entry.name for entry in self._entries if entry.ended is None],
        }

    def _rows(self, kind: str, now: float) -> list[dict[str, Any]]:
        return [entry.to_json(now) for entry in self._entries if entry.kind == kind]

    def save(self) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(_lines(self.to_json()))
        os.replace(draft, self._path)


def _without_oldest(entries: Sequence[Entry], surplus: int) -> Iterator[Entry]:
    """The entries but the first ones of what is gone, as many as there are too many."""
    for entry in entries:
        if entry.ended is not None and surplus > 0:
            surplus -= 1
        else:
            yield entry


def _lines(found: dict[str, Any]) -> str:
    """As JSON with a line for each resource: quick to write however long, and still readable."""
    return "{" + ",\n".join(f"{json.dumps(key)}: {_value(found[key])}" for key in found) + "}\n"


def _value(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def _read(path: Path) -> list[Entry]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ProvisioningError(f"{path} is no JSON: {error}; move it away") from error
    written = _to_time(found["written"]) or 0.0
    entries = [
        Entry.from_json(name, row, written)
        for name, kind in KINDS.items()
        for row in found.get(kind.plural, ())
    ]
    return sorted(entries, key=lambda entry: entry.created)


def _to_text(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def _to_time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
