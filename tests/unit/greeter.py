"""A server that greets whoever connects, as the Ray head does; or one that stands still."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

from launcher.coordinator import Head


class Greet(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"settings")


@contextlib.contextmanager
def greeting_head() -> Iterator[Head]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield head_at(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def frozen_head() -> Iterator[Head]:
    """The system accepts connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield head_at(server.getsockname()[1])


def head_at(port: int) -> Head:
    return Head("h", "127.0.0.1", (port, 0), "/nowhere")
