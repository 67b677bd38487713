"""What is done to a run: faults of the emulator, and the deletion of a node by hand."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from typing import Any

import psutil

from launcher import coordinator
from launcher.emulator import client
from launcher.emulator.faults import FAULTS, OVERTAKEN, Target
from launcher.errors import ConfigError
from launcher.provisioning.requests import is_queued
from launcher.rehearsal import scenarios
from launcher.rehearsal.place import Place
from launcher.rehearsal.scenarios import LAST, Deed

_OF_SLICES = (Target.NODE, Target.HOST, Target.EITHER)


class Refused(Exception):
    """The deed cannot be done now: there is no such node, say, or its state does not allow it."""


class Hands:
    """Does deeds in one place. `hosts` is the number of hosts of a slice."""

    def __init__(self, place: Place, endpoint: str, hosts: int) -> None:
        self._place = place
        self._endpoint = endpoint
        self._hosts = hosts

    def do(self, deed: Deed) -> None:
        """Raises Refused; the deed may be tried again."""
        match deed.do:
            case scenarios.DELETE_NODE:
                self._delete(deed)
            case scenarios.KILL_HEAD:
                self._signal_head(signal.SIGKILL)
            case scenarios.FREEZE_HEAD:
                self._signal_head(signal.SIGSTOP)
            case _:
                self._fault(deed)

    def _fault(self, deed: Deed) -> None:
        options: dict[str, Any] = {**self._subject(deed), **deed.options}
        if options.get("worker") == LAST:
            options["worker"] = self._hosts - 1
        try:
            client.control(self._endpoint, {"command": "fault", "fault": deed.do, **options})
        except ConfigError as error:
            if OVERTAKEN not in str(error):  # else it has struck
                raise Refused(str(error).strip(" •")) from error

    def _subject(self, deed: Deed) -> Mapping[str, str]:
        """Whom a fault strikes that does not say so: a slice of the run, or its queued resource."""
        target, record = FAULTS[deed.do].target, self._place.record()
        if target in _OF_SLICES:
            return {"node": self._node(deed, record)}
        queued = [name for name in record.get("resources", ()) if is_queued(name)]
        if target is Target.QUEUED and queued:
            return {"node": queued[min(deed.slice, len(queued) - 1)]}
        return {}

    def _node(self, deed: Deed, record: Mapping[str, Any]) -> str:
        nodes = record.get("nodes") or ()
        return str(nodes[deed.slice]) if deed.slice < len(nodes) else self._node_id(deed)

    def _node_id(self, deed: Deed) -> str:
        return f"{self._place.name}-s{deed.slice}"

    def _signal_head(self, number: int) -> None:
        head = coordinator.read_head(self._place.head_path)
        if head is None or not (found := coordinator.processes(head)):
            raise Refused("there is no Ray head")
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _delete(self, deed: Deed) -> None:
        import grpc
        from google.api_core.exceptions import GoogleAPICallError
        from google.cloud import tpu_v2
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        nodes = self._place.record().get("nodes") or ()
        if deed.slice >= len(nodes):
            raise Refused(f"there is no slice {deed.slice}")
        with grpc.insecure_channel(self._endpoint) as channel:
            plain = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
            try:
                plain.delete_node(name=nodes[deed.slice])
            except GoogleAPICallError as error:
                raise Refused(str(error)) from error
