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


def test_values_stay_in_their_place(page: Page, served: Served) -> None:
    """A name does not lead to another path, and large numbers of an answer are shown as they were sent."""
    section = open_operation(page, "describeQueue")
    section.get_by_label("queue").fill("..")
    section.get_by_role("button", name="Send").click()
    expect(section.get_by_role("status")).to_contain_text("no name is empty, '.' or '..'")
    page.route(
        "**/orders/info", lambda route: route.fulfill(body='{"a":[12345678901234567890,{}]}', content_type="a/json")
    )
    section.get_by_label("queue").fill("orders")
    section.get_by_role("button", name="Send").click()
    expect(section.get_by_role("region", name="Answer")).to_contain_text("12345678901234567890,\n    {}")


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


def test_requests_carry_no_session(chromium: Browser, served: Served, url: str) -> None:
    """Requests of the page do not use the session of a user who is logged in at the console."""
    with closing(chromium.new_context()) as context:
        page = context.new_page()
        Watched(page, url).log_in(str(served.profile.key))
        page.goto(f"http://127.0.0.1:{served.port}/docs")
        section = open_operation(page, "describeCaller")
        with page.expect_request("**/_me") as sent:
            section.get_by_role("button", name="Send").click()
        assert "cookie" not in sent.value.all_headers()


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


@pytest.fixture
def reading(chromium: Browser, served: Served) -> Iterator[Page]:
    """The page in a window without scripts."""
    with closing(chromium.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{served.port}/docs")
        yield page


def test_languages_without_scripts(reading: Page) -> None:
    """A language that is chosen at one example, or by the keyboard at the top, is that of all examples."""
    post, create = reading.locator("#postMessages .api-request"), reading.locator("#createQueue .api-request")
    expect(create.locator(".api-curl")).to_be_visible()
    expect(create.locator(".api-python")).to_be_hidden()
    post.get_by_text("Python", exact=True).click()
    expect(create.locator(".api-python")).to_contain_text("client.create_queue(")
    expect(create.locator(".api-curl")).to_be_hidden()
    reading.get_by_role("radio", name="Python").focus()
    reading.keyboard.press("ArrowRight")
    expect(create.locator(".api-javascript")).to_be_visible()
    expect(create.locator(".api-python")).to_be_hidden()


def test_links_unfold(reading: Page) -> None:
    """A link of the list leads to a folded operation, and one to a folded type, and both are unfolded."""
    expect(reading.locator("#showSchedule")).to_be_hidden()
    reading.locator("nav a[href='#showSchedule']").click()
    expect(reading.locator("#showSchedule")).to_be_visible()
    reading.locator("#showSchedule a[href='#type-ScheduleState']").click()
    expect(reading.locator("#type-ScheduleState")).to_be_in_viewport()


@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_is_not_long(reading: Page, width: int) -> None:
    """It has at most 20,000 pixels, and the first operation is near its beginning; nothing is wider than the window."""
    reading.set_viewport_size({"width": width, "height": 800})
    height, wide, first = reading.evaluate(
        "[document.documentElement.scrollHeight, document.documentElement.scrollWidth,"
        " document.querySelector('.api-operation').getBoundingClientRect().top]"
    )
    assert height <= 20_000
    assert wide <= width
    assert first <= 1_100


def test_a_page_behind_a_proxy_has_no_forms(chromium: Browser, served: Served) -> None:
    """Where a proxy asks for the page by a loopback address, the browser's own address decides: no form is made."""
    with closing(chromium.new_context()) as context:
        page = context.new_page()
        answer = page.request.get(f"http://127.0.0.1:{served.port}/docs")
        assert "<script" in answer.text()
        page.route("http://queues.example/docs", lambda route: route.fulfill(response=answer))
        page.goto("http://queues.example/docs")
        expect(page.get_by_text("Try it")).to_have_count(0)
        expect(page.get_by_label("Key", exact=True)).to_have_count(0)


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
