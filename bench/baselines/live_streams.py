"""Servers of live streams as baselines: Centrifugo, built with Go, and Durable Streams' reference server, by npm.

Each server starts with one stream per inbox and yields the paths of the streams and a function to publish.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import platformdirs

from bench.harness import Skip, Void
from bench.started import go_programs
from bench.started.processes import Process, launched
from tests.servers.served import free_port

CENTRIFUGO, DURABLE_STREAMS = "6.9.1", "0.3.7"
API_KEY = "bench"
START_SECONDS = 30.0
PACKAGE = "@durable-streams/server"
SCRIPT = """
import { DurableStreamTestServer } from "@durable-streams/server";
const [port, dataDir] = process.argv.slice(2);
await new DurableStreamTestServer({ port: Number(port), dataDir, host: "127.0.0.1", compression: false }).start();
"""


@dataclass(frozen=True)
class Streams:
    """A running server with one stream per inbox.

    Attributes:
        process: The server.
        paths: Path of each stream, to follow it as server-sent events.
        publish: Publishes a text to the inbox with this number.
    """

    process: Process
    paths: Sequence[str]
    publish: Callable[[int, str], None]


class Caller:
    """Sends requests one by one over one connection; reconnects if the server has closed it.

    Raises Void if the server refuses a request.
    """

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def send(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> None:
        try:
            answer = self._answer(method, path, body, headers)
        except ConnectionError:  # The server closes idle connections.
            self._connection.close()
            answer = self._answer(method, path, body, headers)
        text = answer.read()
        if answer.status >= http.client.MULTIPLE_CHOICES:
            raise Void(f"{method} {path}: {answer.status} {text[:200]!r}")

    def _answer(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self._connection.request(method, path, body.encode(), dict(headers))
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def centrifugo(directory: Path, count: int) -> Iterator[Streams]:
    """Runs Centrifugo, which keeps publications in memory only.

    Raises:
        Skip: Centrifugo could not be built.
    """
    program = go_programs.install("centrifugo", "github.com/centrifugal/centrifugo/v6", CENTRIFUGO)
    port = free_port()
    settings = {
        "http_server": {"address": "127.0.0.1", "port": str(port)},
        "http_api": {"key": API_KEY},
        "client": {"insecure": True},
        "uni_sse": {"enabled": True},
        "channel": {"without_namespace": {"allow_subscribe_for_client": True}},
        "log": {"level": "error"},
    }
    (directory / "config.json").write_text(json.dumps(settings), "utf-8")
    command = [str(program), "--config", str(directory / "config.json")]
    with launched("centrifugo", command, port, directory) as process, contextlib.closing(Caller(port)) as caller:
        process.wait_until_serving(START_SECONDS)

        def publish(number: int, text: str) -> None:
            body = json.dumps({"channel": f"inbox{number:05}", "data": text})
            caller.send("POST", "/api/publish", body, {"X-API-Key": API_KEY, "Content-Type": "application/json"})

        def path(number: int) -> str:
            connect: dict[str, object] = {"subs": {f"inbox{number:05}": {}}}
            return f"/connection/uni_sse?cf_connect={quote(json.dumps(connect))}"

        yield Streams(process, [path(number) for number in range(count)], publish)


@contextlib.contextmanager
def durable_streams(directory: Path, count: int) -> Iterator[Streams]:
    """Runs the reference server, which stores its streams in files.

    Raises:
        Skip: The server could not be installed.
    """
    script, port = _install_reference_server(), free_port()
    command = ["node", str(script), str(port), str(directory / "streams")]
    headers = {"Content-Type": "text/plain"}
    with launched("durable-streams", command, port, directory) as process, contextlib.closing(Caller(port)) as caller:
        process.wait_until_serving(START_SECONDS)
        names = [f"/inbox{number:05}" for number in range(count)]
        for name in names:
            caller.send("PUT", name, "", headers)
        yield Streams(
            process,
            [f"{name}?offset=now&live=sse" for name in names],
            lambda number, text: caller.send("POST", names[number], text, headers),
        )


def _install_reference_server() -> Path:
    """Installs the reference server with npm unless it is cached; returns its script."""
    npm = shutil.which("npm")
    if npm is None:
        raise Skip("needs npm, which is not installed")
    directory = platformdirs.user_cache_path("queuey-bench") / f"durable-streams-{DURABLE_STREAMS}"
    script = directory / "server.mjs"
    if not script.exists() or script.read_text("utf-8") != SCRIPT:
        directory.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(directory)]
        process = subprocess.run(
            [*command, f"{PACKAGE}@{DURABLE_STREAMS}"], capture_output=True, text=True, timeout=300, check=False
        )
        if process.returncode:
            raise Skip(f"{PACKAGE} could not be installed: {process.stderr[-300:]}")
        script.write_text(SCRIPT, "utf-8")
    return script
