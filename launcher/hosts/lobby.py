"""Takes in those who come to a server before it is there, and leads them to it. Runs on a host.

JAX's processes all connect to a coordinator in the first of them. One that finds nobody there asks
again after a second, the first back-off of gRPC; who is ready first is chance, and half of all
starts would take that second longer. So the agent of the first host listens at the same address and
port until the coordinator does. Both set SO_REUSEPORT, as gRPC's servers do by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

BACKLOG = 4096  # all hosts of a large slice at once
LOOK_SECONDS = 0.01
CHUNK_BYTES = 65_536
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # see proc(5)
LISTENING = "0A"


class Lobby:
    """At the address and port of a server to come. Raises OSError where there can be none.

    Who has come through it stays connected through it, until it is closed; who comes once the
    server is there meets the server itself.
    """

    def __init__(self, address: str, port: int) -> None:
        self.address = address, port
        listeners(port)  # which this machine may not tell
        door = socket.create_server(self.address, reuse_port=True)
        self.loop = asyncio.new_event_loop()
        self.has_guests, self.has_server, self.over = (asyncio.Event() for _ in range(3))
        threading.Thread(target=self._run, args=(door,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it could not be opened
            self.loop.call_soon_threadsafe(self.over.set)

    def _run(self, door: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._open(door))

    async def _open(self, door: socket.socket) -> None:
        server = await asyncio.start_server(self._lead, sock=door, backlog=BACKLOG)
        watch = asyncio.create_task(self._await_server(server))
        await self.over.wait()
        watch.cancel()
        server.close()

    async def _await_server(self, lobby: asyncio.Server) -> None:
        await self.has_guests.wait()
        while listeners(self.address[1]) == 1:  # the lobby alone
            await asyncio.sleep(LOOK_SECONDS)
        lobby.close()  # from here on the address is the server's own
        self.has_server.set()

    async def _lead(self, guest: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with contextlib.closing(answers), contextlib.suppress(OSError):
            self.has_guests.set()
            await self.has_server.wait()
            replies, questions = await asyncio.open_connection(*self.address)
            await asyncio.gather(copy(guest, questions), copy(replies, answers))


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until one of the two is closed; then the other is."""
    with contextlib.closing(sink), contextlib.suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()


def listeners(port: int) -> int:
    """How many sockets of this machine listen at the port, at whatever address. Raises OSError."""
    tables = (table.read_text() for table in TABLES if table == TABLES[0] or table.exists())
    sockets = (line.split() for table in tables for line in table.splitlines()[1:])
    return sum(s[1].endswith(f":{port:04X}") and s[3] == LISTENING for s in sockets)
