"""The agents' connections to one supervisor: frames come in, orders go out."""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import IO, Any

from launcher.errors import ClusterError
from launcher.hosts.member import Place

AWAY_SECONDS = 1.0  # when this process itself stood still for longer, nobody was silent meanwhile
# Frames that wait to be handled; beyond that the connection slows the writer down.
BACKLOG = 256

Frame = tuple[Place, dict[str, Any], bytes]


class Links:
    """One connection a host, by its place; `heard` is when each last said anything."""

    def __init__(self, address: str, key: str, hosts: int) -> None:
        self.key = key
        self.server = socket.create_server((address, 0), backlog=hosts + 8)
        self.frames: queue.Queue[Frame] = queue.Queue(BACKLOG)
        self.linked = threading.Condition()
        self.sockets: dict[Place, socket.socket] = {}
        self.heard: dict[Place, float] = {}
        self.looked = time.monotonic()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def callback(self) -> str:
        address, port = self.server.getsockname()
        return f"{address}:{port}"

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(link,), daemon=True).start()

    def _read(self, link: socket.socket) -> None:
        """Queue one agent's frames; a stranger without the key is hung up on."""
        with link, link.makefile("rb") as stream:
            hello = read_frame(stream)
            if not hello or not hmac.compare_digest(str(hello[0].get("key")), self.key):
                return
            place = (hello[0]["host"][0], hello[0]["host"][1])
            with self.linked:
                self.sockets[place] = link
                self.heard[place] = time.monotonic()
                self.linked.notify_all()
            while frame := read_frame(stream):
                self.heard[place] = math.inf  # it is not silent while we are slow to take its frame
                self.frames.put((place, *frame))
                self.heard[place] = time.monotonic()
            self.heard[place] = math.inf
        self.frames.put((place, {"kind": "lost", "time": time.time()}, b""))

    def wait_for(self, places: Callable[[], Collection[Place]], seconds: float) -> None:
        """Until all have connected. Raises ClusterError that names those which have not."""

        def absent() -> set[Place]:
            return set(places()) - self.sockets.keys()

        with self.linked:
            if not self.linked.wait_for(lambda: not absent(), seconds):
                names = ", ".join(f"s{s} h{h}" for s, h in sorted(absent()))
                raise ClusterError(f"{names} cannot reach this machine at {self.callback}")

    def next_frame(self, seconds: float = 0.1) -> Frame | None:
        """The next frame, if there is one soon."""
        with contextlib.suppress(queue.Empty):
            return self.frames.get(timeout=seconds)
        return None

    def send(self, place: Place, **order: Any) -> bool:
        """False when there is no connection to it."""
        try:
            line = json.dumps(order | {"key": self.key}).encode() + b"\n"
            self.sockets[place].sendall(line)
        except (KeyError, OSError):
            return False
        return True

    def silent(self, seconds: float, places: Collection[Place]) -> dict[Place, float]:
        """Those that were silent for so long, and when they were last heard.

        Time in which this process itself stood still (SIGSTOP, a suspended machine, a slow disk)
        does not count: what they sent meanwhile may not have been read yet.
        """
        now = time.monotonic()
        away = now - self.looked if now - self.looked > AWAY_SECONDS else 0.0
        self.looked = now
        for place, last in list(self.heard.items()):
            if away and last < now:
                self.heard[place] = min(last + away, now)
        heard = {place: self.heard.get(place, math.inf) for place in places}
        return {place: last for place, last in heard.items() if last < now - seconds}

    def close(self) -> None:
        """End the threads and connections."""
        for link in (self.server, *self.sockets.values()):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        with contextlib.suppress(queue.Empty):  # a reader may be waiting for room
            while True:
                self.frames.get_nowait()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next frame and its payload; None at the end or when the other side speaks otherwise."""
    try:
        line = stream.readline(2**20)
        frame = json.loads(line) if line else None
        if not isinstance(frame, dict):
            return None
        size = frame.get("size", 0)
        payload = stream.read(size)
    except (OSError, ValueError):
        return None
    return (frame, payload) if len(payload) == size else None
