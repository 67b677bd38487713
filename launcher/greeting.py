"""Asks a server for a sign of life: the Ray head greets whoever connects, unless it is frozen.

It is a gRPC server, which sends its HTTP/2 settings as soon as a connection is there. A connection
alone says nothing: the system accepts it for a process that stands still.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

CONNECT_SECONDS = 5.0
LONGEST_STEP = 5.0  # between two looks: when this process itself stood still, nobody was silent


class Greeting:
    """A connection on which the greeting is awaited. Raises OSError where nobody listens.

    `silent`: for how many seconds it has been awaited, as far as somebody looked.
    """

    def __init__(
        self, address: str, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = socket.create_connection((address, port), CONNECT_SECONDS)
        self._clock = clock
        self._looked = clock()
        self.silent = 0.0

    def came(self, seconds: float = 0.0) -> bool:
        """Whether it has come, or comes within `seconds`. Raises OSError when it never will."""
        self._socket.settimeout(seconds)
        try:
            if self._socket.recv(1):
                return True
        except (BlockingIOError, TimeoutError):
            now = self._clock()
            self.silent += min(now - self._looked, seconds + LONGEST_STEP)
            self._looked = now
            return False
        raise ConnectionResetError("it hung up")

    def close(self) -> None:
        self._socket.close()
