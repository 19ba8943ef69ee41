"""An app with an inbox for each user: serves the page, logs users in, and notifies them through Queuey.

Runs until Ctrl-C. Its users log in without a password, so it listens on this machine alone.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from queuey.cli.dev import CONFIG_FILE, setup, sign_token
from queuey.client import Client, RetryPolicy, queue_name, user_name
from queuey.client.credentials.profile import read_profile
from queuey.settings import DEV_ISSUER

APPLICATION = "queuey"
TOKEN_SECONDS = 600
PAGE = Path(__file__).with_name("index.html")


def inbox(user: str) -> str:
    return queue_name("inbox-{user}", user_name(DEV_ISSUER, user))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class App:
    """The app and the service behind it.

    Args:
        directory: Directory for the data, the issuer's keys and the settings.
        port: Port of the page.
        service_port: Port of the service; 0 chooses a free one.
    """

    def __init__(self, directory: Path, port: int, service_port: int) -> None:
        self._directory = directory
        self._service_port = service_port or free_port()
        self._lock = threading.Lock()
        setup(directory, APPLICATION, [f"http://127.0.0.1:{port}", f"http://localhost:{port}"])
        self._start()
        profile = read_profile(directory / "profile.toml")
        self.config = {"service": profile.url, "application": APPLICATION}
        # The button kills the service, and a busy machine needs seconds to start it again.
        patient = RetryPolicy(cap=1)
        self._client = Client(profile.url, key=profile.key, application=APPLICATION, retry=patient)

    def _start(self) -> None:
        where = ["--config", str(self._directory / CONFIG_FILE), "--port", str(self._service_port)]
        where += ["--data", str(self._directory / "data"), "--profile", str(self._directory / "profile.toml")]
        command = [sys.executable, "-m", "queuey", "serve", *where]
        self._service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._service.stdout is not None  # noqa: S101 - it was asked for
        self._service.stdout.readline()  # It serves.

    def token(self, user: str) -> dict[str, Any]:
        """Logs a user in: creates the inbox if it does not exist, and returns a token and when it expires."""
        self._client.create_queue(inbox(user), ttl=7 * 86_400)
        token, expires = sign_token(self._directory, user, TOKEN_SECONDS)
        return {"token": token, "expires": expires}

    def notify(self, user: str, text: str) -> None:
        self._client.send(inbox(user), json={"text": text})

    def restart_service(self) -> None:
        with self._lock:
            self._service.kill()
            self._service.wait()
            self._start()

    def close(self) -> None:
        self._service.terminate()
        self._service.wait()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of the page, and serves the page itself."""

    app: App

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/":
            self._answer(PAGE.read_bytes(), "text/html; charset=utf-8")
        elif url.path == "/config":
            self._answer(json.dumps(self.app.config).encode())
        elif url.path == "/token":
            self._answer(json.dumps(self.app.token(parse_qs(url.query)["user"][0])).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Notifies a user at ``/notify``; at any other path restarts the service."""
        notification = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/notify":
            self.app.notify(notification["user"], notification["text"])
        else:
            self.app.restart_service()
        self._answer(b"{}")

    def _answer(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Does not log requests."""


def main(port: int = 8000, service_port: int = 0) -> None:
    """Runs the app until it is interrupted, with the service at a free port unless one is given."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="queuey-inbox-") as directory:
        app = Handler.app = App(Path(directory), port, service_port)
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        print(f"Open http://127.0.0.1:{port}/?user=ada and http://127.0.0.1:{port}/?user=bob", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("Ended; nothing is left.")
        finally:
            app.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
