"""One agent's connection to one supervisor: frames go out, orders come in. Runs on a host.

Frames and orders are one line of JSON each; `size` in a frame says how many raw bytes follow it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

CONNECT_SECONDS = 30.0
LAST_WORD_SECONDS = 0.5


class Link:
    """A supervisor that is gone is not an error here. Raises OSError if it cannot be reached."""

    def __init__(self, callback: str, key: str, host: list[int]) -> None:
        address, _, port = callback.rpartition(":")
        self.socket = socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.is_open = True
        self.send(kind="hello", key=key, host=host)

    def send(self, payload: bytes = b"", **header: Any) -> bool:
        """One frame. False when the supervisor is gone."""
        with self.lock:
            return self._send(payload, header)

    def _send(self, payload: bytes, header: dict[str, Any]) -> bool:
        header = {"time": time.time()} | header
        if payload:
            header["size"] = len(payload)
        try:
            self.socket.sendall(json.dumps(header).encode() + b"\n" + payload)
        except OSError:
            self.is_open = False
        return self.is_open

    def orders(self) -> Iterator[dict[str, Any]]:
        """Each order of the supervisor until the connection ends."""
        with contextlib.suppress(OSError, ValueError), self.socket.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)

    def close(self, **last: Any) -> None:
        """Hang up, after a `last` frame if the supervisor still reads."""
        if last and self.lock.acquire(timeout=LAST_WORD_SECONDS):
            with contextlib.suppress(OSError):
                self.socket.settimeout(LAST_WORD_SECONDS)
            self._send(b"", last)
            self.lock.release()
        self.is_open = False
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
