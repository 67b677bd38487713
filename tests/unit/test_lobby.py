"""Who comes before the server gets to it all the same, at the first try."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from launcher.hosts.agent import free_ports
from launcher.hosts.lobby import Lobby, listeners
from tests.contract.hosts import wait_until

HOST = "127.0.5.1"
PATIENCE = 10.0


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def lobby(port: int) -> Iterator[Lobby]:
    made = Lobby(HOST, port)
    yield made
    made.close()


def come(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), PATIENCE)


def serve(port: int, host: str = "") -> socket.socket:
    """As gRPC does: at all addresses, unless told otherwise."""
    server = socket.create_server((host, port), reuse_port=True)
    server.settimeout(PATIENCE)
    return server


@pytest.mark.parametrize("at", ["", HOST])
def test_early_guests_meet_the_server_when_it_comes(lobby: Lobby, port: int, at: str) -> None:
    early = [come(port) for _ in range(3)]
    for number, guest in enumerate(early):
        guest.sendall(b"hello %d" % number)
    with serve(port, at) as server:
        for _ in early:
            with server.accept()[0] as peer:
                peer.sendall(peer.recv(100).upper())
    for number, guest in enumerate(early):
        with guest:
            assert guest.recv(100) == b"HELLO %d" % number
            assert guest.recv(100) == b""  # the server has closed it


def test_much_goes_through_in_both_directions(lobby: Lobby, port: int) -> None:
    much = bytes(range(256)) * 4096
    with come(port) as guest, serve(port) as server, server.accept()[0] as peer:
        for source, sink in ((guest, peer), (peer, guest)):
            sink.settimeout(PATIENCE)
            sent = 0
            for start in range(0, len(much), 65_536):
                source.sendall(much[start : start + 65_536])
                while sent < start + 65_536:
                    piece = sink.recv(65_536)
                    assert piece == much[sent : sent + len(piece)]
                    sent += len(piece)


def test_late_guests_meet_the_server_itself(lobby: Lobby, port: int) -> None:
    with come(port), serve(port) as server:
        server.accept()[0].close()
        assert listeners(port) == 1  # the lobby has closed its door
        with come(port) as late:
            peer, address = server.accept()
            with peer:
                assert address == late.getsockname()


def test_a_guest_who_leaves_is_not_missed(lobby: Lobby, port: int) -> None:
    come(port).close()
    with come(port) as second, serve(port) as server:
        for _ in range(2):
            with server.accept()[0] as peer:
                peer.settimeout(PATIENCE)
                peer.sendall(b"welcome")
        assert second.recv(7) == b"welcome"


def test_closing_it_parts_those_who_wait(port: int) -> None:
    lobby = Lobby(HOST, port)
    with come(port) as guest:
        wait_until(lobby.has_guests.is_set)
        lobby.close()
        assert guest.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        come(port)


def test_none_where_the_port_is_taken(port: int) -> None:
    with socket.create_server((HOST, port)), pytest.raises(OSError, match="in use"):
        Lobby(HOST, port)
