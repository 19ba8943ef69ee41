"""Hostile texts in every name, body, key and header: pages show them only as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.console import pages, queue
from queuey.model.errors import InvalidRequest
from queuey.model.messages import Meta, NewMessage, OffsetChange, QueueSpec, is_readable
from queuey.storage import Store, bridge
from tests.console.browser import Browser
from tests.console.conftest import logged_in

PAYLOADS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "</textarea></title></pre><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}",
    "\u202ereversed & \u0000 \ufffd",
]
ELEMENTS = re.compile(
    "html|head|meta|title|link|script|body|a|header|nav|form|span|input|button|main|ol|li|h[123]|p|b|ul|section|div|table|"
    "thead|tbody|tr|th|td|dl|dt|dd|bdi|code|pre|small|label|noscript|details|summary|time|img|svg|path"
)
ATTRIBUTES = re.compile(
    "lang|charset|name|content|rel|href|nonce|type|src|defer|class|id|tabindex|aria-label|aria-labelledby|method|action|"
    "value|role|scope|for|maxlength|required|autocomplete|autofocus|size|inputmode|title|hidden|download|colspan|"
    "aria-current|aria-sort|alt|width|height|viewbox|preserveaspectratio|d|datetime|placeholder|open|data-label|"
    "aria-pressed|data-(first|scan|stop|live|ended|depth|fresh|tile|span)|hx-(get|trigger|swap|swap-oob|target)"
)


class StrictParser(HTMLParser):
    """Fails at any element or attribute that no template has, and at any external address."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert ELEMENTS.fullmatch(tag), tag
        for name, value in attrs:
            assert ATTRIBUTES.fullmatch(name), (tag, name)
            if name in {"href", "src", "action", "hx-get", "data-live"}:
                assert (value or "").startswith(("/console", "#main")), (tag, value)


@pytest.fixture(params=PAYLOADS)
def payload(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


@pytest.fixture
def place(store: Store, payload: str, app: App) -> str:
    """The address of a queue in which all texts are hostile, as far as allowed."""
    name = payload.replace("/", "\\").replace("\u0000", "")[:50]
    queue, _ = bridge.run(
        store.catalogue.create_queue("queuey", name, QueueSpec(kind="ordered", dead_letter=f"d{name}"[:50]))
    )
    letters, _ = bridge.run(store.catalogue.create_queue("queuey", f"d{name}"[:50], QueueSpec()))
    headers = {"queue": "q", "partition": "1", "id": "0" * 32, "attempts": "1", "error": payload, "text": payload}
    dead = tuple((f"queuey-dead-{key}", value) for key, value in headers.items())
    dead += (("queuey-dead-at", "2026-01-01T00:00:00.000Z"),)
    bridge.run(store.messages.append(letters, [NewMessage(payload, 1, 60, Meta(headers=dead))]))
    hostile = Meta(payload, ((payload, payload),), json=False, key=payload)
    bridge.run(
        store.messages.append(
            queue, [NewMessage(payload, 1, 60, hostile), NewMessage(payload.encode(), 1, 60, hostile)]
        )
    )
    bridge.run(store.offsets.set_offsets(queue, payload, [OffsetChange(1, (1, 1))]))
    return pages.link("a", "queuey", name)


def test_pages_have_hostile_texts_as_text(browser: Browser, place: str) -> None:
    """No page has an element, attribute or address that no template has."""
    paths = [place, f"{place}/messages", pages.link("a", "queuey"), pages.link("a", "queuey", "_failures")]
    paths += [f"{place}/{tab}" for tab in queue.TABS]
    html = browser.get(f"{place}/messages").text
    paths += [html.partition(f'href="{place}/messages/')[2].partition('"')[0]]
    paths[-1] = f"{place}/messages/{paths[-1]}"
    for path in paths:
        for reply in (browser.get(path), browser.get_part(path)):
            assert reply.status == 200, (path, reply)
            StrictParser().feed(reply.text)
    for reply in (browser.get(paths[2], query="depth=on"), browser.get_part(paths[2], query="depth=on")):
        StrictParser().feed(reply.text)


def test_fields_come_back_as_text(browser: Browser, place: str, payload: str) -> None:
    """Typed texts are shown again in their fields, as text."""
    for path, fields in (
        ("/console", {"prefix": payload}),
        ("/console/a/queuey", {"prefix": payload}),
        ("/console/a/queuey/_failures", {"start": payload}),
        (f"{place}/messages", {"text": payload, "header": payload, "value": payload, "key": payload}),
        (f"{place}/messages", {"since": payload}),
        (f"{place}/messages", {"delayed": payload}),
        (f"{place}/messages", {"id": payload, "cursor": payload}),
        ("/console/login", {"next": payload}),
        ("/console/nothing", {payload: payload}),
    ):
        StrictParser().feed(browser.get(path, query=urlencode(fields)).text)
        StrictParser().feed(browser.get_part(path, query=urlencode(fields)).text)


def test_hostile_applications(store: Store, app: App, payload: str) -> None:
    """An application may have any name that the store takes; one with characters that do not show is refused."""
    if not is_readable(payload):
        with pytest.raises(InvalidRequest, match="do not show"):
            bridge.run(store.applications.create_application(payload))
        return
    bridge.run(store.applications.create_application(payload))
    bridge.run(store.applications.add_key(payload, digest_of("8" * 64)))
    browser = logged_in(app, "8" * 64)
    StrictParser().feed(browser.get("/console").text)
