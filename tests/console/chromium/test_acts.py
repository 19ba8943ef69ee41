"""Acts of the console in Chromium, from the pages that offer them. tests/console has all acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from queuey.client import Client, Outgoing
from tests.console.chromium.seeing import Watched
from tests.console.chromium.test_chromium import APPLICATION, PAYLOADS

QUEUE = f"a/{APPLICATION}"


@pytest.fixture(scope="module")
def watched(chromium: Browser, session: StorageState, url: str) -> Iterator[Watched]:
    """One window for all acts, with a logged-in user: a window costs more than a page."""
    with closing(chromium.new_context(storage_state=session)) as context:
        yield Watched(context.new_page(), url)


@pytest.fixture
def page(watched: Watched) -> Iterator[Page]:
    """The window, in which no errors may occur."""
    watched.troubles.clear()
    yield watched.page
    assert watched.troubles == []


def read_outcome(page: Page) -> str:
    expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    return page.get_by_role("status").inner_text()


def fill(page: Page, **fields: str) -> None:
    for name, text in fields.items():
        page.locator(f"form.act [name={name}]").fill(text)


def open_queue(watched: Watched, client: Client, name: str, **options: int) -> Page:
    client.create_queue(name, **options)  # type: ignore[arg-type]
    watched.open(f"{QUEUE}/{name}")
    return watched.page


@pytest.mark.parametrize(
    "payload", [*PAYLOADS[:2], *(pytest.param(payload, marks=pytest.mark.slow) for payload in PAYLOADS[2:])]
)
def test_send_and_delete(page: Page, watched: Watched, client: Client, payload: str) -> None:
    """A message is sent, found, and deleted; whatever was typed is shown as text."""
    name = f"sent{PAYLOADS.index(payload)}"
    open_queue(watched, client, name).get_by_role("link", name="Send a message").click()
    fill(page, body=f"{payload}\nline 2", headers=f"x: {payload}", partition="7")
    page.get_by_role("button", name="Send it").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done. partition: 7 is greater")
    expect(page.locator("[name=body]")).to_have_value(f"{payload}\nline 2")
    fill(page, partition="", message_key=payload)
    page.get_by_role("button", name="Send it").click()
    assert "Stored message 1:" in read_outcome(page)
    expect(page.locator("dd", has_text=payload)).to_be_visible()
    page.locator("dd a code").click()
    expect(page.locator("pre")).to_have_text(f"{payload}\nline 2")
    page.get_by_role("link", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    assert read_outcome(page) == "Deleted the message."


def test_one_job(page: Page, watched: Watched, client: Client) -> None:
    """Claims are paused from the page of a queue, and one job is retried, cancelled and released beside its row."""
    open_queue(watched, client, "worked", partitions=1)
    client.send_many("worked", [Outgoing(json={"task": name, "args": [1]}) for name in ("late", "doomed", "held")])
    jobs = client.job_queue("worked")
    jobs.release(jobs.receive(3, ttl=600)[0], delay=600)
    page.get_by_role("link", name="Pause the claims").click()
    page.get_by_role("button", name="Pause the claims").click()
    assert read_outcome(page) == "The claims are paused."
    for task, act, button, text in (
        ("late", "Retry", "Retry it now", "The next claim can get the job."),
        ("doomed", "Cancel", "Cancel it", "Asked its worker to stop. The job is not retried."),
        ("held", "Release", "Release it", "Released: another worker gets it."),
    ):
        watched.open(f"{QUEUE}/worked/jobs")
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs of worked paused")
        page.get_by_role("row", name=f"{task}(1)").get_by_role("link", name=act).click()
        page.get_by_role("button", name=button).click()
        assert read_outcome(page) == text
