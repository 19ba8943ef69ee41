"""The console in Chromium as operators use it, with hostile texts everywhere, on small screens, by the keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, StorageState, ViewportSize, expect

from queuey.api.groups import Heartbeat
from queuey.client import Client, Outgoing
from queuey.operations.queue_activity import CELL_SECONDS
from tests.console.chromium.seeing import COLOR_RULES, WCAG_AA_RULES, Watched, find_accessibility_violations
from tests.servers.served import Served

PAYLOADS = [
    "<script>alert(1)<\\script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    '<a hx-get="x" hx-trigger="load" hx-on:htmx-load="alert(1)">y',
    "{{alert(1)}}",
]
APPLICATION = "queuey"


@pytest.fixture(scope="module")
def filled(client: Client, served: Served) -> Iterator[Client]:
    """Queues with messages, jobs, groups and dead letters, and another application."""
    with served.command("app", "create", "another", "--data", str(served.data)) as command:
        assert command.wait(60) == 0
    client.create_queue("orders", partitions=2, max_deliveries=3)
    client.create_queue("orders.dead")
    client.send_many("orders", [Outgoing(json={"number": number}) for number in range(60)])
    client.send("orders", b"\x00\x01\xfe", partition=1)
    client.consumer_groups.join("billing", ["orders"], instance="machine-1").heartbeat(Heartbeat(wait=1))
    client.create_queue("later")
    client.send("later", "x", delay=86_400)
    client.create_queue("claimed")
    client.send("claimed", "x")
    jobs = client.job_queue("claimed").claim(ttl=3600)
    next(jobs)
    client.create_queue("failed.dead")
    client.schedules.put("nightly", queue="later", message=PAYLOADS[0], cron="0 3 * * *", timezone="Europe/Berlin")
    client.schedules.run("nightly")
    headers = {"queue": "orders", "partition": "1", "id": "0" * 32, "attempts": "1", "error": "Timeout", "text": "late"}
    dead = {f"queuey-dead-{name}": text for name, text in headers.items()}
    client.send("failed.dead", "x", headers=dead | {"queuey-dead-at": "2026-01-01T00:00:00.000Z"})
    yield client
    jobs.close()


def test_from_login_to_logout(watched: Watched, served: Served, filled: Client) -> None:
    """An operator finds a queue, sees its state, opens a message, downloads it, and logs out."""
    page = watched.page
    watched.log_in(str(served.profile.key))
    expect(page.get_by_role("heading", name="Busiest queues")).to_be_visible()
    page.get_by_role("link", name="Queues", exact=True).click()
    page.get_by_label("Names that begin with").fill("ord")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_text("61 messages", exact=True)).to_be_visible()
    expect(page.locator("[data-tile=waiting]")).to_have_text("61")
    parts = page.get_by_role("navigation", name="Pages of the queue")
    parts.get_by_role("link", name="Groups").click()
    expect(page.get_by_text("61 messages and")).to_be_visible()
    parts.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_text("No dead letters.")).to_be_visible()
    parts.get_by_role("link", name="Messages").click()
    expect(page.locator("tbody tr:not(.more)")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr:not(.more)")).to_have_count(61)
    page.locator("tbody .line a").first.click()
    expect(page.get_by_text("00000000  00 01 fe")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"\x00\x01\xfe"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.goto(f"{watched.url}/a/{APPLICATION}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_a_session_that_ends_leads_to_the_form(page: Page, watched: Watched, filled: Client) -> None:
    """When a session has ended, what a script asks for leads to the form."""
    watched.open(f"a/{APPLICATION}/orders/messages")
    page.context.clear_cookies()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    expect(page.locator("[name=next]")).to_have_value(f"/console/a/{APPLICATION}/orders/messages")


def test_a_scan_shows_how_far_it_is_and_stops(page: Page, watched: Watched, client: Client) -> None:
    """A scan runs by itself, shows its progress, stops on demand, and continues."""
    client.create_queue("long")
    client.send_many("long", ["hay"] * 12_000)
    client.send("long", "hay and a needle")

    def slowly(route: Route) -> None:
        page.wait_for_timeout(150)
        route.continue_()

    page.route("**/messages?*cursor*", slowly)
    watched.open(f"a/{APPLICATION}/long/messages?text=nowhere")
    expect(page.get_by_role("status")).to_have_text(re.compile(r"0 found, [1-9][\d,]+ scanned, back to .* UTC"))
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    progress = page.get_by_role("status").inner_text()
    page.wait_for_timeout(500)
    assert page.get_by_role("status").inner_text() == progress
    page.get_by_role("link", name="Go on").click()
    expect(page.get_by_role("status")).to_contain_text("12,001 scanned")
    expect(page.get_by_role("status")).to_contain_text("this is the end")


ADDRESSES = [
    "",
    f"a/{APPLICATION}",
    f"a/{APPLICATION}/orders",
    f"a/{APPLICATION}/orders/jobs",
    f"a/{APPLICATION}/orders/groups",
    f"a/{APPLICATION}/orders/options",
    f"a/{APPLICATION}/failed.dead/dead",
    f"a/{APPLICATION}/claimed/jobs",
    f"a/{APPLICATION}/orders/messages",
    f"a/{APPLICATION}/orders/messages?text=number",
    f"a/{APPLICATION}/orders/acts/send",
    f"a/{APPLICATION}/orders/acts/purge-queue",
    f"a/{APPLICATION}/_acts/key-add",
    f"a/{APPLICATION}/_queues",
    f"a/{APPLICATION}/_queues?sort=waiting&down=on",
    f"a/{APPLICATION}/_overview",
    f"a/{APPLICATION}/_audit",
    f"a/{APPLICATION}/_keys",
    f"a/{APPLICATION}/later/messages?delayed=on",
    f"a/{APPLICATION}/_failures",
    f"a/{APPLICATION}/_groups",
    f"a/{APPLICATION}/_groups/billing",
    f"a/{APPLICATION}/_schedules",
    f"a/{APPLICATION}/_schedules/nightly",
    f"a/{APPLICATION}/_acts/schedule-add",
    f"a/{APPLICATION}/nothing",
    "a/another",
    "?prefix=a",
    "health",
]


SMALL, LARGE = ViewportSize(width=375, height=700), ViewportSize(width=1280, height=800)


@pytest.fixture(scope="module")
def narrow(chromium: Browser, session: StorageState, filled: Client, url: str) -> Iterator[Watched]:
    """A small window with a logged-in user, shared by all pages: a window costs more than a page."""
    with closing(chromium.new_context(viewport=SMALL, storage_state=session)) as context:
        yield Watched(context.new_page(), url)


@pytest.mark.parametrize("address", [*ADDRESSES, "message", "login"])
def test_pages_are_for_everybody(narrow: Watched, axe: str, address: str) -> None:
    """No page is wider than a small or a large window, and axe-core finds nothing in it at AA, in light and in dark."""
    page = narrow.page
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(SMALL)
    narrow.troubles.clear()
    narrow.open(f"a/{APPLICATION}/orders/messages" if address == "message" else address)
    if address == "message":
        page.locator("tbody .line a").first.click()
        expect(page.locator("pre")).to_be_visible()
    if address.endswith("/orders"):
        expect(page.locator("[data-live] canvas")).to_have_count(2)
    if address.endswith("/claimed/jobs"):
        for table in ("Jobs under way", "Workers and their jobs"):
            expect(page.get_by_role("region", name=table)).to_be_visible()
    page.evaluate("for (const more of document.querySelectorAll('details')) more.open = true")
    for size, rules in ((SMALL, WCAG_AA_RULES), (LARGE, COLOR_RULES)):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.emulate_media(color_scheme="light")
        assert find_accessibility_violations(page, axe, rules) == []
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert find_accessibility_violations(page, axe, COLOR_RULES) == []
    assert narrow.troubles == []


def test_the_keyboard(page: Page, watched: Watched, filled: Client) -> None:
    """All that a mouse reaches the keyboard reaches, and one sees where one is."""
    watched.open(f"a/{APPLICATION}/_queues")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the contents")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Names that begin with")).to_be_focused()
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("prefix=orders"))
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(f"document.activeElement === document.body || {outline} !== 'none'")
    assert {"orders", "Log out", "Health", "Show"} <= reached


TEXT = "body => getComputedStyle(body).color"


def test_the_values_of_charts(page: Page, watched: Watched, client: Client) -> None:
    """The last values stand at the ends of the lines with their units, and those under the pointer instead."""
    client.create_queue("drawn")
    if (left := CELL_SECONDS - time.time() % CELL_SECONDS) < CELL_SECONDS / 2:
        time.sleep(left)  # The messages are to stand in the last cell while the page is read.
    client.send_many("drawn", ["x"] * 1230)
    page.add_init_script(
        "{ const fill = CanvasRenderingContext2D.prototype.fillText; window.drawn = [];"
        " CanvasRenderingContext2D.prototype.fillText = function (text, ...rest)"
        " { window.drawn.push(text); return fill.call(this, text, ...rest); } }"
    )
    watched.open(f"a/{APPLICATION}/drawn")
    expect(page.locator("[data-live] canvas")).to_have_count(2)
    page.wait_for_function("window.drawn.includes('1.23K')")
    drawn = page.evaluate("window.drawn")
    assert {"123/s sent", "0/s taken"} <= set(drawn)
    assert any(text in drawn for text in ("100/s", "50/s"))
    page.evaluate("window.drawn.length = 0")
    page.locator("[data-live] .u-over").first.hover()
    page.wait_for_function("window.drawn.some(text => /^\\d\\d:\\d\\d:\\d0$/.test(text))")
    assert "0/s sent" in page.evaluate("window.drawn")
    assert page.locator(".u-legend").count() == 0


def test_numbers_and_lists_go_on_with_the_charts(page: Page, watched: Watched, client: Client) -> None:
    """The number of messages follows the stream, and the list of messages announces new ones, which a link shows."""
    client.create_queue("growing")
    client.send("growing", "first")
    watched.open(f"a/{APPLICATION}/growing")
    expect(page.locator("[data-live]")).to_have_attribute("data-state", "live")
    client.send_many("growing", ["x"] * 1233)
    expect(page.locator("[data-tile=dead]")).to_have_css("color", page.locator("body").evaluate(TEXT))
    client.create_queue("growing.dead")
    client.send("growing.dead", "x")
    expect(page.locator(".figures")).to_contain_text("1,234 messages", timeout=60_000)
    expect(page.locator("[data-tile=waiting]")).to_have_text("1,234")
    expect(page.locator(".tile.dead [data-tile=dead]")).to_have_text("1", timeout=60_000)
    watched.open(f"a/{APPLICATION}/growing/messages")
    expect(page.locator("[data-live]")).to_have_attribute("data-state", "live")
    expect(page.get_by_role("status").filter(has_text="new messages")).to_be_hidden()
    client.send("growing", "the newest")
    page.get_by_role("link", name="show them").click(timeout=60_000)
    expect(page.locator("tbody tr").first).to_contain_text("the newest")


def test_charts_that_stop_say_so(page: Page, watched: Watched, client: Client) -> None:
    """When the stream is refused or ends the page says so, and the charts resume when it is back."""
    client.create_queue("stopped")
    bye = "event: bye\ndata: {}\n\n"
    answers = iter([{"status": 503, "body": "busy"}, {"body": bye, "content_type": "text/event-stream"}])

    def answer(route: Route) -> None:
        next_answer = next(answers, None)
        route.continue_() if next_answer is None else route.fulfill(**next_answer)  # type: ignore[arg-type]

    page.route("**/live*", answer)
    watched.open(f"a/{APPLICATION}/stopped")
    expect(page.get_by_text("The charts have stopped.")).to_be_visible()
    expect(page.locator("[data-live]")).to_have_attribute("data-state", "ended")
    expect(page.locator("[data-live]")).to_have_attribute("data-state", "live")
    expect(page.get_by_text("The charts have stopped.")).to_be_hidden()
    assert next(answers, None) is None
