"""The forms of ``/docs`` in Chromium: requests from the page, by the keyboard, and pages without forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from queuey.client import Client
from tests.console.chromium.seeing import Watched, find_accessibility_violations
from tests.servers.served import Served


@pytest.fixture
def page(chromium: Browser, served: Served) -> Iterator[Page]:
    """The page in a window of its own, in which no errors may occur."""
    with closing(chromium.new_context()) as context:
        watched = Watched(context.new_page(), f"http://127.0.0.1:{served.port}/docs")
        watched.page.goto(watched.url)
        yield watched.page
        assert watched.troubles == []


def open_operation(page: Page, operation: str) -> Locator:
    section = page.locator(f"#{operation}")
    page.evaluate("name => { location.hash = name }", operation)
    section.get_by_text("Try it").click()
    expect(section.get_by_role("button", name="Send")).to_be_visible()
    return section


def test_a_post_and_a_get(page: Page, client: Client, served: Served) -> None:
    """The examples are sent as they stand, with the key, and answers are shown; the queue's name is kept."""
    client.create_queue("tried")
    page.get_by_label("Key", exact=True).fill(str(served.profile.key))
    post = open_operation(page, "postMessages")
    post.get_by_label("queue").fill("tried")
    post.get_by_role("button", name="Send").click()
    expect(post.get_by_role("status")).to_have_text("201 Created")
    assert [message.body for message in client.read_all("tried", since=0)] == ["two pears", {"apples": 3}, "four plums"]
    get = open_operation(page, "readMessages")
    expect(get.get_by_label("queue")).to_have_value("tried")
    get.get_by_label("limit").fill("2")
    get.get_by_role("button", name="Send").click()
    expect(get.get_by_role("status")).to_have_text("200 OK")
    headers, _, body = get.get_by_role("region", name="Answer").inner_text().partition("\n\n")
    assert "content-type: application/json" in headers
    assert [message["body"] for message in json.loads(body)["messages"]] == ["two pears", {"apples": 3}]


def test_the_keyboard(page: Page) -> None:
    """A form opens, sends and stops without a mouse; without a key the answer says what is missing."""
    page.locator("summary:has(+ #listQueues)").focus()
    page.keyboard.press("Enter")
    section = page.locator("#listQueues")
    section.get_by_text("Try it").focus()
    page.keyboard.press("Enter")
    expect(section.get_by_role("button", name="Send")).to_be_visible()
    page.keyboard.press("Tab")
    expect(section.get_by_label("limit")).to_be_focused()
    page.keyboard.press("Enter")
    expect(section.get_by_role("status")).to_have_text("403 Forbidden")
    expect(section.get_by_role("region", name="Answer")).to_contain_text("Access was denied")


def test_a_stream_is_shown_until_it_is_stopped(page: Page, client: Client, served: Served) -> None:
    """Messages are shown as they arrive; Stop ends the request and leads back to Send."""
    client.create_queue("streamed")
    page.get_by_label("Key", exact=True).fill(str(served.profile.key))
    section = open_operation(page, "followQueues")
    section.get_by_label("queues").fill("streamed")
    section.get_by_role("button", name="Send").click()
    answer = section.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("retry:")
    client.send("streamed", "<b>news</b>")
    expect(answer).to_contain_text("<b>news</b>")
    section.get_by_role("button", name="Stop").click()
    expect(section.get_by_role("status")).to_have_text("200 OK, stopped")
    expect(section.get_by_role("button", name="Send")).to_be_focused()


def test_the_key_stays_in_its_field(page: Page, served: Served) -> None:
    """The key is in no address, cookie or storage, and cleared when the page is reloaded or left."""
    key = str(served.profile.key)
    page.get_by_label("Key", exact=True).fill(key)
    section = open_operation(page, "describeCaller")
    section.get_by_role("button", name="Send").click()
    expect(section.get_by_role("status")).to_have_text("200 OK")
    kept = page.evaluate(
        "async () => JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage},"
        " history.state, await indexedDB.databases(), await caches.keys()])"
    )
    assert key not in kept
    assert kept.endswith('"",{},{},null,[],[]]')
    page.reload()
    expect(page.get_by_label("Key", exact=True)).to_have_value("")
    page.get_by_label("Key", exact=True).fill(key)
    page.goto("about:blank")
    page.go_back()
    expect(page.get_by_label("Key", exact=True)).to_have_value("")


def test_everybody_can_use_the_forms(page: Page, axe: str) -> None:
    """The page fits into 375 pixels, and axe-core finds nothing in it at AA, in light and in dark."""
    page.set_viewport_size({"width": 375, "height": 700})
    section = open_operation(page, "postMessages")
    section.get_by_label("queue").fill("nowhere")
    section.get_by_role("button", name="Send").click()
    expect(section.get_by_role("status")).to_have_text("404 Not Found")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    # The other operations are like these, and axe-core needs ten seconds for all.
    page.evaluate(
        "document.querySelectorAll('details:has(> section):not(:has(#postMessages, #updateQueue))')"
        ".forEach(one => one.remove())"
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert find_accessibility_violations(page, axe) == []


def test_other_sites_get_hold_of_nothing(chromium: Browser, served: Served) -> None:
    """A page of another origin can neither frame the page nor keep a reference to its window."""
    with closing(chromium.new_context()) as context:
        page = context.new_page()
        address = f"http://127.0.0.1:{served.port}/docs"
        page.route("http://evil.example/", lambda route: route.fulfill(body=f'<iframe src="{address}"></iframe>'))
        page.goto("http://evil.example/")
        assert "Queuey" not in page.frames[1].evaluate("document.body ? document.body.innerText : ''")
        with page.expect_popup() as opening:
            page.evaluate("address => { window.theirs = open(address) }", address)
        expect(opening.value.get_by_label("Key", exact=True)).to_be_visible()
        assert page.evaluate("window.theirs.closed")
