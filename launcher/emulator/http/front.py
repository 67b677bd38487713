"""The REST front: HTTP on a loopback port.

The socket listens from the start of the emulator, but the routes and aiohttp, whose import takes
longer than all the rest, come with the first connection: most emulators never see one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from launcher.emulator.world import World

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, Response

    from launcher.emulator.http.routes import Router

LAST_CALLS = 0.1
"""Seconds that calls under way get at the end of the emulator; 0 would mean forever to aiohttp."""


def listen() -> socket.socket:
    """A socket on a free loopback port. From now on, whoever connects waits for `serve`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    return listener


def url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.asynccontextmanager
async def serve(listener: socket.socket, world: World) -> AsyncIterator[None]:
    """Serves on the socket for as long as the context lasts."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    loop.add_reader(listener, connected.set)

    async def wait_and_serve() -> None:
        await connected.wait()
        loop.remove_reader(listener)
        await _serve(listener, world)

    serving = asyncio.create_task(wait_and_serve())
    try:
        yield
    finally:
        loop.remove_reader(listener)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        listener.close()


async def _serve(listener: socket.socket, world: World) -> None:
    web, router = await asyncio.to_thread(_load)

    async def handle(request: BaseRequest) -> Response:
        status, body = await router.answer(
            world, request.method, request.rel_url.raw_path, request.query, await request.text()
        )
        response: Response = web.json_response(body, status=status)
        return response

    server = web.Server(handle, access_log=None)
    sockets = await asyncio.get_running_loop().create_server(server, sock=listener)
    try:
        await asyncio.Event().wait()
    finally:
        sockets.close()
        await server.shutdown(LAST_CALLS)


def _load() -> tuple[Any, Router]:
    from aiohttp import web

    from launcher.emulator.http.routes import Router
    from launcher.emulator.http.services import SERVICES

    return web, Router(SERVICES)
