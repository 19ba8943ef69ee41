"""The proxy carries what it is given, until it is cut or silenced, and again when it is healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.harness.proxy import Proxy
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


def connect(proxy: Proxy) -> socket.socket:
    """Connects through the proxy."""
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def answer(client: socket.socket, said: bytes) -> bytes:
    """Says something and returns what comes back; nothing if the connection is gone."""
    try:
        client.sendall(said)
        return client.recv(1 << 16)
    except ConnectionError:
        return b""


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    """A proxy before it."""
    with contextlib.closing(Proxy.to(f"127.0.0.1:{echo}")) as made:
        yield made


def test_cut_and_healed(proxy: Proxy) -> None:
    """A connection that stands is reset by a cut, new ones are refused, and after healing they work again."""
    with connect(proxy) as client:
        assert answer(client, b"one") == b"one"
        proxy.cut()
        assert answer(client, b"two") == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as client:
        assert answer(client, b"four") == b"four"


def test_dropped(proxy: Proxy) -> None:
    """A connection that stands is reset, and a new one works at once."""
    with connect(proxy) as client:
        assert answer(client, b"one") == b"one"
        assert proxy.connections == 1
        proxy.drop()
        assert answer(client, b"two") == b""
    with connect(proxy) as client:
        assert answer(client, b"three") == b"three"


@pytest.mark.parametrize("silence", [Proxy.silence, Proxy.mute])
def test_silenced(proxy: Proxy, silence: Callable[[Proxy], None]) -> None:
    """Nothing is answered until it resumes; then what was sent meanwhile is."""
    with connect(proxy) as client:
        assert answer(client, b"one") == b"one"
        silence(proxy)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            answer(client, b"two")
        client.settimeout(PATIENCE)
        proxy.resume()
        assert client.recv(3) == b"two"


def test_nobody_there() -> None:
    """Where nobody listens at the far end, a connection is closed, and the proxy goes on."""
    with contextlib.closing(Proxy.to(f"127.0.0.1:{free_port()}")) as proxy:
        for _ in range(2):
            with connect(proxy) as client:
                assert answer(client, b"anybody?") == b""
