"""The page of the API at ``/docs`` has everything of the OpenAPI document, under a policy that allows no script.

On the local machine it has a script, for forms that send requests; see ``tests/console/chromium/test_api_page.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from urllib.parse import urljoin

import pytest

from deploy import api_page
from queuey import settings
from queuey.app import file_views
from queuey.app.application import make_app
from queuey.app.serve import open_service
from queuey.app.version_1 import OPERATIONS, document
from queuey.console import pages
from queuey.console.resources import make_console
from queuey.storage import Store
from tests.console.conftest import examine
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, serve

pytestmark = pytest.mark.one_app


class Page(HTMLParser):
    """A parsed page; elements that are not closed in order fail.

    Attributes:
        elements: Name of each element.
        attributes: Attributes of all elements.
        words: Text of the page.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "br", "input"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, name: str) -> list[str]:
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_page(anonymous: Caller, path: str) -> None:
    """Everybody can read the page and keep it for an hour. It leads to the document, also below a path of a proxy."""
    answer = anonymous.get(path)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "public, max-age=3600"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    [link] = [target for target in Page(answer.text).all("href") if not target.startswith("#")]
    assert urljoin(f"https://example.org/queues{path}", link) == "https://example.org/queues/v1/openapi.json"
    head = anonymous("HEAD", path)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(answer.body)))


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("queues.example.com", "https://queues.example.com"),
        ("[::1]:5000", "https://[::1]:5000"),
        ("$(rm -rf)", file_views.ADDRESS),
        ('"><b>', file_views.ADDRESS),
    ],
)
def test_the_first_example_has_the_address(anonymous: Caller, host: str, shown: str) -> None:
    """The first examples have the address that the caller has used, unless it is more than an address."""
    answer = anonymous("GET", "/docs", headers={"Host": host, "X-Forwarded-Proto": "https"})
    assert f"\nurl={shown}\n" in Page(answer.text.replace('">url=', '">\nurl=')).words
    assert answer.headers["Vary"] == "X-Forwarded-Proto"


