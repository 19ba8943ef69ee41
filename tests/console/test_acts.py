"""Acts of the console in Chromium: a user goes through each from the page where it is offered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from queuey.client import Client, Outgoing
from tests.console.seeing import Watched
from tests.console.test_chromium import APPLICATION, PAYLOADS

QUEUE = f"a/{APPLICATION}"


@pytest.fixture(scope="module")
def watched(chromium: Browser, session: StorageState, url: str) -> Iterator[Watched]:
    """One window for all acts, whose user has logged in: a window costs more than a page."""
    with closing(chromium.new_context(storage_state=session)) as context:
        yield Watched(context.new_page(), url)


@pytest.fixture
def page(watched: Watched) -> Iterator[Page]:
    """The window, in which nothing may go wrong."""
    watched.troubles.clear()
    yield watched.page
    assert watched.troubles == []


def done(page: Page) -> str:
    """Returns what the page of a finished act says."""
    expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    return page.get_by_role("status").inner_text()


def fill(page: Page, **fields: str) -> None:
    """Fills in fields by their names."""
    for name, text in fields.items():
        page.locator(f"form.act [name={name}]").fill(text)


def open_queue(watched: Watched, client: Client, name: str, **options: int) -> Page:
    """Opens the page of a new queue."""
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
    assert "Stored message 1:" in done(page)
    expect(page.locator("dd", has_text=payload)).to_be_visible()
    page.locator("dd a code").click()
    expect(page.locator("pre")).to_have_text(f"{payload}\nline 2")
    page.get_by_role("link", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    assert done(page) == "Deleted the message."


def test_purge_and_delete_a_queue(page: Page, watched: Watched, client: Client) -> None:
    """The browser wants the name, and the service the right one."""
    open_queue(watched, client, "emptied")
    client.send_many("emptied", ["x"] * 3)
    page.get_by_role("link", name="Purge the queue").click()
    page.get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Purge the queue: emptied")
    fill(page, typed="another")
    page.get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_role("alert")).to_contain_text("The name was not typed as it is")
    fill(page, typed="emptied")
    page.get_by_role("button", name="Purge the queue").click()
    assert done(page) == "Removed all messages, about 3."
    page.get_by_role("link", name="emptied").first.click()
    page.get_by_role("link", name="Delete the queue").click()
    fill(page, typed="emptied")
    page.get_by_role("button", name="Delete the queue").click()
    assert done(page) == "Deleted queue emptied."


def test_options(page: Page, watched: Watched, client: Client) -> None:
    """An option is changed, and the form has what is in force."""
    open_queue(watched, client, "changed", ttl=600).get_by_role("link", name="Change the options").click()
    expect(page.locator("[name=ttl]")).to_have_value("600")
    fill(page, ttl="", partitions="4")
    page.get_by_role("button", name="Change the options").click()
    assert done(page) == "Changed partitions from 1 to 4, ttl from 600 to the usual."


def test_move(page: Page, watched: Watched, client: Client) -> None:
    """Messages are moved to another queue."""
    client.create_queue("target")
    open_queue(watched, client, "moved").get_by_role("link", name="Move the messages").click()
    fill(page, to="target")
    page.get_by_role("button", name="Move them").click()
    assert "from moved to target" in done(page)
    watched.open(f"{QUEUE}/moved")
    expect(page.locator("section", has_text="Moves").get_by_role("cell", name="target")).to_be_visible()


def test_release(page: Page, watched: Watched, client: Client) -> None:
    """A job that a worker has is released from the list of jobs."""
    client.create_queue("jobs")
    client.send("jobs", "work")
    for job in client.job_queue("jobs").claim(idle=0):
        watched.open(f"{QUEUE}/jobs")
        page.get_by_role("row", name=re.compile(job.message.id)).get_by_role("link", name="Release").click()
        page.get_by_role("button", name="Release it").click()
        assert done(page) == "Released: another worker gets it."
        again = next(client.job_queue("jobs").claim(idle=0))
        assert (again.message.id, again.deliveries) == (job.message.id, 2)
        again.ack()
        break


def test_dead_letters_go_back(page: Page, watched: Watched, client: Client) -> None:
    """Dead letters with one reason go back, then all others."""
    client.create_queue("failed")
    client.create_queue("failed.dead")
    about = {"queue": "failed", "partition": "1", "id": "0" * 32, "attempts": "3", "at": "2026-01-01T00:00:00.000Z"}
    for error in ("Timeout", "Timeout", "KeyError"):
        headers = {f"queuey-dead-{name}": text for name, text in (about | {"error": error}).items()}
        client.send_many("failed.dead", [Outgoing("x", headers=headers)])
    watched.open(f"{QUEUE}/failed")
    page.get_by_role("row", name=re.compile("Timeout")).get_by_role("link", name="Send these back").click()
    expect(page.get_by_text("of 3 messages in failed.dead: 2.")).to_be_visible()
    page.get_by_role("button", name="Send them back").click()
    assert done(page) == "Sent back 2 to failed."
    watched.open(f"{QUEUE}/failed")
    page.get_by_role("link", name="Send all back").click()
    page.get_by_role("button", name="Send them back").click()
    assert done(page) == "Sent back 1 to failed."


def test_offsets_of_a_group(page: Page, watched: Watched, client: Client) -> None:
    """The offsets of a group are set after the page has shown what would change."""
    client.create_queue("read")
    receipts = client.send_many("read", ["a", "b", "c"])
    client.commit("read", "mailer", {1: receipts[-1].id})
    watched.open(f"{QUEUE}/read")
    page.locator("summary").click()
    page.get_by_role("link", name="Set its offsets").click()
    fill(page, to="earliest")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("tbody tr td").last).to_have_text("3")
    page.get_by_role("button", name="Set the offsets").click()
    assert done(page).startswith("Set 1 offsets of group mailer to ")


def test_keys(page: Page, watched: Watched) -> None:
    """A key is made, shown once and revoked; the audit log has both."""
    watched.open(QUEUE)
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("link", name="Make a key").click()
    page.locator("[name=read]").select_option("yes")
    fill(page, note=PAYLOADS[0], queues="orders-*")
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("pre")).to_have_text(re.compile("^[0-9a-f]{64}$"))
    page.get_by_role("link", name="All keys").click()
    page.get_by_role("row", name=re.compile("orders-")).get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke it").click()
    assert done(page).startswith("Revoked key ")
    watched.open(f"{QUEUE}/_audit")
    expect(page.get_by_role("cell", name="key-revoke")).to_be_visible()
    expect(page.get_by_role("cell", name="key-add")).to_be_visible()


def test_schedules(page: Page, watched: Watched, client: Client) -> None:
    """A schedule is made, run, paused and removed; its last tick leads to the message."""
    open_queue(watched, client, "scheduled").get_by_role("link", name=APPLICATION, exact=True).click()
    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("link", name="Make a schedule").click()
    fill(page, schedule="s", queue="scheduled", cron="0 3 * *", body=PAYLOADS[0])
    page.get_by_role("button", name="Make a schedule").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done. cron: ")
    fill(page, cron="0 3 * * *")
    page.get_by_role("button", name="Make a schedule").click()
    assert done(page) == "Saved schedule s."
    page.get_by_role("link", name="s", exact=True).click()
    page.get_by_role("link", name="Run now").click()
    page.get_by_role("button", name="Run now").click()
    assert done(page).startswith("Stored message ")
    page.get_by_role("link", name="s", exact=True).click()
    page.get_by_role("link", name="Message", exact=True).click()
    expect(page.locator("pre")).to_have_text(PAYLOADS[0])
    for act, said in (("Pause", "Paused schedule s."), ("Resume", "Resumed schedule s.")):
        watched.open(f"{QUEUE}/_schedules/s")
        page.get_by_role("link", name=act).click()
        page.get_by_role("button", name=act).click()
        assert done(page) == said
    watched.open(f"{QUEUE}/_schedules/s")
    page.get_by_role("link", name="Remove").click()
    page.locator("[name=typed]").fill("s")
    page.get_by_role("button", name="Remove").click()
    assert done(page) == "Removed schedule s."
    assert client.schedules.list() == ()
