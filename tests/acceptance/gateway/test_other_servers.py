"""The service under other ASGI servers, by HTTP/1.1 and HTTP/2, and with pages of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from queuey.access.credentials.readers import digest_of
from queuey.storage import bridge
from queuey.storage.sqlite import check, open_store
from tests.pages import ROOT, runnable_blocks
from tests.servers.served import environment, free_port

SERVERS = {
    "uvicorn": ("uvicorn", "--lifespan=on", "--host=127.0.0.1", "--port={port}", "--log-level=warning"),
    "hypercorn": ("hypercorn", "--bind=127.0.0.1:{port}", "--error-logfile=-"),
}


@contextmanager
def serving(server: str, place: Path, application: str = "queuey.app.asgi:app") -> Iterator[str]:
    """Runs a server with the service; yields its address. Afterwards its log and its data must be sound."""
    with closing(open_store(place / "data")) as store:
        if "shop" not in bridge.run(store.applications.application_names()):
            bridge.run(store.applications.create_application("shop"))
            bridge.run(store.applications.add_key("shop", digest_of("k")))
    port = free_port()
    command = [sys.executable, "-m", *(word.format(port=port) for word in SERVERS[server]), application]
    log = place / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment(QUEUEY_DATA=str(place / "data"), PYTHONPATH=f"{place}{os.pathsep}{ROOT}"),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx2.get(f"{url}/__heartbeat__", trust_env=False)
                break
            except httpx2.TransportError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)
    assert "Traceback" not in log.read_text(), log.read_text()
    assert check(place / "data") == []


@pytest.mark.parametrize(("server", "http2"), [("uvicorn", False), ("hypercorn", False), ("hypercorn", True)])
def test_other_servers_serve_it(server: str, http2: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """Posts, short and long reads, long polls, claims and refusals are answered; the store is whole afterwards."""
    key = {"Authorization": "Application k"}
    with (
        serving(server, tmp_path) as url,
        httpx2.Client(base_url=f"{url}/v1/shop", headers=key, http1=not http2, http2=http2, trust_env=False) as client,
    ):
        assert client.post("", data={"queue_name": "q"}).status_code == 201
        posted = client.post("/q", content=b"\xff\x00", headers={"X-Header-A": "b"})
        assert posted.status_code == 201
        assert client.post("/q", json={"messages": [{"body": "ü" * 50_000}]}).status_code == 201
        reply = client.get("/q")
        assert (reply.http_version, [m["body"] for m in reply.json()["messages"]]) == (
            "HTTP/2" if http2 else "HTTP/1.1",
            ["/wA=", "ü" * 50_000],
        )
        raw = client.get(f"/q/{posted.json()['messages'][0]['key']}", params={"raw": "true"})
        assert (raw.content, raw.headers["X-Header-a"]) == (b"\xff\x00", "b")
        assert client.head("/q/peek").headers["Content-Length"] == str(len(client.get("/q/peek").content))
        assert client.get("/q", params={"wait": 0.2, "since": "9999999999"}).json()["messages"] == []
        reply = client.post("/q", content=iter([b"a", b"b"]))  # A body of no announced length
        assert reply.status_code == 201, reply.text
        assert client.get("/q", params={"limit": 1, "order": "descending"}).json()["messages"][0]["body"] == "ab"
        claimed = client.post("/q/claims", params={"limit": 1}).json()["messages"]
        receipts = [each["receipt"] for each in claimed]
        assert client.post("/q/claims/ack", json={"receipts": receipts}).status_code == 200
        assert client.get("/q", headers={"Authorization": "Application x"}).status_code == 401
        if not http2:  # hypercorn ends an HTTP/2 connection if more of a body arrives after its early answer
            assert client.post("/q", content=b"x" * (256 * 1024 + 1)).status_code == 413


def test_resources_of_ones_own(tmp_path: Path) -> None:
    """What the page on extending has served is served beside the API."""
    (resources,) = runnable_blocks("docs/extending.md")
    (tmp_path / "resources.py").write_text(resources.text)
    with serving("uvicorn", tmp_path, "resources:app") as url:
        assert httpx2.get(f"{url}/v1/", trust_env=False).status_code == 200
        reply = httpx2.get(f"{url}/echo/x?more=1&other=2", trust_env=False)
        assert (reply.json(), "other" in reply.headers["Warning"]) == ({"status": "ok", "word": "x", "more": "1"}, True)
        assert httpx2.post(f"{url}/echo/x", trust_env=False).status_code == 405


TICKING = """
import asyncio

from queuey.app.asgi import Application
from queuey.web.responses import TEXT, Response


async def tick(request, match):
    async def go_on():
        for number in (1, 2, 3):
            yield b"tick %d;" % number
            await asyncio.sleep(0.05)

    return Response(200, b"", TEXT, pieces=go_on())


app = Application(includes=[lambda config: config.add_resource("tick", "/tick", {"GET": tick})])
"""


@pytest.mark.parametrize("server", SERVERS)
def test_a_response_that_goes_on(server: str, tmp_path: Path) -> None:
    """Pieces come as they are made, to the last one."""
    (tmp_path / "ticking.py").write_text(TICKING)
    with serving(server, tmp_path, "ticking:app") as url, httpx2.stream("GET", f"{url}/tick", trust_env=False) as reply:
        assert b"".join(reply.iter_raw()) == b"tick 1;tick 2;tick 3;"
