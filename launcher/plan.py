"""Spec → Plan: the literal API requests, and the argv and environment of each process. Pure."""

from __future__ import annotations

import csv
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.accelerators import Accelerator
from launcher.spec import Spec
from launcher.startup import host_config, startup_script

LABEL_RUN, LABEL_OWNER, LABEL_SLICE = "launcher-run", "launcher-owner", "launcher-slice"
AT_RUN_TIME = "<known when the coordinator is up>"
PRICES = Path(__file__).with_name("prices.csv")


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One literal CreateNode call: `body` is a `google.cloud.tpu.v2.Node` in field names."""

    parent: str
    node_id: str
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.parent}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True)
class Process:
    """One rank: where it runs, and what is known of it before the hosts are there.

    `index` counts the processes of its host; `rank` all of them, by (slice, worker id, index).
    """

    slice: int
    host: int
    index: int
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def place(self) -> tuple[int, int]:
        return self.slice, self.host


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run will do, as data."""

    name: str
    hosts: int
    chips: int
    requests: tuple[NodeRequest, ...]
    processes: tuple[Process, ...]
    cost_per_hour_usd: float | None

    def to_json(self) -> dict[str, Any]:
        """The form that `plan --json` prints and `plan.json` holds."""
        return {
            "name": self.name,
            "hosts": self.hosts,
            "chips": self.chips,
            "requests": [
                {"method": "CreateNode", "parent": r.parent, "node_id": r.node_id, "body": r.body}
                for r in self.requests
            ],
            "processes": [asdict(process) for process in self.processes],
            "cost_per_hour_usd": self.cost_per_hour_usd,
        }


def make_plan(spec: Spec, owner: str, project: str) -> Plan:
    """`owner` and `project` are valid label and project ids; no call is made."""
    accelerator = spec.cluster.accelerator
    return Plan(
        name=spec.name,
        hosts=accelerator.hosts * spec.mode.slices,
        chips=accelerator.chips * spec.mode.slices,
        requests=tuple(node_request(spec, i, owner, project) for i in range(spec.mode.slices)),
        processes=tuple(plan_processes(spec)),
        cost_per_hour_usd=cost_per_hour(accelerator, spec.cluster.capacity, spec.mode.slices),
    )


def node_id(name: str, index: int) -> str:
    return f"{name}-s{index}"


def node_request(spec: Spec, index: int, owner: str, project: str) -> NodeRequest:
    cluster = spec.cluster
    requirements = (*spec.mode.requirements, *(spec.workload.requirements if spec.workload else ()))
    config = host_config(
        cluster.accelerator.chips_per_host,
        cluster.join_timeout,
        requirements,
        platform.python_version(),
    )
    labels = {LABEL_RUN: spec.name, LABEL_OWNER: owner, LABEL_SLICE: str(index)}
    body: dict[str, Any] = {
        "accelerator_type": cluster.accelerator.accelerator_type,
        "runtime_version": cluster.runtime_version,
        "labels": {**cluster.labels, **labels},
        "metadata": {
            "startup-script": startup_script(config, requirements),
            "launcher-join": AT_RUN_TIME,
            "launcher-token": AT_RUN_TIME,
        },
    }
    if scheduling := SCHEDULING[cluster.capacity]:
        body["scheduling_config"] = scheduling
    parent = f"projects/{project}/locations/{cluster.zones[0]}"
    return NodeRequest(parent, node_id(spec.name, index), body)


SCHEDULING: Mapping[str, Mapping[str, bool]] = {
    "on-demand": {},
    "spot": {"spot": True},
    "preemptible": {"preemptible": True},
    "reserved": {"reserved": True},
}


def plan_processes(spec: Spec) -> list[Process]:
    """One process per host, in the order of ranks: slice, then worker id."""
    if spec.workload is None:
        return []
    hosts, slices = spec.cluster.accelerator.hosts, spec.mode.slices
    argv = spec.workload.argv("python3")
    return [
        Process(s, h, 0, s * hosts + h, argv, process_env(spec, s, h, s * hosts + h))
        for s in range(slices)
        for h in range(hosts)
    ]


def process_env(spec: Spec, index: int, host: int, rank: int) -> dict[str, str]:
    """What is the same in every attempt; `fanout` adds addresses, ports and the attempt."""
    assert spec.workload is not None
    own = {
        "LAUNCHER_RUN": spec.name,
        "LAUNCHER_SLICE": str(index),
        "LAUNCHER_HOST": str(host),
        "LAUNCHER_PROCESS_ID": str(rank),
        "LAUNCHER_NUM_PROCESSES": str(spec.cluster.accelerator.hosts * spec.mode.slices),
        "TPU_WORKER_ID": str(host),
    }
    shown = {k: v for k, v in spec.workload.env.items() if k not in spec.workload.secret_env}
    return {**own, **shown}


def cost_per_hour(accelerator: Accelerator, capacity: str, slices: int) -> float | None:
    """USD for all slices while READY, at US list prices; None where no price is known."""
    price = prices().get(accelerator.accelerator_type) or prices().get(accelerator.generation)
    price = price or prices().get(accelerator.accelerator_type.partition("-")[0])
    if price is None:
        return None
    column = "spot_usd" if capacity in ("spot", "preemptible") else "on_demand_usd"
    return round(float(price[column]) * accelerator.chips * slices, 4)


@cache
def prices() -> Mapping[str, Mapping[str, str]]:
    """USD per chip-hour by type or generation, from Google's billing catalogue of 2026."""
    with PRICES.open(encoding="utf-8", newline="") as file:
        return {row["accelerator_type"]: row for row in csv.DictReader(file)}
