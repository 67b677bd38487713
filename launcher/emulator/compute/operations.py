"""Operations of Compute Engine: zonal or global, polled or waited for, done once."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from grpc import StatusCode

from launcher.emulator.compute.names import link, missing
from launcher.emulator.http.status import COMPUTE_API, http_of
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.tpu.operations import new_id

LONGEST_WAIT = 120.0
"""Seconds: `wait` answers after two minutes at the latest, done or not, as the reference says."""
PHRASES: Mapping[int, str] = {status.value: status.phrase for status in HTTPStatus}
_ERRORS = {
    StatusCode.UNAVAILABLE: "ZONE_RESOURCE_POOL_EXHAUSTED",
    StatusCode.RESOURCE_EXHAUSTED: "QUOTA_EXCEEDED",
}
Json = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class ComputeOperation:
    """One operation. `scope` is `projects/P/zones/Z` or `projects/P/global`.

    It ends once, well or in an error; one that `hangs` never does.
    """

    def __init__(self, scope: str, verb: str, target: str, *, hangs: bool) -> None:
        self.name = f"{scope}/operations/{new_id()}"
        self.ended = asyncio.Event()
        self._hangs = hangs
        self._body: Json = {
            "kind": "compute#operation",
            "id": str(secrets.randbits(62)),
            "name": self.name.rpartition("/")[2],
            "operationType": verb,
            "targetLink": link(target),
            "status": "RUNNING",
            "progress": 0,
            "insertTime": now(),
            "startTime": now(),
            "selfLink": link(self.name),
            **({"zone": link(scope)} if "/zones/" in scope else {}),
        }

    def succeed(self) -> None:
        self._end({})

    def fail(self, error: ApiError) -> None:
        status, _ = http_of(error.code, COMPUTE_API)
        phrase = PHRASES.get(status, error.code.name)
        self._end(
            {
                "error": {
                    "errors": [
                        {
                            "code": _ERRORS.get(error.code, error.code.name),
                            "message": error.message,
                        }
                    ]
                },
                "httpErrorStatusCode": status,
                "httpErrorMessage": phrase.upper(),
            }
        )

    def _end(self, result: Json) -> None:
        if not self._hangs and not self.ended.is_set():
            self._body |= {"status": "DONE", "progress": 100, "endTime": now(), **result}
            self.ended.set()

    async def wait(self) -> None:
        """Returns when it is done, or after LONGEST_WAIT."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), LONGEST_WAIT)

    def to_json(self) -> Json:
        return dict(self._body)


class ComputeOperations:
    """All operations, by full name, and by the `requestId` of the call that began each."""

    def __init__(self) -> None:
        self._all: dict[str, ComputeOperation] = {}
        self._requests: dict[tuple[str, str], ComputeOperation] = {}

    def begin(self, scope: str, verb: str, target: str, *, hangs: bool = False) -> ComputeOperation:
        operation = ComputeOperation(scope, verb, target, hangs=hangs)
        self._all[operation.name] = operation
        return operation

    def repeated(self, scope: str, request_id: str) -> ComputeOperation | None:
        """The operation that a call with this `requestId` began there, for a call sent again."""
        return self._requests.get((scope, request_id)) if request_id else None

    def remember(self, scope: str, request_id: str, operation: ComputeOperation) -> None:
        if request_id:
            self._requests[scope, request_id] = operation

    def get(self, name: str) -> ComputeOperation:
        """The operation of that full name; ApiError 5 if there is none."""
        if name not in self._all:
            raise missing(name)
        return self._all[name]

    def within(self, scope: str) -> list[ComputeOperation]:
        return [one for name, one in self._all.items() if name.startswith(f"{scope}/operations/")]
