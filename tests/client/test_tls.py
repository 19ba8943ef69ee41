"""Certificates are checked: by the system's authorities, by given ones, or not at all when told so."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from queuey.client import Client, ConnectionFailed, RetryPolicy

CERTIFICATES = Path(__file__).parent.parent / "acceptance" / "tls"
CERTIFICATE = CERTIFICATES / "cert.pem"
ONCE = RetryPolicy(deadline=0)


class Heartbeat(BaseHTTPRequestHandler):
    """Answers everything with OK."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, *_: object) -> None:
        pass


class QuietServer(HTTPServer):
    """A server that logs no failed handshakes."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """URL of a server whose certificate is not signed by any authority of the system."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, CERTIFICATES / "key.pem")
    with QuietServer(("127.0.0.1", 0), Heartbeat) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(60)


def test_an_unknown_authority_is_refused(url: str) -> None:
    """By default, a certificate of an unknown authority ends the connection before anything is sent."""
    with (
        Client(url, key="k", retry=ONCE) as client,
        pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED") as caught,
    ):
        client.heartbeat()
    assert "Start the service" not in str(caught.value)


def test_a_server_without_tls() -> None:
    """An https address of a server that speaks plain HTTP is named as the cause, and no other one is."""
    with QuietServer(("127.0.0.1", 0), Heartbeat) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with (
            Client(f"https://127.0.0.1:{server.server_port}", key="k", retry=ONCE) as client,
            pytest.raises(ConnectionFailed, match="Without TLS, the address of the server begins with http:") as caught,
        ):
            client.heartbeat()
        server.shutdown()
        thread.join(60)
    assert "Start the service" not in str(caught.value)


@pytest.mark.parametrize("kind", ["path", "text", "context", "unchecked"])
def test_authorities_may_be_given(url: str, kind: str) -> None:
    """A CA file, an SSL context, or False make it work."""
    settings: dict[str, Path | str | ssl.SSLContext | bool] = {
        "path": CERTIFICATE,
        "text": str(CERTIFICATE),
        "context": ssl.create_default_context(cafile=CERTIFICATE),
        "unchecked": False,
    }
    with Client(url, key="k", verify=settings[kind], retry=ONCE) as client:
        client.heartbeat()
