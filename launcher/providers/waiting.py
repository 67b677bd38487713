"""From an accepted create call to nodes that are READY, or to why they never will be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from launcher.errors import Reason, Refused, SliceLost, Unanswered
from launcher.providers import Deadlines, Pause, Resource, Watch, refusals
from launcher.providers.calls import CALL_SECONDS, is_done
from launcher.providers.reasons import classify
from launcher.providers.states import State

if TYPE_CHECKING:
    from launcher.provisioning.requests import Request

APPEAR_SECONDS = 15.0  # GetQueuedResource may know nothing yet of what was just created


class Wait:
    """Of one request; `get` looks at what has a name.

    The operation tells of failure, looks tell of success: some operations never end. What is still
    waiting for capacity has one deadline; a second one begins when it is granted.
    """

    def __init__(
        self,
        get: Callable[[str], Resource | None],
        request: Request,
        operation: Any | None,
        deadlines: Deadlines,
        pause: Pause,
        watch: Watch,
    ) -> None:
        self._watch = watch
        self._get = get
        self._request = request
        self._operation = operation
        self._deadlines = deadlines
        self._pause = pause
        self._began = self._granted = time.monotonic()
        self._seen = operation is None

    def nodes(self) -> Sequence[Resource]:
        delay = 0.1
        while True:
            if self._operation is not None and is_done(self._operation):
                self._operation.result(timeout=CALL_SECONDS)  # raises the error it ended in
                self._operation = None
            try:
                found = self._get(self._request.name)
                if found:
                    self._watch(found.raw_state, found.state)
                self._require_hope(found)
                if found and found.state is State.READY and (nodes := self._ready_nodes(found)):
                    return nodes
            except Unanswered:
                found = None  # not known
            self._require_time(found)
            self._pause(delay)
            delay = min(delay * 1.5, 5.0)

    def _ready_nodes(self, found: Resource) -> Sequence[Resource] | None:
        """The nodes, if all of them are READY: those of an ACTIVE queued resource were."""
        if not self._request.queued:
            return [found]
        nodes = [self._get(name) for name in self._request.node_names]
        ready = [node for node in nodes if node and node.state is State.READY]
        return ready if len(ready) == len(nodes) else None

    def _require_hope(self, found: Resource | None) -> None:
        """Raises Refused for what will never be READY."""
        name = self._request.name
        if found is not None:
            self._seen = True
            if found.error:
                code, message = found.error
                raise Refused(classify(code, message), refusals.explain(self._request, message))
            if found.state in (State.DEAD, State.DELETING):
                raise SliceLost(f"{name} is {found.raw_state} already")
        elif self._seen:
            raise SliceLost(f"{name} was there, and is gone")
        elif self._operation is None and time.monotonic() > self._began + APPEAR_SECONDS:
            raise SliceLost(f"{name} was created, and never appeared")

    def _require_time(self, found: Resource | None) -> None:
        now = time.monotonic()
        if found and found.state is State.WAITING:
            self._granted = now
            key, end = "queue_timeout", self._began + self._deadlines.queue
        else:
            key, end = "provision_timeout", self._granted + self._deadlines.provision
        if now > end:
            state = found.raw_state if found else "not there"
            message = f"{self._request.name} is still {state} at the deadline (cluster.{key})"
            raise Refused(Reason.DEADLINE, message)
