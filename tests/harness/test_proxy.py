"""The proxy forwards connections until it is cut or silenced, and again after it is healed."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.harness.proxy import Proxy

PATIENCE = 60.0
"""Timeout in seconds for what a test waits for."""


class Echo(socketserver.BaseRequestHandler):
    """Sends back what a client sends."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of a server that echoes what any number of clients send."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        with contextlib.closing(Proxy.to(f"127.0.0.1:{server.server_address[1]}")) as proxy_:
            yield proxy_
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def send_and_receive(client: socket.socket, said: bytes) -> bytes:
    try:
        client.sendall(said)
        return client.recv(1 << 16)
    except ConnectionError:
        return b""


def test_cut_dropped_and_healed(proxy: Proxy) -> None:
    """A cut resets open connections and refuses new ones until it is healed; a drop only resets open ones."""
    for reset, refused in ((proxy.drop, False), (proxy.cut, True)):
        with connect(proxy) as client:
            assert send_and_receive(client, b"one") == b"one"
            assert proxy.connections == 1
            reset()
            assert send_and_receive(client, b"two") == b""
        if refused:
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
