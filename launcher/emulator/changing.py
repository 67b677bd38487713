"""A resource that changes in the background: its tasks, and the operation they work for."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, Protocol

from launcher.emulator.tpu.errors import ApiError


class Failing(Protocol):
    """An operation; it ends once, and ignores what comes later."""

    def fail(self, error: ApiError) -> None: ...


class Changing:
    """Runs the changes of one resource; `operation` is that of the change under way, if any."""

    def __init__(self) -> None:
        self.operation: Failing | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a change; `interrupt` ends it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error, file=sys.stderr)

    def interrupt(self, error: ApiError) -> None:
        """Ends every change under way but the caller's own; the operation gets that error."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self.operation:
            self.operation.fail(error)
