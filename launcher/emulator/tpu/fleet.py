"""Every node, and how each changes state.

A call changes the state at once and leaves the rest to a task of the node, so that all of it runs
in one event loop and nothing needs a lock.

    CREATING → READY            create; or an error in the operation, and the node vanishes
    any → DELETING → gone       delete
    READY → STOPPING → STOPPED → STARTING → READY     single-host nodes only
    READY, CREATING → PREEMPTED; READY → TERMINATED   faults; only a delete frees the name
    READY → REPAIRING → READY   fault

The nodes of a queued resource are made by `queue`, and told to it whenever they change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from grpc import StatusCode

from launcher.accelerators import Accelerator
from launcher.emulator.deeds import Work, act_later, rest
from launcher.emulator.faults import FAULTS, Target
from launcher.emulator.ledger import Ledger
from launcher.emulator.machine import guest
from launcher.emulator.machine.host import Host
from launcher.emulator.rules import Rule, Rules
from launcher.emulator.tpu.checks import check_fields, check_new_node
from launcher.emulator.tpu.errors import (
    ApiError,
    already_exists,
    bad_field,
    bad_request,
    busy,
    injected,
    not_found,
    stockout,
    wrong_state,
)
from launcher.emulator.tpu.names import Place, split
from launcher.emulator.tpu.node import EmulatedNode, Membership
from launcher.emulator.tpu.operations import Operation, Operations
from launcher.emulator.tpu.queued_resources import Queue
from launcher.emulator.tpu.quota import Quota
from launcher.emulator.tpu.wire import NO_EXTRAS, Extras, Health, State, SymptomType, v2
from launcher.errors import ConfigError

Change = Callable[[EmulatedNode, Operation], Work]
UPDATABLE = frozenset(
    {"description", "tags", "labels", "metadata", "network_config.enable_external_ips"}
)
_STATES = frozenset(State.__members__)
_METHODS = {"simulateMaintenanceEvent": "SimulateMaintenanceEvent"}  # of other verbs by rule
_CHANGED = ApiError(StatusCode.ABORTED, "another change of the node ended this operation")
_PREEMPTED_EARLY = bad_request("the node was preempted while it was being created")


class Fleet:
    """All nodes of one emulator, by full name, with their operations, rules and ledger.

    `queue` holds the queued resources.
    """

    def __init__(self, nodes_folder: Path, ledger: Ledger) -> None:
        self.nodes: dict[str, EmulatedNode] = {}
        self.operations = Operations()
        self.rules = Rules()
        self.ledger = ledger
        self.queue = Queue(self)
        self.quota = Quota(self)
        self._nodes_folder = nodes_folder

    @property
    def in_use(self) -> bool:
        """Whether anything exists that a user would have to delete."""
        return bool(self.nodes or self.queue.resources)

    def get(self, name: str) -> EmulatedNode:
        """The node of that full name; ApiError 5 if there is none."""
        split(name, "nodes")
        if name not in self.nodes:
            raise not_found(name)
        return self.nodes[name]

    def find(self, name: str) -> EmulatedNode:
        """The node of that id or full name; ConfigError if there is not exactly one."""
        found = [node for node in self.nodes.values() if name in (node.node_id, node.name)]
        if len(found) != 1:
            names = ", ".join(self.nodes) or "none"
            raise ConfigError(f"{len(found) or 'no'} nodes are named {name!r}; there are: {names}")
        return found[0]

    def create(
        self, place: Place, node_id: str, request: v2.Node, extras: Extras = NO_EXTRAS
    ) -> Operation:
        """Begins to create a node: its hosts boot at once, READY comes when the rules say so."""
        accelerator = check_new_node(place.zone, node_id, request)
        self.refuse_if_taken(place.resource("nodes", node_id))
        self.quota.check_rate(place, node_id)
        self.quota.check(place, (node_id,), accelerator.chips, accelerator, request)
        return self.make(place, node_id, request, accelerator, extras=extras)

    def refuse_if_taken(self, name: str) -> None:
        """Raises ApiError 6 if there is a node of that full name, in whatever state."""
        if name in self.nodes:
            raise already_exists(name)

    def make(
        self,
        place: Place,
        node_id: str,
        request: v2.Node,
        accelerator: Accelerator,
        member: Membership | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> Operation:
        """Begins to create a node that was checked and granted; ApiError 6 if the name is taken."""
        name = place.resource("nodes", node_id)
        self.refuse_if_taken(name)
        node = EmulatedNode(
            place, node_id, request, accelerator, self._nodes_folder, self.ledger, member, extras
        )
        self.nodes[name] = node
        return self._begin(node, "create", self._create)

    async def _create(self, node: EmulatedNode, operation: Operation) -> None:
        if not node.member and self._strike("stockout", node):
            await self._fail(node, operation, stockout(node.place.zone), "stockout")
            return
        for host in node.hosts:
            await host.metadata.start()
        self._boot(node)
        await rest(self._strike("slow-create", node))
        self._ready(node, operation)

    async def _fail(
        self, node: EmulatedNode, operation: Operation, error: ApiError, reason: str = "error"
    ) -> None:
        """Ends an operation in an error; a create that fails leaves no node."""
        if node.message.state == State.CREATING:
            await self._remove(node, reason)
        operation.fail(error)

    def _boot(self, node: EmulatedNode) -> None:
        for host in node.hosts:
            node.spawn(self._boot_host(node, host))

    async def _boot_host(self, node: EmulatedNode, host: Host) -> None:
        worker = host.identity.worker
        if self._strike("never-boots", node, worker=worker):
            return
        await rest(self._strike("slow-boot", node, worker=worker))
        if rule := self._strike("stale-multislice", node, worker=worker):
            node.mislead(worker, rule.slices)
        if rule := self._strike("wrong-metadata", node, worker=worker):
            node.misstate(worker, rule.key, rule.value)
        host.boot(node.script)

    def _ready(self, node: EmulatedNode, operation: Operation | None = None) -> None:
        wrong = self._strike("wrong-endpoints", node)
        node.publish_endpoints(wrong.endpoints if wrong else None)
        node.become(State.READY)
        if operation:
            shown = v2.Node(node.message)
            shown.health = Health.HEALTH_UNSPECIFIED  # comes with the next get
            operation.succeed(shown, node.extras)
        for rule in self._struck(node):
            node.spawn(act_later(self.rules, rule, node.name, partial(self.act, node, rule)))

    def _struck(self, node: EmulatedNode) -> Iterator[Rule]:
        """The rules that strike a node which has become READY: one of a fault, or one a host."""
        whole = (None,)
        workers = {Target.NODE: whole, Target.EITHER: whole, Target.HOST: range(len(node.hosts))}
        for name, fault in FAULTS.items():
            for worker in workers.get(fault.target, ()):
                if rule := self._strike(name, node, worker=worker):
                    yield rule

    def act(self, node: EmulatedNode, rule: Rule) -> Work:
        """What the rule's fault does to a node: checked by the call, done by the coroutine.

        Raises ApiError or ConfigError if the node or the host is in no state for it.
        """
        return _ACTS[rule.fault](self, node, rule)

    def delete(self, name: str) -> Operation:
        """Begins to delete a node in whatever state; it exists until its hosts are gone."""
        node = self.get(name)
        self._refuse_if_deleting(node)
        return self._begin(node, "delete", self._delete, State.DELETING)

    async def _delete(self, node: EmulatedNode, operation: Operation) -> None:
        await rest(self._strike("slow-delete", node))
        await self._remove(node, "deleted")
        operation.succeed()

    async def _remove(self, node: EmulatedNode, reason: str) -> None:
        await node.remove(reason)
        del self.nodes[node.name]
        node.tell()

    def dispose(self, node: EmulatedNode, reason: str) -> None:
        """Begins to delete a node without a call; nothing to do if it is being deleted."""
        if node.message.state != State.DELETING:
            node.interrupt(_CHANGED)
            node.become(State.DELETING)
            node.spawn(self._remove(node, reason))

    def update(self, request: v2.Node, paths: Sequence[str]) -> Operation:
        """Changes the fields that the mask names."""
        node = self.get(request.name)
        self._refuse_unless(node, "update", State.READY, State.STOPPED)
        for path in paths or [""]:
            if path not in UPDATABLE:
                raise bad_field("update_mask", path)
        check_fields(request)
        node.update(request, paths)
        return self._begin(node, "update", self._updated)

    async def _updated(self, node: EmulatedNode, operation: Operation) -> None:
        operation.succeed(node.message)

    def stop(self, name: str) -> Operation:
        """Begins to stop a node of one host; others can only be deleted."""
        node = self.get(name)
        self._refuse_unless(node, "stop", State.READY)
        if len(node.hosts) > 1:
            raise bad_request("stop is not supported for nodes of more than one host")
        return self._begin(node, "stop", self._stop, State.STOPPING)

    async def _stop(self, node: EmulatedNode, operation: Operation) -> None:
        await node.end_hosts()
        node.become(State.STOPPED)
        operation.succeed(node.message)

    def start(self, name: str) -> Operation:
        """Begins to start a stopped node; its startup script runs again."""
        node = self.get(name)
        self._refuse_unless(node, "start", State.STOPPED)
        return self._begin(node, "start", self._start, State.STARTING)

    async def _start(self, node: EmulatedNode, operation: Operation) -> None:
        self._boot(node)
        self._ready(node, operation)

    def preempt(self, node: EmulatedNode, notice: float) -> Work:
        """Takes a node back: `preempted` turns TRUE, and `notice` seconds later its hosts end."""
        self._refuse_unless(node, "preempt", State.READY, State.CREATING)
        node.announce(guest.PREEMPTED, "TRUE")
        return self._lose(node, notice, State.PREEMPTED, _PREEMPTED_EARLY)

    def maintain(self, node: EmulatedNode, notice: float) -> Work:
        """Announces maintenance, and `notice` seconds later ends the hosts: TERMINATED."""
        self._refuse_unless(node, "maintenance", State.READY)
        node.announce(guest.MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
        node.message.health = Health.UNHEALTHY_MAINTENANCE
        return self._lose(node, notice, State.TERMINATED, _CHANGED)

    async def terminate(self, node: EmulatedNode) -> None:
        """Ends the hosts of a node whose time is over."""
        await self._lose(node, 0, State.TERMINATED, _CHANGED)

    def simulate_maintenance(self, name: str) -> Operation:
        """Begins the maintenance that a call asks for, without notice."""
        node = self.get(name)
        self._refuse_unless(node, "simulateMaintenanceEvent", State.READY)
        return self._begin(node, "simulateMaintenanceEvent", self._simulate)

    async def _simulate(self, node: EmulatedNode, operation: Operation) -> None:
        node.operation = None  # maintenance ends the operation under way, which shall not be this
        try:
            await self.maintain(node, 0)
            operation.succeed(node.message, node.extras)
        finally:
            operation.fail(_CHANGED)  # if another change came first

    async def _lose(self, node: EmulatedNode, notice: float, state: int, error: ApiError) -> None:
        await asyncio.sleep(notice)
        node.interrupt(error)
        await node.end_hosts()
        node.become(state, State(state).name.lower())

    def repair(self, node: EmulatedNode, seconds: float) -> Work:
        """Ends all hosts, waits, and boots them again, as after the failure of a machine."""
        self._refuse_unless(node, "repair", State.READY)
        node.interrupt(_CHANGED)
        node.become(State.REPAIRING)
        return self._repair(node, seconds)

    async def _repair(self, node: EmulatedNode, seconds: float) -> None:
        await node.end_hosts()
        await asyncio.sleep(seconds)
        self._boot(node)
        self._ready(node)

    async def close(self) -> None:
        """Ends everything, at the end of the emulator."""
        self.queue.close()
        for node in self.nodes.values():
            node.interrupt(_CHANGED)
        await asyncio.gather(
            *(self._remove(node, "emulator stopped") for node in list(self.nodes.values()))
        )

    def _begin(
        self, node: EmulatedNode, verb: str, change: Change, state: int | None = None
    ) -> Operation:
        """A new operation; a change of state ends whatever was under way."""
        method = _METHODS.get(verb, f"{verb.title()}Node")
        hangs = self._strike("operation-hangs", node, method=method) is not None
        operation = self.operations.begin(node.place, verb, node.name, hangs=hangs)
        if rule := self._strike("operation-error", node, method=method):
            node.spawn(self._fail(node, operation, injected(rule.code, rule.message)))
            return operation
        if state is not None:
            node.interrupt(_CHANGED)
            node.become(state)
        node.operation = operation
        node.spawn(change(node, operation))
        return operation

    def _strike(
        self, fault: str, node: EmulatedNode, *, method: str = "", worker: int | None = None
    ) -> Rule | None:
        zone = node.place.zone
        return self.rules.strike(
            fault, node=node.node_id, zone=zone, method=method, worker=worker, states=_STATES
        )

    def set_state(self, node: EmulatedNode, state: str) -> Work:
        """Shows the node in that state; what is under way goes on."""
        if state not in _STATES:
            raise ConfigError(f"no state of a node: {state}")
        return self._set_state(node, state)

    async def _set_state(self, node: EmulatedNode, state: str) -> None:
        node.become(State[state])

    async def set_health(self, node: EmulatedNode, health: str) -> None:
        """Shows the node in that health, until its state changes."""
        node.message.health = Health[health]

    async def add_symptom(self, node: EmulatedNode, rule: Rule) -> None:
        """Shows a symptom of one worker."""
        node.message.symptoms.append(
            v2.Symptom(
                create_time=datetime.now(UTC),
                symptom_type=SymptomType[rule.symptom],
                details=rule.message,
                worker_id=node.host(rule.worker).identity.instance,
            )
        )

    def _refuse_if_deleting(self, node: EmulatedNode) -> None:
        if node.message.state == State.DELETING:
            raise busy(node.name)

    def _refuse_unless(self, node: EmulatedNode, verb: str, *states: int) -> None:
        self._refuse_if_deleting(node)
        if node.message.state not in states:
            raise wrong_state(verb, node.state)


_ACTS: Mapping[str, Callable[[Fleet, EmulatedNode, Rule], Work]] = {
    "preempt": lambda fleet, node, rule: fleet.preempt(node, rule.notice),
    "maintenance-event": lambda fleet, node, rule: fleet.maintain(node, rule.notice),
    "repair": lambda fleet, node, rule: fleet.repair(node, rule.seconds),
    "set-state": lambda fleet, node, rule: fleet.set_state(node, rule.state),
    "set-health": lambda fleet, node, rule: fleet.set_health(node, rule.health),
    "symptom": lambda fleet, node, rule: fleet.add_symptom(node, rule),
    "kill-host": lambda _, node, rule: node.host(rule.worker).end(),
    "freeze-host": lambda _, node, rule: node.host(rule.worker).freeze(),
    "thaw-host": lambda _, node, rule: node.host(rule.worker).thaw(),
}
