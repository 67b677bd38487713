"""Every VM of Compute Engine, and how each changes status.

    PROVISIONING → STAGING → RUNNING    insert; or an error in the operation, and the VM vanishes
    RUNNING → STOPPING → TERMINATED → PROVISIONING → STAGING → RUNNING    stop, start
    any → STOPPING → gone               delete
    RUNNING → REPAIRING → RUNNING       a crash; TERMINATED without automatic restart
    RUNNING → STOPPING → TERMINATED     preemption

As in `fleet`, a call changes the status at once and leaves the rest to a task of the VM. Faults of
boots and of capacity strike a VM only by rules that name it: those of a whole run mean its slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grpc import StatusCode

from launcher.emulator.compute.checks import (
    check_instance,
    check_labels,
    check_metadata,
    check_name,
)
from launcher.emulator.compute.names import changed, missing, not_ready, taken
from launcher.emulator.compute.operations import ComputeOperation, ComputeOperations
from launcher.emulator.compute.vm import Vm
from launcher.emulator.deeds import Work, act_later, rest
from launcher.emulator.ledger import Ledger
from launcher.emulator.machine import guest
from launcher.emulator.rules import Rule, Rules
from launcher.emulator.tpu.errors import ApiError, injected
from launcher.errors import ConfigError

Change = Callable[[Vm, ComputeOperation], Work]
_CHANGED = ApiError(StatusCode.ABORTED, "another change of the instance ended this operation")


def _no_capacity(scope: str) -> ApiError:
    """https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability"""
    return ApiError(
        StatusCode.UNAVAILABLE,
        f"The zone '{scope}' does not have enough resources available to fulfill the request.  "
        "Try a different zone, or try again later.",
    )


class Instances:
    """All VMs of one emulator, by full name, with their operations."""

    def __init__(self, folder: Path, ledger: Ledger, rules: Rules) -> None:
        self.all: dict[str, Vm] = {}
        self.operations = ComputeOperations()
        self._folder = folder
        self._ledger = ledger
        self._rules = rules

    def get(self, name: str) -> Vm:
        """The VM of that full name; ApiError 5 if there is none."""
        if name not in self.all:
            raise missing(name)
        return self.all[name]

    def find(self, name: str) -> Vm | None:
        """The VM of that name, full or not; ConfigError if there are several."""
        found = [vm for vm in self.all.values() if name in (vm.vm_id, vm.name)]
        if len(found) > 1:
            raise ConfigError(f"{len(found)} instances are named {name!r}; give the full name")
        return found[0] if found else None

    def insert(self, scope: str, body: Mapping[str, Any]) -> ComputeOperation:
        """Begins to create a VM."""
        name = f"{scope}/instances/{check_name(body)}"
        machine = check_instance(scope, body)
        if name in self.all:
            raise taken(name)
        vm = self.all[name] = Vm(scope, body, machine, self._folder, self._ledger)
        return self._begin(vm, "insert", self._insert)

    async def _insert(self, vm: Vm, operation: ComputeOperation) -> None:
        if self._strike("stockout", vm):
            await self._fail_insert(vm, operation, _no_capacity(vm.scope))
            return
        await self._run(vm, operation)

    async def _fail_insert(self, vm: Vm, operation: ComputeOperation, error: ApiError) -> None:
        await self._remove(vm, "error")
        operation.fail(error)

    async def _run(self, vm: Vm, operation: ComputeOperation) -> None:
        await rest(self._strike("slow-create", vm))
        vm.become("STAGING")
        await vm.stage()
        vm.become("RUNNING")
        vm.spawn(self._boot(vm))
        operation.succeed()
        if rule := self._strike("kill-vm", vm, named=False):
            vm.spawn(act_later(self._rules, rule, vm.name, partial(self.act, vm, rule)))

    async def _boot(self, vm: Vm) -> None:
        if self._strike("never-boots", vm):
            return
        await rest(self._strike("slow-boot", vm))
        vm.boot()

    def delete(self, name: str) -> ComputeOperation:
        """Begins to delete a VM in whatever status; it exists until its processes are gone."""
        return self._begin(self._idle(name), "delete", self._delete, "STOPPING")

    async def _delete(self, vm: Vm, operation: ComputeOperation) -> None:
        await rest(self._strike("slow-delete", vm))
        await self._remove(vm, "deleted")
        operation.succeed()

    async def _remove(self, vm: Vm, reason: str) -> None:
        await vm.remove(reason)
        del self.all[vm.name]

    def stop(self, name: str) -> ComputeOperation:
        """Begins to stop a VM; one that is TERMINATED stays so."""
        vm = self._idle(name)
        if vm.status == "TERMINATED":
            return self._do_at_once(vm, "stop")
        if vm.status != "RUNNING":
            raise not_ready(name)
        return self._begin(vm, "stop", self._stop, "STOPPING")

    async def _stop(self, vm: Vm, operation: ComputeOperation) -> None:
        await vm.host.end()
        vm.become("TERMINATED")
        operation.succeed()

    def start(self, name: str) -> ComputeOperation:
        """Begins to start a VM that is TERMINATED; its startup script runs again."""
        vm = self._idle(name)
        if vm.status == "RUNNING":
            return self._do_at_once(vm, "start")
        if vm.status != "TERMINATED":
            raise not_ready(name)
        return self._begin(vm, "start", self._start, "PROVISIONING")

    async def _start(self, vm: Vm, operation: ComputeOperation) -> None:
        if self._strike("stockout", vm):
            vm.become("TERMINATED")
            operation.fail(_no_capacity(vm.scope))
            return
        await self._run(vm, operation)

    def set_metadata(self, name: str, metadata: Mapping[str, Any]) -> ComputeOperation:
        """Replaces the metadata. ApiError 9 if the fingerprint is not the latest."""
        vm = self._idle(name)
        check_metadata(metadata)
        if metadata.get("fingerprint") != vm.body["metadata"]["fingerprint"]:
            raise changed("metadata")
        vm.set_metadata(metadata)
        return self._do_at_once(vm, "setMetadata")

    def set_labels(self, name: str, labels: Mapping[str, str], known: str) -> ComputeOperation:
        """Replaces the labels. ApiError 9 if the fingerprint `known` is not the latest."""
        vm = self._idle(name)
        check_labels(labels)
        if known != vm.body["labelFingerprint"]:
            raise changed("label")
        vm.set_labels(labels)
        return self._do_at_once(vm, "setLabels")

    def act(self, vm: Vm, rule: Rule) -> Work:
        """What the rule's fault does to a VM: checked by the call, done by the coroutine."""
        if rule.fault not in _ACTS:
            raise ConfigError(f"{rule.fault} is no fault of a VM; there are {', '.join(_ACTS)}")
        if vm.deleting or vm.status != "RUNNING":
            raise ConfigError(f"{rule.fault}: the VM {vm.vm_id} is {vm.status}, not RUNNING")
        return _ACTS[rule.fault](self, vm, rule)

    async def crash(self, vm: Vm, seconds: float) -> None:
        """Its machine fails: all processes end, and after the repair the VM boots again."""
        vm.interrupt(_CHANGED)
        if not vm.restarts:
            await vm.host.end()
            vm.become("TERMINATED", "crashed")
            return
        vm.become("REPAIRING", "crashed")
        await vm.host.end()
        await asyncio.sleep(seconds)
        vm.become("RUNNING")
        vm.spawn(self._boot(vm))

    async def preempt(self, vm: Vm, notice: float) -> None:
        """Takes a VM back: `preempted` turns TRUE, and `notice` seconds later it stops."""
        vm.host.metadata.set(guest.PREEMPTED, "TRUE")
        await asyncio.sleep(notice)
        vm.interrupt(_CHANGED)
        vm.become("STOPPING", "preempted")
        await vm.host.end()
        vm.become("TERMINATED")

    async def close(self) -> None:
        """Ends everything, at the end of the emulator."""
        for vm in self.all.values():
            vm.interrupt(_CHANGED)
        await asyncio.gather(
            *(self._remove(vm, "emulator stopped") for vm in list(self.all.values()))
        )

    def _idle(self, name: str) -> Vm:
        """The VM of that name, unless it is being deleted."""
        vm = self.get(name)
        if vm.deleting:
            raise not_ready(name)
        return vm

    def _begin(
        self, vm: Vm, verb: str, change: Change, status: str | None = None
    ) -> ComputeOperation:
        """A new operation; a change of status ends whatever was under way."""
        operation = self._new_operation(vm, verb)
        if rule := self._strike_operation("operation-error", vm, verb):
            error = injected(rule.code, rule.message)
            if verb == "insert":
                vm.spawn(self._fail_insert(vm, operation, error))
            else:
                operation.fail(error)
            return operation
        if status is not None:
            vm.interrupt(_CHANGED)
            vm.become(status)
        vm.deleting = verb == "delete"
        vm.operation = operation
        vm.spawn(change(vm, operation))
        return operation

    def _do_at_once(self, vm: Vm, verb: str) -> ComputeOperation:
        """An operation that is done; it leaves the change that is under way alone."""
        operation = self._new_operation(vm, verb)
        operation.succeed()
        return operation

    def _new_operation(self, vm: Vm, verb: str) -> ComputeOperation:
        hangs = self._strike_operation("operation-hangs", vm, verb) is not None
        return self.operations.begin(vm.scope, verb, vm.name, hangs=hangs)

    def _strike_operation(self, fault: str, vm: Vm, verb: str) -> Rule | None:
        return self._strike(fault, vm, method=f"instances.{verb}", named=False)

    def _strike(self, fault: str, vm: Vm, *, method: str = "", named: bool = True) -> Rule | None:
        return self._rules.strike(
            fault, node=vm.vm_id, zone=vm.zone, method=method, worker=0, named=named
        )


_ACTS: Mapping[str, Callable[[Instances, Vm, Rule], Work]] = {
    "kill-vm": lambda instances, vm, rule: instances.crash(vm, rule.seconds),
    "preempt": lambda instances, vm, rule: instances.preempt(vm, rule.notice),
    "kill-host": lambda _, vm, rule: vm.host.end(),
    "freeze-host": lambda _, vm, rule: vm.host.freeze(),
    "thaw-host": lambda _, vm, rule: vm.host.thaw(),
}
