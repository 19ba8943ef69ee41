"""The link between data centres carries what it is given, until it is cut, and again when it is healed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.faults.link import Link
from tests.servers.served import free_port

PATIENCE = 60.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it is sent, to any number of clients."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_send_back, args=(client,), daemon=True).start()


def _send_back(client: socket.socket) -> None:
    with client:
        while data := _received(client):
            client.sendall(data)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 16)
    except OSError:
        return b""


def connect(port: int) -> socket.socket:
    """Connects through the link."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def answer(client: socket.socket, said: bytes) -> bytes:
    """Says something and returns what comes back; nothing if the connection is gone."""
    try:
        client.sendall(said)
    except OSError:
        return b""
    return _received(client)


def test_cut_and_healed(echo: int) -> None:
    """A connection that stands is reset by a cut, new ones are closed at once, and after healing they work again."""
    port = free_port()
    with Link({("127.0.0.1", port): ("127.0.0.1", echo)}) as link:
        with connect(port) as client:
            assert answer(client, b"one") == b"one"
            assert link.carried == 6
            link.cut()
            assert answer(client, b"two") == b""
        with connect(port) as client:
            assert answer(client, b"three") == b""
        link.heal()
        with connect(port) as client:
            assert answer(client, b"four") == b"four"


def test_nobody_there() -> None:
    """Where nobody listens at the far end, a connection is closed, and the link goes on."""
    port, far = free_port(), free_port()
    with Link({("127.0.0.1", port): ("127.0.0.1", far)}):
        for _ in range(2):
            with connect(port) as client:
                assert answer(client, b"anybody?") == b""
