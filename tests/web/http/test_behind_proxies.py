"""Behind nginx and HAProxy: a proxy and the service count the same number of requests in every stream of bytes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queuey.web.http.connection import Connection
from queuey.web.http.heads import RequestHead
from queuey.web.http.listening import ProcessConnections
from tests.servers.served import free_port
from tests.waiting import until
from tests.web.http.given import echo, refusal, start
from tests.web.http.test_raw_requests import BAD, GET, GOOD, LAST

NGINX = """
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error;
events {{}}
http {{
    access_log {directory}/access;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    upstream service {{ server 127.0.0.1:{service}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://service;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_next_upstream off;
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    http-reuse always
    retries 0
frontend front
    bind 127.0.0.1:{port}
    default_backend service
backend service
    server one 127.0.0.1:{service}
"""
QUIET = 0.5
"""Seconds of silence after which a proxy that itself waits for more is not expected to answer."""
ANSWER_TIMEOUT = 15.0
"""Max seconds to wait for an answer."""
PROGRAMS = {"nginx": (NGINX, ["nginx", "-c"]), "haproxy": (HAPROXY, ["haproxy", "-db", "-f"])}


class Service:
    """The server in a thread, which counts its requests."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._all = ProcessConnections(self._loop, self.listener, 1000, self._answer, refusal)
        start(self._all)
        self._loop.run_forever()

    async def _answer(self, head: RequestHead, exchange: Connection) -> None:
        self.seen.append(f"{head.method} {head.path.decode('latin-1')}")
        await echo(head, exchange)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._all.stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@pytest.fixture(params=PROGRAMS)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Service, int]]:
    """The service, and the port of a proxy in front of it."""
    text, command = PROGRAMS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    service, port = Service(), free_port()
    path = tmp_path / "proxy.conf"
    path.write_text(text.format(directory=tmp_path, service=service.port, port=port).lstrip())
    process = subprocess.Popen([*command, str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port))
        yield service, port
    finally:
        process.terminate()
        process.wait(60)
        service.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _send(port: int, data: bytes, quiet: float = ANSWER_TIMEOUT) -> bytes:
    """Sends a stream and a last request; returns everything received until a pause."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=quiet) as connection, suppress(OSError):
        connection.sendall(data + LAST["close"][0])
        while piece := connection.recv(65536):
            received += piece
    return received


@pytest.mark.needs_programs
def test_no_request_is_hidden_in_another(front: tuple[Service, int]) -> None:
    """What the service has seen was answered by the proxy as a request of its own, and no more."""
    service, port = front
    streams = {name: data for name, (data, _) in (GOOD | LAST).items()} | BAD
    # nginx answers these in HTTP/0.9, without a head that could be counted.
    streams = {name: data for name, data in streams.items() if name not in {"version 0.9", "no version"}}
    wrong = {}
    for name, data in streams.items():
        # A proxy answers some by itself; the service answers only requests that the proxy has passed on.
        for quiet in (QUIET, ANSWER_TIMEOUT):  # On a busy machine an answer may take longer.
            before = len(service.seen)
            answers = _send(port, data, quiet).count(b"HTTP/1.")
            requests = service.seen[before:]
            if len(requests) <= answers:
                break
        else:
            wrong[name] = requests, answers
    assert not wrong, str(wrong)
    assert _send(port, GET).startswith(b"HTTP/1.1 200")
    assert len(service.seen) > len(GOOD)
