"""The proxy forwards connections until it is cut or silenced, and again after it is healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.harness.proxy import Proxy

PATIENCE = 60.0
"""Timeout in seconds for what a test waits for."""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that echoes what any number of clients send."""
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
        while data := _receive(client):
            client.sendall(data)


def _receive(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 16)
    except OSError:
        return b""


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def send_and_receive(client: socket.socket, said: bytes) -> bytes:
    try:
        client.sendall(said)
        return client.recv(1 << 16)
    except ConnectionError:
        return b""


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with contextlib.closing(Proxy.to(f"127.0.0.1:{echo}")) as proxy_:
        yield proxy_


def test_cut_and_healed(proxy: Proxy) -> None:
    """A cut resets open connections and refuses new ones; after healing, new ones work again."""
    with connect(proxy) as client:
        assert send_and_receive(client, b"one") == b"one"
        proxy.cut()
        assert send_and_receive(client, b"two") == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as client:
        assert send_and_receive(client, b"four") == b"four"


@pytest.mark.parametrize("silence", [Proxy.silence, Proxy.mute])
def test_silenced(proxy: Proxy, silence: Callable[[Proxy], None]) -> None:
    """Nothing is answered until the proxy resumes; then the requests sent in between are answered."""
    with connect(proxy) as client:
        assert send_and_receive(client, b"one") == b"one"
        silence(proxy)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            send_and_receive(client, b"two")
        client.settimeout(PATIENCE)
        proxy.resume()
        assert client.recv(3) == b"two"
