"""Commands with a user's token instead of a key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.commands import Run

PROFILE = """url = "http://127.0.0.1:{port}"\napplication = "acme"\n{last}\n"""


@contextmanager
def refusing(seen: list[str]) -> Iterator[int]:
    """Serves on this machine, records the credentials of GETs and refuses all with 403; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", "none"))
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_token_is_taken_from_the_option_the_variable_or_the_profile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever names the file, its token is sent, and a user who may not list is told what a token allows."""
    (tmp_path / "token").write_text("t0ken\n")
    credentials: list[str] = []
    with refusing(credentials) as port:
        profile = tmp_path / "profile.toml"
        profile.write_text(PROFILE.format(port=port, last='token_file = "token"'))
        profile.chmod(0o600)
        ended = run("queue", "list", "--profile", str(profile))
        where = ("--url", f"http://127.0.0.1:{port}/v1/acme/")
        assert run("read", "inbox", *where, "--token-file", str(tmp_path / "token")).code == 1
        monkeypatch.setenv("QUEUEY_TOKEN_FILE", str(tmp_path / "token"))
        assert run("read", "inbox", *where).code == 1
        monkeypatch.delenv("QUEUEY_TOKEN_FILE")
        by_key = run("queue", "list", *where, "--key", "k")
    assert credentials == ["Bearer t0ken"] * 3 + ["Application k"]
    assert (ended.code, ended.text) == (1, "")
    assert "a user's token gives access to the user's own queues by name" in ended.err
    assert "t0ken" not in ended.err
    assert "token" not in by_key.err