def policy_of(answer: Reply) -> dict[str, str]:
    parts = (part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    return dict(parts)


def in_page(answer: Reply, element: str) -> tuple[str, str]:
    """Returns the text of the only element with that name and text, and the source by which a policy allows it."""
    [text] = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", answer.text, re.DOTALL)
    return text, f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


CLOSED = {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}


def test_policy(anonymous: Caller) -> None:
    """The policy allows the styles that are in the page, and the page has nothing that the policy forbids."""
    answer = anonymous.get("/docs")
    style, allowed = in_page(answer, "style")
    assert policy_of(answer) == {**CLOSED, "style-src": allowed}
    assert "url(" not in style
    assert "@import" not in style
    page = Page(answer.text)
    names = {name for name, _ in page.attributes}
    picture = {"xmlns", "width", "height", "viewbox", "rx", "d"}
    choices = {"type", "checked", "for", "open", "tabindex", "aria-label", "aria-hidden"}
    assert names - picture - choices == {"class", "charset", "content", "href", "id", "lang", "name"}
    assert set(page.elements) & {"script", "link", "img", "form", "iframe", "object", "base"} == set()


def get_locally(store: Store, *hosts: str) -> Iterator[Reply]:
    """Yields the page of a service that listens on a loopback address, asked for by each name of its host."""
    caller = Caller(make_app(store, on_loopback=True))
    for host in hosts:
        yield caller("GET", "/docs", headers={"Host": host})


def test_policy_of_the_page_with_forms(store: Store) -> None:
    """On this machine the page has one script, which may ask its own origin and make no elements of text."""
    answer, *others = get_locally(store, "127.0.0.1:5000", "127.0.0.2", "LOCALHOST:1", "[::1]:5000")
    assert {policy_of(other)["script-src"] for other in others} == {policy_of(answer)["script-src"]}
    assert policy_of(answer) == {
        **CLOSED,
        "style-src": in_page(answer, "style")[1],
        "script-src": in_page(answer, "script")[1],
        "connect-src": "'self'",
        "require-trusted-types-for": "'script'",
    }
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    page = Page(answer.text)
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert page.elements.count("script") == 1


def test_other_names_of_this_machine_get_no_forms(store: Store) -> None:
    """Under a name that a stranger may have bound to this machine, the page has no field for a key."""
    hosts = ("queues.example.com", "127.0.0.1.example.com", "localhost.example", "10.0.0.1", "[::1")
    assert not any("<script" in answer.text for answer in get_locally(store, *hosts))


@pytest.mark.parametrize(
    ("host", "listens", "local"),
    [("127.0.0.1", True, True), ("localhost", True, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)],
)
def test_where_a_service_has_forms(tmp_path: Path, host: str, listens: bool, local: bool) -> None:  # noqa: FBT001
    """The setting of the host decides, except under another ASGI server, which may listen anywhere."""
    app = open_service(settings.load({"host": host, "data": str(tmp_path)}, {}).settings, listens=listens)
    app.service.store.close()
    assert app.on_loopback is local


def test_the_page_stays_small() -> None:
    """Styles and script together have at most 20 kB, the page 400 kB, and the script needs nothing from elsewhere."""
    assert len(file_views.STYLE.encode()) + len(file_views.SCRIPT.encode()) <= 20_000
    assert len(api_page.make_page().encode()) + len(file_views.STYLE.encode()) <= 400_000
    assert not any(word in file_views.SCRIPT for word in ("import", "http"))


def test_the_page_is_up_to_date() -> None:
    """The page that the service sends is that of its document; ``python -m deploy.api_page`` makes it again."""
    assert api_page.RESULT.read_text() == api_page.make_page()


def test_everything_is_on_the_page(anonymous: Caller) -> None:
    """The page has each operation, parameter and type of the document, and each link within it leads somewhere."""
    page = Page(anonymous.get("/docs").text)
    ids = Counter(page.all("id"))
    assert max(ids.values()) == 1
    assert {target[1:] for target in page.all("href") if target.startswith("#")} <= ids.keys()
    published = document()
    for path, methods in published["paths"].items():
        assert path in page.words
        for operation in methods.values():
            assert operation["operationId"] in ids
            assert operation["summary"].replace("`", "") in page.words
            for sample in operation["x-codeSamples"]:
                assert sample["source"] in page.words
            for parameter in operation["parameters"]:
                assert parameter["name"] in page.words
                assert parameter["description"].replace("`", "") in page.words
    for name, schema in published["components"]["schemas"].items():
        assert f"type-{name}" in ids
        assert all(field in page.words for field in schema["properties"])
    assert {f"error-{status}" for status in published["components"]["responses"]} <= ids.keys()
    assert page.elements.count("section") == 1 + len(OPERATIONS) + len(published["components"]["schemas"])


def test_text_stays_text() -> None:
    """Texts of the document are shown, and never become an element or an attribute of the page."""
    bad = '<img src="x" onerror="alert(1)"> & `<b>`'

    def spoil(value: object) -> object:
        if isinstance(value, dict):
            return {name: spoil(part) for name, part in value.items()}
        if isinstance(value, list):
            return [spoil(part) for part in value]
        return f"{value}{bad}" if isinstance(value, str) and not value.startswith("#/") else value

    good = document()
    spoiled = spoil(json.loads(json.dumps(good)))
    assert isinstance(spoiled, dict)
    page = Page(api_page.render_page(spoiled))
    assert {"img", "b"} & set(page.elements) == set()
    assert "onerror" not in {name for name, _ in page.attributes}
    assert page.words.count("<img src=") > 100


# Files that the service sends are read at its start: installing another version removes them


PAGES = ["/docs", "/client/queuey.js", "/client/queuey.d.ts", "/console/login"]


def test_a_file_that_is_gone(store: Store) -> None:
    """A file that was removed is sent as it was at the start."""
    app = make_app(store, includes=[make_console(examine)])
    paths = [*PAGES, *map(pages.file_address, pages.FILE_TYPES)]

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError

    with replace(Path.read_text, gone), replace(Path.read_bytes, gone), replace(resources.files, gone):
        statuses = {path: serve(app).reply_to(Request("GET", path)).status for path in paths}
    assert statuses == dict.fromkeys(paths, 200)
