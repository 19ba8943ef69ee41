"""The client in Chromium, on a page of another origin: the inbox of ``make inbox``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.pages import SCRIPTS, Reader, blocks, runnable_blocks
from tests.servers.chromium import CHROMIUM, chromium
from tests.servers.processes import ending
from tests.servers.served import Served, environment, free_port

INBOX = Path(__file__).parents[2] / "deploy" / "demo" / "inbox" / "run.py"
PATH = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
LANGUAGES = ("toml", "python", "html")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed")


@pytest.fixture
def url() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(INBOX), str(port), str(free_port())]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True
    )
    with ending(process):
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("Open http" in line for line in lines)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_an_inbox(browser: Browser, url: str) -> None:
    """Two users in two windows: each sees at once what is for them alone, also after a kill, until it is dismissed."""
    ada, bob = browser.new_page(), browser.new_page()
    troubles: list[str] = []
    for page, user in ((ada, "ada"), (bob, "bob")):
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(f"{url}/?user={user}")
        expect(page.locator("#state")).to_have_text("live")

    def notify(user: str, text: str) -> None:
        bob.select_option("select", user)
        bob.fill("input", text)
        bob.click("#notify button")

    notify("ada", "first")
    notify("bob", "for Bob")
    expect(ada.locator("li")).to_have_text(["firstDismiss"])
    expect(bob.locator("li")).to_have_text(["for BobDismiss"])
    bob.click("#kill")
    notify("ada", "second")
    expect(ada.locator("li")).to_have_text(["secondDismiss", "firstDismiss"])
    expect(ada.locator("#state")).to_have_text("live")
    if shots := os.environ.get("QUEUEY_SCREENSHOTS"):
        for page, user in ((ada, "ada"), (bob, "bob")):
            page.set_viewport_size({"width": 640, "height": 420})
            page.screenshot(path=f"{shots}/inbox-{user}.png")
    expect(ada.locator("#unread")).to_have_text("2 unread")
    other = browser.new_page()
    other.goto(f"{url}/?user=ada")
    expect(other).to_have_title("(2) Inbox")
    ada.hover("ul")
    for page in (ada, other):
        expect(page).to_have_title("Inbox")
        expect(page.locator("li.unread")).to_have_count(0)
    notify("ada", "third")
    expect(other.locator("li.unread")).to_have_text(["thirdDismiss"])
    other.reload()
    expect(other).to_have_title("(1) Inbox")
    expect(ada).to_have_title("(1) Inbox")
    other.locator("li", has_text="third").locator("button").click()
    for page in (ada, other):
        expect(page).to_have_title("Inbox")
    ada.reload()
    ada.locator("li", has_text="first").locator("button").click()
    expect(ada.locator("li")).to_have_text(["secondDismiss"])
    ada.reload()
    expect(ada.locator("li")).to_have_text(["secondDismiss"])
    expect(bob.locator("li")).to_have_text(["for BobDismiss"])
    assert troubles == []


def test_the_badge_of_a_long_inbox(browser: Browser, url: str) -> None:
    """With more than a hundred messages, of which some are read, every window shows the same count of unread ones."""
    first = browser.new_page()
    first.goto(f"{url}/?user=ada")
    expect(first.locator("#state")).to_have_text("live")
    notify = """async ([from, to]) => {
        for (let number = from; number < to; number += 1) {
            const body = JSON.stringify({ user: "ada", text: `message ${number}` });
            await fetch("/notify", { method: "POST", body });
        }
    }"""
    first.evaluate(notify, [0, 95])
    expect(first).to_have_title("(95) Inbox")
    first.hover("ul")
    expect(first).to_have_title("Inbox")
    first.evaluate(notify, [95, 125])
    second = browser.new_page()
    second.goto(f"{url}/?user=ada")
    first.evaluate(notify, [125, 127])
    for page in (first, second):
        expect(page.locator("li")).to_have_count(127)
        expect(page).to_have_title("(32) Inbox")
    for number in (126, 5):
        item = second.locator("li", has_text=f"message {number}Dismiss").first
        item.locator("button").dispatch_event("click")  # A click would enter the list, which marks it as read.
    for page in (first, second):
        expect(page).to_have_title("(31) Inbox")
    first.evaluate(notify, [127, 198])
    for page in (first, second):
        expect(page).to_have_title("(100+) Inbox")


def test_the_page_on_notifications(browser: Browser, tmp_path: Path) -> None:
    """Typed from an empty folder on, the page's commands show each user their own inbox, and new messages in it."""
    page, port = "docs/inbox.md", free_port()
    settings, program, html = (next(each for each in blocks(page) if each.language == one) for one in LANGUAGES)
    program.save(tmp_path)
    typed = [block for block in runnable_blocks(page) if block.language == "sh"]

    def here(text: str, served: int) -> str:
        return text.replace(":8000", f":{port}").replace(":5000", f":{served}")

    setup = here(typed[0].text, 0)
    subprocess.run(["/bin/sh", "-euc", setup], cwd=tmp_path, env=environment(PATH=PATH), check=True, timeout=60)
    config = tmp_path / "queuey-dev.toml"
    assert config.read_text() == here(settings.text, 0)
    with Served(tmp_path, ["--config", str(config)]) as served:
        html._replace(text=here(html.text, served.port)).save(tmp_path)
        reader = Reader(served, tmp_path)
        reader.run(page, typed[1])
        command = [sys.executable, "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        pages = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        with ending(pages):
            assert pages.stdout is not None
            assert "Serving" in pages.stdout.readline()
            ada, bob = browser.new_page(), browser.new_page()
            for window, user in ((ada, "ada"), (bob, "bob")):
                window.goto(f"http://127.0.0.1:{port}/?user={user}")
            expect(ada.locator("li")).to_have_text(["Welcome, Ada!"])
            expect(bob.locator("li")).to_have_text(["Welcome, Bob!"])
            reader.run(page, typed[2])
            expect(ada.locator("li")).to_have_text(["Welcome, Ada!", "Your parcel arrives today."])
            ada.locator("li").first.click()
            expect(ada.locator("li")).to_have_text(["Your parcel arrives today."])
            ada.reload()
            expect(ada.locator("li")).to_have_text(["Your parcel arrives today."])
            expect(bob.locator("li")).to_have_text(["Welcome, Bob!"])
