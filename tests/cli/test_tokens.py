"""Commands with a user's token instead of a key."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.cli.test_errors import scripted
from tests.client.scripted import Script
from tests.commands import Run

PROFILE = """url = "http://127.0.0.1:9"\napplication = "acme"\ntoken_file = "token"\n"""
WHERE = ("--url", "http://127.0.0.1:9/v1/acme/")


def test_a_token_is_taken_from_the_option_the_variable_or_the_profile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever names the file, its token is sent, and a user who may not list is told what a token allows."""
    token, profile, script = tmp_path / "token", tmp_path / "profile.toml", Script(httpx2.Response(403))
    token.write_text("t0ken\n")
    profile.write_text(PROFILE)
    profile.chmod(0o600)
    with scripted(script):
        ended = run("queue", "list", "--profile", str(profile))
        assert run("read", "inbox", *WHERE, "--token-file", str(token)).code == 1
        monkeypatch.setenv("QUEUEY_TOKEN_FILE", str(token))
        assert run("read", "inbox", *WHERE).code == 1
        monkeypatch.delenv("QUEUEY_TOKEN_FILE")
        by_key = run("queue", "list", *WHERE, "--key", "k")
    credentials = [request.headers["authorization"] for request in script.requests if request.method == "GET"]
    assert credentials == ["Bearer t0ken"] * 3 + ["Application k"]
    assert (ended.code, ended.text) == (1, "")
    assert "a user's token gives access to the user's own queues by name" in ended.err
    assert "t0ken" not in ended.err
    assert "token" not in by_key.err
