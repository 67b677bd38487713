"""Routes of REST APIs: which call a request is, and the JSON of its answer or its error.

All services share one port and are told apart by path.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from grpc import StatusCode

from launcher.emulator.calls import Subject
from launcher.emulator.http.status import http_of
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.world import World

Json = dict[str, Any]

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Query(dict[str, str]):
    """The parameters of a query: the first value of each, and all of them by `every`."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = tuple(pairs)
        super().__init__(reversed(self._pairs))

    def every(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the values of the pattern's placeholders, the query, the JSON body ({} if none)."""

    params: Mapping[str, str]
    query: Query
    body: Json

    @property
    def project(self) -> str:
        return self.params["project"]


@dataclass(frozen=True, slots=True)
class Route:
    """One call of an API.

    `pattern` is a path in which `{name}` stands for one segment, or a part of it before a colon.
    `answer` gives the JSON of the reply, or raises ApiError. `name` is the method's in Google's
    reference, which the rules of faults use. `subject` is the placeholder or the query
    parameter that holds the id of the resource; without one, it is the `name` in the body.
    """

    method: str
    pattern: str
    answer: Callable[[World, Call], Json | Awaitable[Json]]
    name: str
    subject: str = ""


def error_body(error: ApiError, service: str = "") -> tuple[int, Json]:
    """The HTTP status and the JSON of an error, in the form of all of Google's JSON APIs."""
    status, reason = http_of(error.code, service)
    entry = {"message": error.message, "domain": "global", "reason": reason}
    details = {"details": list(error.details)} if error.details else {}
    return status, {
        "error": {
            "code": status,
            "message": error.message,
            "status": error.code.name,
            "errors": [entry],
            **details,
        }
    }


@dataclass(frozen=True, slots=True)
class _Matcher:
    service: str
    route: Route
    expression: re.Pattern[str]


class Router:
    """Which route a request takes; `services` are the routes of each API, by its host name."""

    def __init__(self, services: Mapping[str, Sequence[Route]]) -> None:
        self._matchers = [
            _Matcher(service, route, re.compile(_expression(route.pattern)))
            for service, routes in services.items()
            for route in routes
        ]

    def find(self, method: str, path: str) -> tuple[str, Route, Mapping[str, str]]:
        """The service, the route and the values of its placeholders; ApiError 5 if there is none.

        `path` is as it was sent, with its percent signs.
        """
        for matcher in self._matchers:
            match = matcher.expression.fullmatch(path)
            if match and matcher.route.method == method:
                values = {key: unquote(value) for key, value in match.groupdict().items()}
                return matcher.service, matcher.route, values
        raise ApiError(StatusCode.NOT_FOUND, f"{method} {path}: the emulator has no such method")

    async def answer(
        self, world: World, method: str, path: str, query: Mapping[str, str], text: str
    ) -> tuple[int, Json]:
        """The HTTP status and the JSON body of the reply to one request.

        The items of `query` may have a key more than once.
        """
        service = ""
        try:
            service, route, params = self.find(method, path)
            call = Call(params, Query(query.items()), _read(text))
            subject = Subject(
                service, params.get("project", ""), params.get("zone", ""), _id(route, call)
            )
            answer = await world.calls.carry_out(
                route.name, subject, lambda: route.answer(world, call)
            )
        except ApiError as error:
            return error_body(error, service)
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)
            return error_body(ApiError(StatusCode.INTERNAL, "an internal error of the emulator"))
        return 200, answer


def _expression(pattern: str) -> str:
    """The regular expression of a pattern."""
    texts = _PLACEHOLDER.split(pattern)
    return "".join(
        f"(?P<{text}>[^/:]+)" if index % 2 else re.escape(text) for index, text in enumerate(texts)
    )


def _read(text: str) -> Json:
    try:
        body = json.loads(text) if text.strip() else {}
    except ValueError as error:
        message = f"Invalid JSON payload received. {error}"
        raise ApiError(StatusCode.INVALID_ARGUMENT, message) from None
    if not isinstance(body, dict):
        raise ApiError(
            StatusCode.INVALID_ARGUMENT, "Invalid JSON payload received. It is no object."
        )
    return body


def _id(route: Route, call: Call) -> str:
    """The id of what the call is about; "" if it names none."""
    if route.subject in call.params:
        return call.params[route.subject]
    return str(call.query.get(route.subject) or call.body.get("name") or "")
