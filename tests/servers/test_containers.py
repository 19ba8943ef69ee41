"""If a Docker engine answers, single servers run in its containers; tested with a scripted engine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config

from tests.servers import containers
from tests.servers.plugin import CASSANDRA_IMAGE, ZOOKEEPER_IMAGE

CONTAINER_ID = "c0ffee" + 58 * "0"
HOST_PORT = "49154"
LOGS = {CASSANDRA_IMAGE: "INFO Startup complete\n", ZOOKEEPER_IMAGE: "INFO binding to port 0.0.0.0:2181\n"}
JOIN_SECONDS = 30


class Engine(BaseHTTPRequestHandler):
    """Answers the requests of Docker's API that are needed to start and end one container. See :class:`Scripted`."""

    server: Scripted

    def do_GET(self) -> None:
        path = self._path()
        if path == "/version":
            self._answer(200, {"ApiVersion": "1.44"})
        elif path == "/images/json":
            self._answer(200, [{"Id": "sha256:1", "RepoTags": self.server.images}] * bool(self.server.images))
        elif path.startswith("/images/"):
            self._answer(200, {"Id": "sha256:1", "RepoTags": self.server.images, "Config": {}})
        elif path == "/networks":
            self._answer(200, [])
        elif path.endswith("/logs"):
            self._answer(200, self._frame(LOGS[self.server.created["Image"]]))
        else:
            self._answer(200, self._describe_container())

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"null")
        path = self._path()
        if path == "/images/create":
            self.server.images.append(re.findall("fromImage=([^&]*)", self.path)[0])
            self._answer(200, {"status": "pulled"})
        elif path == "/containers/create":
            self.server.created = body
            self._answer(201, {"Id": CONTAINER_ID, "Warnings": []})
        else:
            self.server.running = path.endswith("/start")
            self._answer(204, None)

    def do_DELETE(self) -> None:
        self.server.running = False
        self.server.removed = True
        self._answer(204, None)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by the base class
        pass

    def _path(self) -> str:
        return re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])

    def _describe_container(self) -> dict[str, Any]:
        ports = {port: [{"HostIp": "0.0.0.0", "HostPort": HOST_PORT}] for port in self.server.created["ExposedPorts"]}
        state = {"Status": "running" if self.server.running else "created", "Running": self.server.running}
        return {
            "Id": CONTAINER_ID,
            "State": state,
            "Config": {"Tty": False},
            "Image": "sha256:1",
            "NetworkSettings": {"Ports": ports},
        }

    def _frame(self, text: str) -> bytes:
        return bytes([1, 0, 0, 0]) + len(text).to_bytes(4, "big") + text.encode()

    def _answer(self, status: int, content: object) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Scripted(ThreadingHTTPServer):
    """The engine, and the requests that it got.

    Attributes:
        images: Names of its images.
        created: The body of the request that created the container.
        running: Whether the container is running.
        removed: Whether the container was removed.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Engine)
        self.images: list[str] = []
        self.created: dict[str, Any] = {}
        self.running = False
        self.removed = False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """An engine at the address in ``DOCKER_HOST``."""
    with Scripted() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{scripted.server_address[1]}")
        # testcontainers would start a container of its own, which removes the others after a kill.
        monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
        # These tests may run in a container themselves.
        monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
        yield scripted
        scripted.shutdown()
        thread.join(JOIN_SECONDS)


@pytest.mark.parametrize(
    ("start", "image", "port"),
    [(containers.cassandra, CASSANDRA_IMAGE, "9042/tcp"), (containers.zookeeper, ZOOKEEPER_IMAGE, "2181/tcp")],
    ids=["cassandra", "zookeeper"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Docker's client leaves sockets to the garbage collector.
def test_a_server_runs_in_a_container_where_an_engine_answers(
    engine: Scripted,
    start: Callable[[str], AbstractContextManager[tuple[str, int]]],
    image: str,
    port: str,
) -> None:
    """A missing image is pulled; clients get the mapped port; the container is removed at the end."""
    assert containers.offers(image)
    with start(image) as (host, mapped):
        assert (host, str(mapped)) == ("127.0.0.1", HOST_PORT)
        assert engine.running
        assert engine.created["Image"] == image
        assert port in engine.created["ExposedPorts"]
    assert engine.removed
    assert not engine.running


def test_an_engine_that_refuses_offers_nothing(engine: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an image is not available, servers are processes of this machine."""
    monkeypatch.setattr(Engine, "do_GET", lambda self: self._answer(500, {"message": "no"}))
    assert not containers.offers(CASSANDRA_IMAGE)
