"""Every queued resource, and how each changes state.

    CREATING → ACCEPTED → WAITING_FOR_RESOURCES → PROVISIONING → ACTIVE
    ACCEPTED, WAITING_FOR_RESOURCES → FAILED    its time to be granted has passed
    PROVISIONING → FAILED                       a node cannot be made; those that were are removed
    ACTIVE → SUSPENDING → SUSPENDED             a node was lost; the others go too
    SUSPENDED → WAITING_FOR_RESOURCES           reset
    any → DELETING → gone                       delete

It is ACCEPTED until it may be granted at all, and WAITING_FOR_RESOURCES until there is capacity.
Its nodes come into being together, as CREATING, when it is PROVISIONING; it is ACTIVE when all are
READY. A preempted node stays until it or the queued resource is deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.emulator.deeds import Work, act_later, rest
from launcher.emulator.faults import FAULTS, Target
from launcher.emulator.machine import guest
from launcher.emulator.rules import Rule
from launcher.emulator.tpu.errors import (
    ApiError,
    already_exists,
    busy,
    expired,
    injected,
    not_deletable,
    not_found,
    wrong_state,
)
from launcher.emulator.tpu.names import Place, split
from launcher.emulator.tpu.node import EmulatedNode, Membership
from launcher.emulator.tpu.operations import Operation
from launcher.emulator.tpu.queued import SERVICE, USER, PlannedNode, QueuedResource, plan
from launcher.emulator.tpu.wire import NO_EXTRAS, Extras, QueuedState, State, v2
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.emulator.tpu.fleet import Fleet

CAPACITY_POLL = 0.05
"""Seconds after which it is asked again whether there is capacity."""
# In which it can be deleted without force, whatever nodes there are.
_DELETABLE = {
    QueuedState.ACCEPTED,
    QueuedState.WAITING_FOR_RESOURCES,
    QueuedState.FAILED,
    QueuedState.SUSPENDED,
}
_ALIVE = {
    QueuedState.ACCEPTED,
    QueuedState.WAITING_FOR_RESOURCES,
    QueuedState.PROVISIONING,
    QueuedState.ACTIVE,
}
_STATES = frozenset(QueuedState.__members__)
_LOST = {State.PREEMPTED, State.TERMINATED}
_CHANGED = injected("ABORTED", "another change of the queued resource ended this operation")
_NODE_LOST = injected("INTERNAL", "a node was lost while it was being created")


class Queue:
    """All queued resources of one emulator, by full name."""

    def __init__(self, fleet: Fleet) -> None:
        self.resources: dict[str, QueuedResource] = {}
        self._fleet = fleet

    def get(self, name: str) -> QueuedResource:
        """The queued resource of that full name; ApiError 5 if there is none."""
        split(name, "queuedResources")
        if name not in self.resources:
            raise not_found(name)
        return self.resources[name]

    def find(self, name: str) -> QueuedResource | None:
        """The queued resource of that id or full name; None if there is not exactly one."""
        found = [each for each in self.resources.values() if name in (each.node_id, each.name)]
        return found[0] if len(found) == 1 else None

    def create(
        self,
        place: Place,
        queued_id: str,
        request: v2.QueuedResource,
        extras: Extras = NO_EXTRAS,
    ) -> Operation:
        """Begins to create a queued resource. The operation is done when it is in the queue."""
        planned = plan(place, queued_id, request, extras)
        name = place.resource("queuedResources", queued_id)
        if name in self.resources:
            raise already_exists(name)
        for each in planned:
            self._fleet.refuse_if_taken(place.resource("nodes", each.node_id))
        self._check_quota(place, queued_id, planned)
        resource = QueuedResource(place, queued_id, request, planned, self._fleet.ledger, extras)
        self.resources[name] = resource
        return self._begin(resource, "create", self._create)

    def _check_quota(self, place: Place, queued_id: str, planned: tuple[PlannedNode, ...]) -> None:
        ids = (queued_id, *(each.node_id for each in planned))
        chips = sum(each.accelerator.chips for each in planned)
        self._fleet.quota.check(place, ids, chips, planned[0].accelerator, planned[0].node)

    async def _create(self, resource: QueuedResource, operation: Operation) -> None:
        resource.become(QueuedState.ACCEPTED, USER)
        operation.succeed(resource.message, resource.extras)
        await self._live(resource)

    async def _live(self, resource: QueuedResource) -> None:
        """From the queue to the end of its nodes."""
        try:
            await self._wait_in_line(resource)
            await self._provision(resource)
        except ApiError as error:
            await self._discard(resource, "failed", keep=_LOST)
            resource.become(QueuedState.FAILED, error=error, why="failed")
            return
        resource.become(QueuedState.ACTIVE)
        for rule in self._struck(resource):
            deed = partial(self.act, resource, rule)
            resource.spawn(act_later(self._fleet.rules, rule, resource.name, deed))
        await self._serve(resource)

    async def _wait_in_line(self, resource: QueuedResource) -> None:
        window = resource.window()
        try:
            async with asyncio.timeout(_seconds_until(window.until)):
                await asyncio.sleep(_seconds_until(window.after) or 0)
                resource.become(QueuedState.WAITING_FOR_RESOURCES)
                await rest(self._strike("queue-wait", resource))
                while self._strike("stockout", resource):
                    await asyncio.sleep(CAPACITY_POLL)
        except TimeoutError:
            raise expired(resource.name) from None

    async def _provision(self, resource: QueuedResource) -> None:
        resource.become(QueuedState.PROVISIONING)
        creations = self._make_nodes(resource)
        if rule := self._strike("queue-fail", resource):
            raise injected(rule.code, rule.message)
        await resource.until(lambda: self._all_ready(resource) or self._is_broken(resource))
        if self._is_broken(resource):
            errors = (operation.error for operation in creations if operation.error)
            raise next(errors, _NODE_LOST)

    def _make_nodes(self, resource: QueuedResource) -> list[Operation]:
        """All nodes, or an ApiError."""
        creations, coordinator = [], None
        for planned in resource.planned:
            megascale = None
            if planned.slices > 1:
                first = planned.index == 0
                megascale = guest.Megascale(
                    planned.index, planned.slices, None if first else coordinator
                )
            member = Membership(resource.name, resource.changed, megascale)
            creations.append(
                self._fleet.make(
                    resource.place,
                    planned.node_id,
                    planned.node,
                    planned.accelerator,
                    member,
                    planned.extras,
                )
            )
            if planned.index == 0:
                name = resource.place.resource("nodes", planned.node_id)
                coordinator = self._fleet.nodes[name].hosts[0].identity.address
        return creations

    async def _serve(self, resource: QueuedResource) -> None:
        """Until a node is lost or the time that it may run is over, and then to SUSPENDED."""
        seconds = resource.run_seconds
        self._announce_end(resource, seconds)
        try:
            async with asyncio.timeout(seconds):
                await resource.until(lambda: self._is_broken(resource))
        except TimeoutError:
            resource.become(QueuedState.SUSPENDING)
            await self._terminate(resource)
            await self._suspend(resource, SERVICE, "its time is over")
        else:
            lost = any(node.message.state in _LOST for node in self.nodes(resource))
            await self._suspend(resource, SERVICE if lost else USER, "a node was lost")

    def _announce_end(self, resource: QueuedResource, seconds: float | None) -> None:
        """Shows when the nodes will be terminated, as far as v2alpha1 over REST has it."""
        if seconds is None:
            return
        end = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        for node in self.nodes(resource):
            scheduling = {**node.extras.get("schedulingConfig", {}), "terminationTimestamp": end}
            node.extras = {**node.extras, "schedulingConfig": scheduling}

    async def _terminate(self, resource: QueuedResource) -> None:
        """Ends the hosts of all nodes, which stay, as TERMINATED."""
        for node in self.nodes(resource):
            if node.message.state not in {*_LOST, State.DELETING}:
                node.spawn(self._fleet.terminate(node))
        gone = {*_LOST, State.DELETING}
        await resource.until(lambda: all(n.message.state in gone for n in self.nodes(resource)))

    async def _suspend(self, resource: QueuedResource, initiator: int, why: str) -> None:
        resource.become(QueuedState.SUSPENDING, initiator)
        await self._discard(resource, "suspended", keep=_LOST)
        resource.become(QueuedState.SUSPENDED, initiator, why=why)

    async def _discard(
        self, resource: QueuedResource, reason: str, keep: set[Any] | frozenset[Any] = frozenset()
    ) -> None:
        """Deletes its nodes but those in some states; returns when they are gone.

        A rule may take a node out of DELETING again, so that each change is looked at.
        """

        def is_done() -> bool:
            doomed = [node for node in self.nodes(resource) if node.message.state not in keep]
            for node in doomed:
                self._fleet.dispose(node, reason)
            return not doomed

        await resource.until(is_done)

    def nodes(self, resource: QueuedResource) -> list[EmulatedNode]:
        """Its nodes that exist, in the order of its request."""
        names = (resource.place.resource("nodes", each.node_id) for each in resource.planned)
        found = (self._fleet.nodes.get(name) for name in names)
        return [
            node
            for node in found
            if node and node.member and node.member.queued_resource == resource.name
        ]

    def _all_ready(self, resource: QueuedResource) -> bool:
        nodes = self.nodes(resource)
        return len(nodes) == len(resource.planned) and all(
            node.message.state == State.READY for node in nodes
        )

    def _is_broken(self, resource: QueuedResource) -> bool:
        """Whether a node is lost or on its way out."""
        nodes = self.nodes(resource)
        return len(nodes) < len(resource.planned) or any(
            node.message.state in {*_LOST, State.DELETING} for node in nodes
        )

    def delete(self, name: str, *, force: bool) -> Operation:
        """Begins to delete a queued resource, with `force` whatever nodes it has.

        ApiError 9 if it has nodes, is in no state to be deleted, and `force` is not given.
        """
        resource = self.get(name)
        state = resource.message.state.state
        if state == QueuedState.DELETING:
            raise busy(name)
        if not force and state not in _DELETABLE and self.nodes(resource):
            raise not_deletable(name, resource.state)
        return self._begin(resource, "delete", self._delete, QueuedState.DELETING)

    async def _delete(self, resource: QueuedResource, operation: Operation) -> None:
        await rest(self._strike("slow-delete", resource))
        await self._discard(resource, "deleted")
        self._remove(resource, "deleted")
        operation.succeed(resource.message, resource.extras)

    def _remove(self, resource: QueuedResource, why: str) -> None:
        resource.close(why)
        del self.resources[resource.name]

    def reset(self, name: str) -> Operation:
        """Puts a suspended queued resource back into the queue. ApiError 3 in any other state.

        That it is refused in the others is a guess.
        """
        resource = self.get(name)
        if resource.message.state.state != QueuedState.SUSPENDED:
            raise wrong_state("reset", resource.state)
        return self._begin(resource, "reset", self._reset, QueuedState.WAITING_FOR_RESOURCES)

    async def _reset(self, resource: QueuedResource, operation: Operation) -> None:
        operation.succeed(resource.message, resource.extras)
        await self._discard(resource, "reset")
        await self._live(resource)

    def _begin(
        self,
        resource: QueuedResource,
        verb: str,
        change: Callable[[QueuedResource, Operation], Work],
        state: int | None = None,
    ) -> Operation:
        """A new operation; a change of state ends whatever was under way."""
        method = f"{verb.title()}QueuedResource"
        hangs = self._strike("operation-hangs", resource, method) is not None
        operation = self._fleet.operations.begin(resource.place, verb, resource.name, hangs=hangs)
        if rule := self._strike("operation-error", resource, method):
            if verb == "create":
                self._remove(resource, "error")
            operation.fail(injected(rule.code, rule.message))
            return operation
        if state is not None:
            resource.interrupt(_CHANGED)
            resource.become(state, USER)
        resource.operation = operation
        resource.life = resource.spawn(change(resource, operation))
        return operation

    def act(self, resource: QueuedResource, rule: Rule) -> Work:
        """What the rule's fault does to a queued resource; ConfigError in the wrong state."""
        return _ACTS[rule.fault](self, resource, rule)

    def suspend(self, resource: QueuedResource) -> Work:
        if resource.message.state.state not in _ALIVE:
            raise ConfigError(f"{resource.node_id} is {resource.state}; it cannot be suspended")
        _stop(resource)
        return self._suspend(resource, SERVICE, "suspended")

    def set_state(self, resource: QueuedResource, state: str) -> Work:
        if state not in _STATES:
            raise ConfigError(f"no state of a queued resource: {state}")
        return self._set_state(resource, state)

    async def _set_state(self, resource: QueuedResource, state: str) -> None:
        """Shows it in that state, where it stays."""
        _stop(resource)
        resource.become(QueuedState[state])

    def _struck(self, resource: QueuedResource) -> Iterator[Rule]:
        """The rules that strike a queued resource which has become ACTIVE."""
        for name, fault in FAULTS.items():
            struck = fault.target in (Target.QUEUED, Target.EITHER)
            if struck and (rule := self._strike(name, resource)):
                yield rule

    def _strike(self, fault: str, resource: QueuedResource, method: str = "") -> Rule | None:
        own, *nodes = resource.ids
        return self._fleet.rules.strike(
            fault, node=own, also=nodes, zone=resource.place.zone, method=method, states=_STATES
        )

    def close(self) -> None:
        """Ends everything, at the end of the emulator; the nodes are for the fleet to end."""
        for resource in list(self.resources.values()):
            resource.interrupt(_CHANGED)
            self._remove(resource, "emulator stopped")


def _stop(resource: QueuedResource) -> None:
    """Ends the way of a queued resource through its states."""
    if resource.life:
        resource.life.cancel()


def _seconds_until(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, moment - time.time())


_ACTS: Mapping[str, Callable[[Queue, QueuedResource, Rule], Work]] = {
    "suspend": lambda queue, resource, _: queue.suspend(resource),
    "set-state": lambda queue, resource, rule: queue.set_state(resource, rule.state),
}
