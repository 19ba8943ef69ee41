"""The table of the API page about what a reader gets back of what was sent: every cell of it is tested."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from queuey.client import Client
from queuey.client.credentials.profile import Profile
from tests.commands import Run
from tests.pages import ROOT
from tests.servers.served import Served

PAGE = ROOT / "docs" / "api-messages.md"
FORM = "application/x-www-form-urlencoded"
LATE = "ffffffff000010008000000000000001"

_ROW = re.compile(r"^\| (`.*`) \| (text|value) `\[1\]` \| (?:none|`(.*)`) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str | None]]:
    text = PAGE.read_text()
    section = text.partition("## What comes back")[2].partition("\n## ")[0]
    return [
        (way, kind, named or None)
        for ways, kind, named in _ROW.findall(section)
        for way in re.findall(r"`([^`]+)`", ways)
    ]


def http(profile: Profile, method: str, path: str, body: bytes = b"[1]", **headers: str) -> None:
    """Sends a body without the client, and without default headers. The request must succeed."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(HTTPConnection(urlsplit(profile.url).netloc)) as connection:
        credential = {"Authorization": f"Application {profile.key}"}
        connection.request(method, f"/v1/queuey/{path}", body, credential | named)
        answer = connection.getresponse()
        assert answer.status < 300, answer.read()


@pytest.mark.parametrize(("way", "kind", "named"), rows(), ids=[way for way, _, _ in rows()])
def test_what_comes_back(
    way: str, kind: str, named: str | None, run: Run, client: Client, served: Served, queue: str, tmp_path: Path
) -> None:
    """What was sent comes back as the table says, with the type that it says."""
    file, profile = tmp_path / "FILE", served.profile
    file.write_bytes(b"[1]\n")
    ways: dict[str, Callable[[], Any]] = {
        "PUT, Content-Type: application/json": lambda: http(
            profile, "PUT", f"{queue}/{LATE}", content_type="application/json"
        ),
        "PUT, no Content-Type": lambda: http(profile, "PUT", f"{queue}/{LATE}"),
        "PUT, no Content-Type, X-Encoding: json": lambda: http(profile, "PUT", f"{queue}/{LATE}", x_encoding="json"),
        "POST, no Content-Type": lambda: http(profile, "POST", queue),
        "POST, no Content-Type, X-Encoding: json": lambda: http(profile, "POST", queue, x_encoding="json"),
        "POST, Content-Type: text/csv": lambda: http(profile, "POST", queue, content_type="text/csv"),
        "curl -d [1]": lambda: http(profile, "POST", queue, content_type=FORM),
        "curl -d [1] -H X-Encoding:json -H Content-Type:": lambda: http(profile, "POST", queue, x_encoding="json"),
    }
    if way.startswith("client."):
        eval(way, {"client": client, "q": queue, "id": LATE})
    elif way.startswith("queuey "):
        assert run(*(way.replace(" q ", f" {queue} ").replace("FILE", str(file)).split()[1:])).code == 0
    elif way.startswith("{"):
        http(profile, "POST", queue, b'{"messages":[%b]}' % way.encode(), content_type="application/json")
    else:
        ways[way]()
    (message,) = client.read(queue, delay=False).messages or client.get(queue, LATE)
    assert (message.body, message.content_type) == ([1] if kind == "value" else "[1]", named)
    assert client.get_raw(queue, message).body == b"[1]"
    if not way.startswith(("PUT", "client.put")):
        (shown,) = run("read", queue, "--json", "--no-delay").json_lines
        assert (shown["body"], shown.get("content_type")) == (message.body, named)


def test_the_table_is_read() -> None:
    """Every row of the table is tried."""
    text = PAGE.read_text()
    section = text.partition("## What comes back")[2].partition("\n## ")[0]
    assert len(_ROW.findall(section)) == section.count("\n| ") - 1  # without its head
