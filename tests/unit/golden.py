"""The golden file of requests: `python -m tests.unit.golden` writes it anew, to be read in a diff.

Every capacity is planned for every accelerator type. The bodies of one capacity differ in three
values alone, so that the file holds one body a capacity with placeholders, and one line a type
with the values; putting them together gives back each request exactly. What other keys of the
configuration add is in bodies of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.accelerators import all_types
from launcher.compose import compose
from launcher.plan import Choice, make_plan
from launcher.provisioning.capacity import CAPACITIES
from launcher.provisioning.requests import Identity

FILE = Path(__file__).with_name("data") / "requests.json"
SCRIPT = "(the startup script, which has a golden file of its own)"
FLEX = ("cluster.max_run_time=12h",)
MACHINE = (
    "cluster.network=projects/p/global/networks/n",
    "cluster.subnetwork=projects/p/regions/us-central1/subnetworks/s",
    "cluster.external_ips=true",
    "cluster.tags=[ray,ssh]",
    "cluster.labels.team=vision",
    "cluster.service_account=trainer@p.iam.gserviceaccount.com",
    "cluster.scopes=['https://www.googleapis.com/auth/devstorage.read_write']",
    "cluster.data_disks=[{source:projects/p/zones/us-central1-b/disks/d,mode:READ_ONLY}]",
    "cluster.secure_boot=true",
)
CASES: Mapping[str, tuple[str, ...]] = {
    "two slices": ("mode.slices=2",),
    "every key of the machine": MACHINE,
    "a longer wait": ("cluster.queue_timeout=300h",),
    "granted after two hours": ("cluster.valid_after=2h", "cluster.queue_timeout=9h"),
    "granted within a quarter": ("cluster.valid_until=900s",),
    "granted on one day": (
        "cluster.valid_after=2099-12-01T08:00:00Z",
        "cluster.valid_until=2099-12-02T08:00:00+01:00",
        "cluster.queue_timeout=9999999h",
    ),
    "from a reservation by name": ("cluster.reservation=mine",),
}
ONLY_QUEUED = {name for name in CASES if name.startswith("granted")}


def choices(types: str, capacities: str, *overrides: str) -> tuple[Choice, ...]:
    """The plan's choices; the emulator offers all types, tpu7x among them."""
    words = ("name=t", f"cluster.accelerator_type=[{types}]", f"cluster.capacity=[{capacities}]")
    flex = FLEX if "flex-start" in capacities else ()
    spec = compose([*words, *flex, *overrides], cwd=Path.cwd(), require_workload=False)
    return make_plan(spec, Identity("me", "0123456789ab", "some-project")).choices


def every_choice() -> tuple[Choice, ...]:
    return choices(",".join(all_types()), ",".join(CAPACITIES))


def case_choices(name: str) -> tuple[Choice, ...]:
    """One type, in every capacity that the case is for."""
    queued = [each for each, capacity in CAPACITIES.items() if capacity.queued]
    asked = {"from a reservation by name": ["queued-reserved", "queued-spot"]}
    capacities = asked.get(name, queued if name in ONLY_QUEUED else list(CAPACITIES))
    return choices("v6e-16", ",".join(capacities), *CASES[name])


def literal(choice: Choice) -> list[dict[str, Any]]:
    """The requests as `plan --json` prints them, the script left out."""

    def leave_out(node: dict[str, Any]) -> None:
        node["metadata"]["startup-script"] = SCRIPT

    return [request.with_node(leave_out).to_json() for request in choice.requests]


def values_of(choice: Choice) -> dict[str, str]:
    node = choice.requests[0].node
    return {
        "type": choice.offer.accelerator.accelerator_type,
        "runtime": node.get("runtime_version") or node["runtimeVersion"],
        "zone": choice.requests[0].parent.rpartition("/")[2],
    }


def replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """A copy in which each text that stands alone, or ends a path, is replaced."""
    if isinstance(value, dict):
        return {key: replaced(inner, texts) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, texts) for inner in value]
    if not isinstance(value, str):
        return value
    before, slash, last = value.rpartition("/")
    return before + slash + texts[last] if last in texts else value


def with_placeholders(choice: Choice) -> Any:
    return replaced(literal(choice), {text: f"<{key}>" for key, text in values_of(choice).items()})


def without_placeholders(template: Any, values: Mapping[str, str]) -> Any:
    return replaced(template, {f"<{key}>": text for key, text in values.items()})


def made() -> dict[str, Any]:
    every = every_choice()
    templates = {choice.offer.capacity: with_placeholders(choice) for choice in every}
    types = {values["type"]: values for values in map(values_of, every)}
    cases = {
        f"{name}, {choice.offer.capacity}": literal(choice)
        for name in CASES
        for choice in case_choices(name)
    }
    return {"types": types, "every type": templates, "v6e-16": cases}


def lines(golden: Mapping[str, Any]) -> Iterator[str]:
    """As JSON, a type in one line."""
    yield "{"
    for key in ("types", "every type", "v6e-16"):
        yield f'"{key}": {{'
        indent = None if key == "types" else 1
        entries = [f'"{n}": {json.dumps(v, indent=indent)}' for n, v in golden[key].items()]
        yield ",\n".join(entries)
        yield "}" if key == "v6e-16" else "},"
    yield "}"


if __name__ == "__main__":
    FILE.write_text("\n".join(lines(made())) + "\n", encoding="utf-8")
    print(f"written: {FILE}; read `git diff {FILE}` before it is kept")
