"""The pictures of the console in the documentation: each has in it a hash of the page's text, so none goes stale.

``QUEUEY_SCREENSHOTS=docs pytest tests/console/chromium/test_screenshots.py`` takes them anew.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, StorageState, expect

from queuey.client import Client, Outgoing
from tests.console.chromium.seeing import Watched
from tests.console.chromium.test_chromium import APPLICATION

DOCS = Path(__file__).parents[3] / "docs"
WORD = b"Page"
_VARIES = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+Z)?|[0-9a-f]{32}|[0-9a-f]{8}…?|\d\d:\d\d|[\d.]+ s\b|\b[\w-]+:\d+\b"
)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, content: bytes) -> bytes:
    """Returns a piece of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def stamped(path: Path) -> str:
    """Returns the hash that a picture has in it."""
    found = re.search(rb"tEXt" + WORD + rb"\0([0-9a-f]{64})", path.read_bytes())
    return found[1].decode() if found else "none"


def take(page: Page, path: Path, digest: str) -> None:
    """Writes a picture of the window, with a hash in it, behind the head of the file."""
    picture = page.screenshot()
    head = len(_SIGNATURE) + 25
    path.write_bytes(picture[:head] + chunk(b"tEXt", WORD + b"\0" + digest.encode()) + picture[head:])


def hour() -> str:
    """Returns an event with a busy hour."""
    now = int(time.time()) // 10
    at = [(now - 359 + cell) * 10 for cell in range(360)]
    sent = [40 + 25 * math.sin(cell / 50) + 2 * math.sin(cell * 1.7) for cell in range(360)]
    taken = [rate if not 200 < cell < 260 else 8 for cell, rate in enumerate([*sent[:5], *sent[:-5]])]
    depth = 300.0
    depths: list[int | None] = []
    for cell, (come, gone) in enumerate(zip(sent, taken, strict=True)):
        depth = max(0.0, depth + 10 * (come - gone) - depth / 60)
        depths.append(None if cell % 6 else round(depth))
    return f"event: chart\ndata: {json.dumps({'at': at, 'sent': sent, 'taken': taken, 'depth': depths})}\n\n"


@pytest.fixture
def shown(chromium: Browser, session: StorageState, url: str) -> Iterator[Watched]:
    """A window of the size that the pictures have."""
    context = chromium.new_context(viewport={"width": 1100, "height": 760}, storage_state=session, color_scheme="light")
    with closing(context):
        page = context.new_page()

        def answer(route: Route) -> None:
            route.fulfill(body=hour(), content_type="text/event-stream")

        page.route("**/live*", answer)
        yield Watched(page, url)


@pytest.fixture(scope="module")
def shop(client: Client) -> Client:
    """A queue of jobs with dead letters and a consumer group."""
    client.create_queue("thumbnails", partitions=4, max_deliveries=5)
    client.create_queue("thumbnails.dead")
    jobs = [
        Outgoing(json={"image": f"photos/{number}.jpg", "width": 320}, partition=number % 4 + 1) for number in range(12)
    ]
    receipts = client.send_many("thumbnails", jobs)
    client.commit("thumbnails", "statistics", {receipt.partition: receipt.id for receipt in receipts[:4]})
    about = {"queue": "thumbnails", "partition": "1", "attempts": "5", "at": "2026-11-20T09:30:00.000Z"}
    errors = [("TimeoutError", f"storage did not answer within {number} s") for number in (10, 12, 15)]
    for number, (error, text) in enumerate([*errors, ("UnidentifiedImageError", "cannot identify image file")]):
        said = about | {"id": f"{number:032x}", "error": error, "text": text}
        headers = {f"queuey-dead-{name}": value for name, value in said.items()}
        client.send_many("thumbnails.dead", [Outgoing(json={"image": f"photos/{number}.jpg"}, headers=headers)])
    return client


def check(watched: Watched, name: str) -> None:
    """Compares the picture of a page with the page; takes it, if asked to."""
    page = watched.page
    text = _VARIES.sub("…", page.locator("main").inner_text())
    digest = sha256(" ".join(text.split()).encode()).hexdigest()
    path = DOCS / name
    if shots := os.environ.get("QUEUEY_SCREENSHOTS"):
        path = Path(shots) / name
        take(page, path, digest)
    assert stamped(path) == digest, f"{name} is out of date, see above how to take it anew"


def test_a_queue(shown: Watched, shop: Client) -> None:
    """The page of a queue."""
    shown.open(f"a/{APPLICATION}/thumbnails")
    expect(shown.page.locator("[data-live] canvas")).to_have_count(2)
    check(shown, "console-queue.png")


def test_dead_letters(shown: Watched, shop: Client) -> None:
    """The reasons of dead letters."""
    shown.page.set_viewport_size({"width": 1100, "height": 520})
    shown.open(f"a/{APPLICATION}/thumbnails/dead")
    check(shown, "console-dead-letters.png")
