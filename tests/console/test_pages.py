"""The pages of the console: what each shows to whom, and what it reports as not shown."""

from __future__ import annotations

import hashlib
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

import queuey.console
from queuey.console import applications, pages
from queuey.console.sessions import PageRequest
from tests.console.browser import Browser, simplify_html
from tests.replacing import replace_in
from tests.web.caller import Caller

VENDOR = Path(queuey.console.__file__).parent / "static" / "vendor"


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", simplify_html(html))).split())


def test_headers_of_a_page(browser: Browser, stranger: Browser) -> None:
    """A page runs no script but its own, cannot be framed, is not cached, and sends no referrer to other sites."""
    for reply in (browser.get("/console/health"), stranger.get("/console/login"), browser.get("/console/a/nobody")):
        policy = reply.headers["Content-Security-Policy"]
        nonces = set(re.findall(r"'nonce-([^']+)'", policy))
        assert set(re.findall(r'nonce="([^"]+)"', reply.text)) == nonces
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "same-origin"
        assert not re.search(r"<(script|style)[^>]*>[^<]", reply.text)
        assert not re.search(r'\s(on\w+|style|hx-on[^=]*)="', reply.text)
    first, second = browser.get("/console/health"), browser.get("/console/health")
    assert first.headers["Content-Security-Policy"] != second.headers["Content-Security-Policy"]


def test_files(stranger: Browser) -> None:
    """Each file has its hash in its address, and is cached for ever; another hash is 404."""
    for name in pages.FILE_TYPES:
        reply = stranger.get(pages.file_address(name))
        assert reply.status == 200
        assert "immutable" in reply.headers["Cache-Control"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert stranger.get(f"/console/static/{'0' * 20}/{name}").status == 404
    digest = pages.FILES["console.css"].digest
    for path in ("../pages.py", "vendor/SHA256SUMS", "console.css/"):
        assert stranger.get(f"/console/static/{digest}/{path}").status == 404


def test_vendored_files_are_what_was_checked() -> None:
    """No vendored file differs from its checksum, and each has its licence beside it."""
    lines = (line.split() for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    vendored = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    assert sums.keys() == vendored
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    for name in sums:
        if not name.endswith("LICENSE.txt"):
            assert re.sub(r"\.min\.\w+$", ".LICENSE.txt", name) in sums


@pytest.mark.parametrize("path", ["/console/nothing", "/console/a/queuey/q/parts/nothing", "/console/a/nobody"])
def test_errors_are_pages(browser: Browser, path: str, owner: Caller) -> None:
    """A missing resource is a page that says so; a script gets a part of a page."""
    owner.create("q")
    reply = browser.get(path)
    assert (reply.status, reply.headers["Content-Type"]) == (404, pages.HTML[1])
    assert "<h1>" in reply.text
    assert "<h1>" not in browser.get_part(path).text


def test_defects_are_pages(browser: Browser) -> None:
    """A defect of ours is a page with an id, without the error's text."""

    def fail(*_: object) -> object:
        raise RuntimeError("internals")

    with replace_in(PageRequest, PageRequest.render, fail):
        fresh = Browser(browser.app)
        fresh.cookies = browser.cookies
        reply = fresh.get("/console/health")
    assert reply.status == 500
    assert "internals" not in reply.text


def test_applications(browser: Browser, operator: Browser, limited: Browser) -> None:
    """An operator sees all applications; others see those of their key, and that others are hidden."""
    assert "guest" in operator.get("/console").text
    assert "not shown" not in operator.get("/console").text
    for user in (browser, limited):
        assert user.get("/console").status == 303
        page = user.get("/console", query="prefix=q").text
        assert "guest" not in page.replace("key of", "")
        assert "Other applications are not shown: they need an operator's key." in text_of(page)
    assert "guest" in operator.get("/console", query="prefix=gu").text
    assert "This key may see no application" in operator.get("/console", query="prefix=zz").text


def test_queues_by_prefix_and_page(browser: Browser, owner: Caller) -> None:
    """Pages follow each other by a cursor, within a prefix and without."""
    names = [f"a{number}" for number in range(5)] + ["b*0", "b*1", "c"]
    for name in names:
        owner.create(name)
    with replace_in(applications, applications.PAGE_SIZE, 2):
        assert list_queue_names(browser, "") == names
        assert list_queue_names(browser, "prefix=a") == names[:5]
        assert list_queue_names(browser, "prefix=b*") == ["b*0", "b*1"]
        assert list_queue_names(browser, "prefix=zz") == []


def list_queue_names(browser: Browser, query: str) -> list[str]:
    names: list[str] = []
    address = f"/console/a/queuey/_queues?{query}"
    while True:
        path, _, query = address.partition("?")
        page = simplify_html(browser.get(path, query=query).text)
        names += re.findall(r'<td><a id="queue-\d+" href="[^"]*"><bdi>([^<]*)</bdi>', page)
        following = re.search(r'rel="next" href="([^"]*)"', page)
        if following is None:
            return names
        address = unescape(following[1])


def test_a_limited_key_sees_its_queues(limited: Browser, owner: Caller) -> None:
    """The list has the queues that match the key's patterns, and says that others are not shown."""
    for name in ("orders-1", "orders-2", "private"):
        owner.create(name)
    page = limited.get("/console/a/queuey/_queues").text
    assert "orders-1" in page
    assert "private" not in page
    assert "Other queues are not shown: the key is limited to those that match orders-* ." in text_of(page)
    assert list_queue_names(limited, "prefix=orders-2") == ["orders-2"]
    assert limited.get("/console/a/queuey/private").status == 403
    assert limited.get("/console/a/guest").status == 403


def test_names_are_isolated(browser: Browser, owner: Caller) -> None:
    """A name that is written from right to left does not turn the words of a heading around."""
    owner.create("q")
    for path in ("", "/q", "/q/messages", "/q/options"):
        assert re.search("<h1>.*<bdi>", browser.get(f"/console/a/queuey{path}").text)


def bury(owner: Caller, error: str, text: str, partition: int = 1, *, into: str = "q.dead") -> None:
    dead_headers = {"queue": "q", "partition": str(partition), "id": "0" * 32, "attempts": "3", "error": quote(error)}
    dead_headers |= {"text": quote(text), "at": "2026-01-01T00:00:00.000Z"}
    headers = {f"X-Header-queuey-dead-{name}": value for name, value in dead_headers.items() if value}
    assert owner("POST", into, b"x", headers=headers | {"X-Partition": str(partition)}).status == 201


def test_health(operator: Browser, browser: Browser) -> None:
    """An operator sees what doctor finds, everybody else whether the store can be used."""
    page = operator.get("/console/health").text
    assert "is &lt;b&gt;late&lt;/b&gt;" in page
    assert "reads_waiting" in page
    other = text_of(browser.get("/console/health").text)
    assert "can be written and read" in other
    assert "late" not in other
    assert "not shown: they need an operator's key" in other
