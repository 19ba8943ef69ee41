"""The console's pictures in the documentation: each contains a hash of the page's text, so none goes stale.

``QUEUEY_SCREENSHOTS=docs pytest tests/console/chromium/test_screenshots.py`` takes them again.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from queuey.client import Client, Outgoing
from queuey.model.time_parsing import format_instant
from tests.console.chromium.seeing import Watched
from tests.console.chromium.test_chromium import APPLICATION
from tests.servers.served import Served

DOCS = Path(__file__).parents[3] / "docs"
WORD = b"Page"
TAKE_SCREENSHOTS = os.environ.get("QUEUEY_SCREENSHOTS")
LOAD_SECONDS = 95 if TAKE_SCREENSHOTS else 0
"""Seconds of load before each picture. The words of a page do not depend on it."""
_NUMBERS = re.compile("\\S*\\d\\S*|\N{EN DASH}")
_OF_TIME = {"s", "min", "h", "d", "ago", "in", "now", "none", "about"}
"""Words next to numbers, which change with them."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def read_stamp(path: Path) -> str:
    match = re.search(rb"tEXt" + WORD + rb"\0([0-9a-f]{64})", path.read_bytes())
    return match[1].decode() if match else "none"


def save_screenshot(page: Page, path: Path, digest: str) -> None:
    picture = page.screenshot()
    head = len(_SIGNATURE) + 25
    path.write_bytes(picture[:head] + png_chunk(b"tEXt", WORD + b"\0" + digest.encode()) + picture[head:])


def job(task: str, *args: object, **kwargs: object) -> Outgoing:
    return Outgoing(json={"task": task, "args": args, "kwargs": kwargs})


def fill(client: Client) -> None:
    client.create_queue("thumbnails", partitions=4, max_deliveries=5)
    for name in ("emails", "invoices", "webhooks"):
        client.create_queue(name, max_deliveries=5)
    client.create_queue("orders", partitions=4, kind="ordered")
    client.send_many("thumbnails", [job("thumbnail", f"photos/{number}.jpg", width=320) for number in range(64)])
    client.send_many("emails", [job("send_receipt", f"customer-{number}@example.org") for number in range(24)])
    client.send_many("invoices", [job("render_invoice", 900 + number) for number in range(9)])
    client.send_many("webhooks", [job("deliver", "https://example.org/hook", number) for number in range(31)])
    orders = [Outgoing(json={"order": 4200 + number}, key=f"customer-{number % 9}") for number in range(40)]
    receipts = client.send_many("orders", orders)
    client.commit("orders", "warehouse", {receipt.partition: receipt.id for receipt in receipts})
    for name, error in (
        ("thumbnails", TimeoutError("storage did not answer")),
        ("webhooks", OSError("no route to host")),
    ):
        queue = client.job_queue(name)
        queue.release(queue.receive(limit=4, ttl=60), delay=3600, reason=error)
        queue.receive(limit=5, ttl=3600)
    errors = [("TimeoutError", f"storage did not answer within {number} s") for number in (10, 12, 15)]
    bury(client, "thumbnails", [*errors, ("UnidentifiedImageError", "cannot identify image file")])
    bury(client, "webhooks", [("HTTPStatusError", "410 Gone")] * 2)


def bury(client: Client, queue: str, errors: Sequence[tuple[str, str]]) -> None:
    client.create_queue(f"{queue}.dead")
    about = {"queue": queue, "partition": "1", "attempts": "5", "at": format_instant(time.time() - 400)}
    for number, (error, text) in enumerate(errors):
        dead_headers = about | {"id": f"{number:032x}", "error": error, "text": text}
        headers = {f"queuey-dead-{name}": value for name, value in dead_headers.items()}
        client.send_many(f"{queue}.dead", [Outgoing(json={"image": f"photos/{number}.jpg"}, headers=headers)])


def send_and_ack_until_stopped(client: Client, stop: threading.Event) -> None:
    queues = {name: client.job_queue(name) for name in ("thumbnails", "emails", "invoices", "webhooks")}
    for turn in itertools.count():
        wave = math.sin(turn / 40)
        for (name, queue), share in zip(queues.items(), (9.0, 5.0, 2.0, 3.0), strict=True):
            come = round(share * (1.5 + wave) + turn % 3)
            client.send_many(name, [job("thumbnail", f"photos/{turn * 10 + number}.jpg") for number in range(come)])
            queue.ack(queue.receive(limit=max(1, round(share * (1.5 + math.sin((turn - 6) / 40)) + turn % 3)), ttl=60))
        client.send_many("orders", [Outgoing(json={"order": turn}, key=f"customer-{turn % 9}")])
        if stop.wait(0.5):
            return


@pytest.fixture(scope="module")
def shop(client: Client, served: Served) -> Iterator[None]:
    """Fills the service, and keeps it busy if pictures are taken."""
    fill(client)
    stop = threading.Event()
    with closing(served.client()) as other, ThreadPoolExecutor(1) as thread:
        working = thread.submit(send_and_ack_until_stopped, other, stop) if TAKE_SCREENSHOTS else None
        yield
        stop.set()
        assert working is None or working.exception() is None


@pytest.fixture
def shown(chromium: Browser, session: StorageState, url: str, shop: None) -> Iterator[Watched]:
    """A window of the pictures' size, with sharp letters, after LOAD_SECONDS."""
    context = chromium.new_context(
        viewport={"width": 1000, "height": 940}, device_scale_factor=1.6, storage_state=session, color_scheme="light"
    )
    time.sleep(LOAD_SECONDS)
    with closing(context):
        yield Watched(context.new_page(), url)


def check(watched: Watched, name: str) -> None:
    """Compares the words of a page, but numbers and times, with those of its picture; takes it if requested."""
    words = _NUMBERS.sub(" ", watched.page.locator("main").inner_text()).split()
    digest = sha256(" ".join(sorted(set(words) - _OF_TIME)).encode()).hexdigest()
    path = DOCS / name
    if TAKE_SCREENSHOTS:
        path = Path(TAKE_SCREENSHOTS) / name
        save_screenshot(watched.page, path, digest)
    assert read_stamp(path) == digest, f"{name} is out of date, see above how to take it anew"


def test_dead_letters(shown: Watched) -> None:
    """The reasons of dead letters."""
    shown.page.set_viewport_size({"width": 1000, "height": 660})
    shown.open(f"a/{APPLICATION}/thumbnails/dead")
    check(shown, "console-dead-letters.png")


def test_a_queue(shown: Watched) -> None:
    """The page of a queue."""
    shown.open(f"a/{APPLICATION}/thumbnails")
    expect(shown.page.locator("[data-live] canvas")).to_have_count(2)
    check(shown, "console-queue.png")


def test_an_overview(shown: Watched) -> None:
    """The overview of an application."""
    shown.open(f"a/{APPLICATION}")
    expect(shown.page.get_by_text("Store can be written and read")).to_be_visible()
    check(shown, "console-overview.png")
