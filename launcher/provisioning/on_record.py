"""What is on record of a run's slices: written before they are asked for, and told from others.

A record names the offer that is being asked for and the full names of all that may come of it, so
that after a death at any instant the same command, `down` or `gc` finds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.errors import ConfigError
from launcher.plan import Choice, part_of
from launcher.provisioning.requests import Request
from launcher.session import Session
from launcher.spec import Spec

UNSET = "unset"  # of a setting


def recorded_choice(session: Session, record: Mapping[str, Any]) -> Choice | None:
    """The choice that a record was made for; None if none of them was asked for yet.

    What is up under a name is adopted or removed only by a run that might have asked for the same.
    """
    name = session.spec.name
    if record["provider"] != provider_of(session):
        raise ConfigError(taken(name, f"from another provider ({record['provider']})"))
    if record["offer"] is None:
        return None
    for choice in session.plan.choices:
        if record["offer"] == offer_of(choice) and (found := same(session, choice, record)):
            require_same_settings(session.spec, record, found)
            return found
    offer = record["offer"]
    what = f"{len(record['nodes'])} x {offer['accelerator_type']} {offer['capacity']}"
    raise ConfigError(taken(name, f"as {what} in {offer['zone']}, not as what is asked for"))


def same(session: Session, choice: Choice, record: Mapping[str, Any]) -> Choice | None:
    """The choice, if its nodes are those on record, or a part of it that an elastic run has."""
    names = list(choice.node_names)
    if record["nodes"] == names:
        return choice
    mode = session.spec.mode
    if not (mode.is_elastic and set(record["nodes"]) <= set(names)):
        return None
    nodes = [name.rpartition("/")[2] for name in record["nodes"]]
    return part_of(session.spec, choice, nodes) if len(nodes) in mode.sizes else None


def require_same_settings(spec: Spec, record: Mapping[str, Any], choice: Choice) -> None:
    """Raises ConfigError where what is on record was asked for with other settings: it has them
    still, and would go on with them without a word.
    """
    now, then = settings_of(spec, choice), record.get("settings")
    if then is None or then == now:
        return
    changed = sorted(key for key in {*now, *then} if now.get(key) != then.get(key))
    what = ", ".join(f"{k}: {then.get(k, UNSET)}, not {now.get(k, UNSET)}" for k in changed)
    raise ConfigError(taken(spec.name, f"with other settings than what is asked for ({what})"))


def settings_of(spec: Spec, choice: Choice) -> dict[str, Any]:
    """Those that all slices of a choice share, by dotted keys, as a record holds them: of the
    requests, and those of the user's own that take effect when a host boots.
    """
    asked = json.loads(json.dumps(choice.requests[0].settings))
    machine = spec.cluster.machine
    own = {"cluster.env": dict(machine.env), "cluster.startup": [*machine.startup]}
    found: dict[str, Any] = {}
    for key, value in {**asked, **own}.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{name}".rstrip("."): each for name, each in inner.items()}
    return found


def require_same_folder(session: Session, record: Mapping[str, Any]) -> None:
    """Raises ConfigError where the run on record has its folder elsewhere, and has not come to its
    end: its metrics, its charges and its checkpoints are there, and would be missed here. Slices
    that stay and that nothing runs on are of use from any folder.
    """
    theirs, ours = Path(record["folder"]), session.folder.path
    is_idle = record["stays"] and record["attempt"] is None
    if is_idle or not theirs.is_dir() or theirs.resolve() == ours.resolve():
        return
    where = f"with its run folder {theirs}, and goes on only where that is"
    raise ConfigError(taken(session.spec.name, where))


def taken(name: str, how: str) -> str:
    down = f"or `python -m launcher down {name}` first"
    return f"{name} is up {how}: choose another name=, {down}"


def intent(session: Session, head_id: str, stays: bool) -> dict[str, Any]:
    """What is put on record before anything exists."""
    return {
        "name": session.spec.name,
        "owner": session.owner,
        "folder": str(session.folder.path),
        "head": head_id,
        "stays": stays,
        "incarnations": {},  # of each node's hosts, by node id
        "attempt": None,  # what runs on the hosts: its number and key
        "joined": None,  # when all hosts of these were first in the cluster
        "asked_in": None,  # the attempt that the slices were first asked for
        "offer": None,  # what is being asked for, and what comes of it
        "settings": None,  # of the requests: what must not change while it is up
        "nodes": [],
        "resources": [],
        "provider": provider_of(session),
        "supervisor": registry.this_process(),
        "created": time.time(),
        "cost_per_hour_usd": None,
    }


def provider_of(session: Session) -> dict[str, Any]:
    provider = session.spec.provider
    return {
        "kind": provider.kind,
        "project": provider.project,
        "options": {k: v for k, v in provider.options.items() if k != "rules"},
    }


def offer_of(choice: Choice) -> dict[str, str]:
    offer = choice.offer
    return {
        "accelerator_type": offer.accelerator.accelerator_type,
        "capacity": offer.capacity,
        "zone": offer.zone,
    }


def put(
    session: Session, choice: Choice, wanted: Collection[Request], incarnation: str
) -> set[str]:
    """The names that were not there before. With nothing `wanted` what is held goes on as it is."""
    names = [name for request in choice.requests for name in request.names]
    mine = {node: incarnation for request in wanted for node in request.nodes}
    before: list[str] = []

    def asked(record: Mapping[str, Any]) -> dict[str, Any]:
        before.extend(record["resources"])
        others = record["incarnations"] if len(wanted) < len(choice.requests) else {}
        return {
            "incarnations": {**others, **mine},
            "attempt": None,
            "joined": None if wanted else record.get("joined", True),
            "asked_in": session.folder.attempt if wanted else record.get("asked_in"),
            "offer": offer_of(choice),
            "settings": settings_of(session.spec, choice),
            "nodes": list(choice.node_names),
            "resources": list(dict.fromkeys([*names, *before])),
            "cost_per_hour_usd": choice.cost_per_hour_usd,
        }

    registry.change(session.spec.name, asked)
    return set(names) - set(before)


def add(session: Session, wanted: Sequence[Request], incarnation: str) -> None:
    """What is asked for beside the slices that the run has."""
    names = [name for request in wanted for name in request.names]
    mine = {node: incarnation for request in wanted for node in request.nodes}

    def asked(record: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "incarnations": {**record["incarnations"], **mine},
            "resources": list(dict.fromkeys([*record["resources"], *names])),
        }

    registry.change(session.spec.name, asked)


def forget(session: Session, names: Collection[str]) -> None:
    """Take off the record what is known to be gone."""

    def left(record: Mapping[str, Any]) -> dict[str, Any]:
        return {"resources": [name for name in record["resources"] if name not in names]}

    registry.change(session.spec.name, left)


def forget_unmade(session: Session, names: Collection[str], new: Collection[str]) -> None:
    """Take off the record what was refused outright: where creates are forbidden, looks may be too,
    and what never was could never be seen to be gone. What was asked for before may be there.
    """
    forget(session, {*names} & {*new})


def resources(session: Session) -> list[str]:
    """The names of all that may have come of what this run has asked for."""
    return list((registry.record(session.spec.name) or {}).get("resources", ()))
