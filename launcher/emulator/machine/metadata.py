"""The metadata server of a VM: HTTP on the host's own address.

The rules of Compute Engine's: the `Metadata-Flavor` header is required and returned, a path with a
slash at its end lists what is below, `?recursive=true` gives it as JSON, and
`?wait_for_change=true` holds the answer back until the value changes
(https://cloud.google.com/compute/docs/metadata/querying-metadata).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PORT = 7979
"""One port on every host, so that a bound address is a taken address, across emulators."""
ROOT = "/computeMetadata/v1/"
FLAVOR = "Metadata-Flavor"
LISTS = frozenset({"aliases", "scopes"})
"""Values of several lines, which JSON gives as lists."""
FIRST_ADDRESS, PER_BLOCK, BLOCKS = 10, 254, 255

_BROKEN_REQUEST = (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
Reply = tuple[HTTPStatus, str, str]  # status, body, content type


def claim_addresses(count: int, start: int = 0) -> list[socket.socket]:
    """Sockets that listen on that many loopback addresses which were free.

    Addresses are 127.0.0.10, 127.0.0.11, …, 127.0.1.1, …, from the `start`-th on. Raises OSError if
    there are not enough.
    """
    claimed: list[socket.socket] = []
    for address in _addresses(start):
        if len(claimed) == count:
            break
        if listener := _listen(address):
            claimed.append(listener)
    else:
        for listener in claimed:
            listener.close()
        raise OSError(f"fewer than {count} loopback addresses have port {PORT} free")
    return claimed


def _addresses(start: int) -> Iterator[str]:
    total = PER_BLOCK * BLOCKS - FIRST_ADDRESS
    for index in range(total):
        block, last = divmod((start + index) % total + FIRST_ADDRESS - 1, PER_BLOCK)
        yield f"127.0.{block}.{last + 1}"


def _listen(address: str) -> socket.socket | None:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, PORT))
        listener.listen(64)
    except OSError:
        listener.close()
        return None
    return listener


class MetadataServer:
    """The values of one host, by path below `/computeMetadata/v1/`, and who waits for them."""

    def __init__(self, listener: socket.socket, values: Mapping[str, str]) -> None:
        self._listener = listener
        self._values = dict(values)
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    def set(self, path: str, value: str) -> None:
        """Changes a value and answers whoever waits for that."""
        self._values[path] = value
        self._wake()

    def replace(self, prefix: str, values: Mapping[str, str]) -> None:
        """Changes all values below a path."""
        kept = {path: value for path, value in self._values.items() if not path.startswith(prefix)}
        self._values = kept | dict(values)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        if self._server:
            self._server.close()
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_BROKEN_REQUEST):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            allowed = any(line.lower() == "metadata-flavor: google" for line in head[1:])
            writer.write(_http(*await self.answer(method, target, allowed=allowed)))
            await writer.drain()
        writer.close()

    async def answer(self, method: str, target: str, *, allowed: bool) -> Reply:
        """The reply to one request; `allowed` says whether it had the required header."""
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path == "/" and allowed:  # how google-auth asks whether it is on a VM
            return HTTPStatus.OK, "computeMetadata/\n", "application/text"
        if not allowed:
            return HTTPStatus.FORBIDDEN, f"Missing {FLAVOR}:Google header.\n", "text/html"
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "", "text/html"
        path = unquote(url.path).removeprefix(ROOT)
        if query.get("wait_for_change") == "true":
            await self._change(path, query)
        return self._look_up(path, recursive=query.get("recursive") == "true")

    async def _change(self, path: str, query: Mapping[str, str]) -> None:
        """Returns when the value differs from that of `last_etag`, or from now, or in time."""
        known = query.get("last_etag") or etag(self._look_up(path)[1])
        limit = float(query["timeout_sec"]) if "timeout_sec" in query else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while etag(self._look_up(path)[1]) == known:
                    await self._changed.wait()

    def _look_up(self, path: str, *, recursive: bool = False) -> Reply:
        if path in self._values:
            value = self._values[path]
            kind = "application/json" if value.startswith('{"access_token"') else "application/text"
            return HTTPStatus.OK, value, kind
        folder = path.rstrip("/") + "/" if path else ""
        below = {key[len(folder) :]: v for key, v in self._values.items() if key.startswith(folder)}
        if not below:
            return HTTPStatus.NOT_FOUND, "", "text/html"
        if recursive:
            return HTTPStatus.OK, json.dumps(_tree(below)), "application/json"
        names = dict.fromkeys(key[: key.find("/") + 1] or key for key in below)
        return HTTPStatus.OK, "".join(f"{name}\n" for name in names), "application/text"


def etag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def _tree(values: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *folders, name = path.split("/")
        if name == "token":  # must be asked for
            continue
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = value.split() if name in LISTS else value
    return tree


def _http(status: HTTPStatus, body: str, kind: str) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{FLAVOR}: Google\r\n"
        f"ETag: {etag(body)}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + content
