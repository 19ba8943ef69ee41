"""The charts of a queue: what a stream sends, to whom, and who counts messages meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from queuey.app.service import App
from queuey.console import charts, cookies, queue
from queuey.console.charts import sample_depths
from queuey.model.messages import NewMessage, QueueSpec
from queuey.operations.queue_activity import CELL_SECONDS, CELLS_PER_RING, UNKNOWN_DEPTH, Cells, History
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from queuey.web.responses import EVENT_HEADERS
from tests.console.browser import Browser
from tests.console.conftest import MEASURE_KEY, logged_in
from tests.messages.test_streams import Reader, reading
from tests.web.caller import Caller
from tests.web.gateway_calls import make_runner

LIVE = "/console/a/queuey/q/live"
EVENTS = {"accept": "text/event-stream"}


def figures(body: bytes) -> dict[str, Any]:
    [data] = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    values: dict[str, Any] = json.loads(data)
    return values


def test_a_stream_has_the_last_hour(browser: Browser, owner: Caller) -> None:
    """What was sent and read since the service began is in the newest cells; so is how many messages there are."""
    owner.create("q")
    owner.batch("q", *({"body": "x"} for _ in range(20)))
    owner.claim("q", limit=10)
    reply = browser.get(LIVE, headers=EVENTS)
    assert reply.status == 200
    for name, value in EVENT_HEADERS.items():
        assert [text for given, text in reply.all_headers if given == name.lower()] == [value]
    cells = figures(reply.body)
    assert cells.pop("tiles") == {}
    assert {len(each) for each in cells.values()} == {CELLS_PER_RING}
    assert sum(each or 0 for each in cells["sent"]) == 20 / CELL_SECONDS
    assert sum(each or 0 for each in cells["taken"]) == 10 / CELL_SECONDS
    assert cells["depth"][-1] == 20
    assert [later - sooner for sooner, later in zip(cells["at"], cells["at"][1:], strict=False)] == [CELL_SECONDS] * (
        CELLS_PER_RING - 1
    )


def test_the_span_has_what_is_known() -> None:
    """The shorter span is for queues of which only the last minutes are known; an address may choose."""

    def cells(sent: int = 0, depth: int = UNKNOWN_DEPTH) -> Cells:
        old = CELLS_PER_RING - 31  # the last cell that five minutes do not show
        return Cells(
            CELLS_PER_RING,
            [0] * old + [sent] + [1] * 30,
            [0] * CELLS_PER_RING,
            [UNKNOWN_DEPTH] * old + [depth] + [7] * 30,
        )

    assert [charts.choose_span("", each) for each in (cells(), cells(sent=1), cells(depth=0))] == ["5m", "1h", "1h"]
    assert [charts.choose_span(name, cells()) for name in ("1h", "5m", "2h")] == ["1h", "5m", "5m"]


def test_the_table_has_what_charts_show() -> None:
    """Its rows follow each other, the newest first, and together have every message of the span."""
    cells = Cells(
        CELLS_PER_RING, range(CELLS_PER_RING), [1] * CELLS_PER_RING, [UNKNOWN_DEPTH] * (CELLS_PER_RING - 1) + [9]
    )
    for seconds in charts.SPAN_SECONDS.values():
        rows = charts.make_table(cells, seconds)
        assert len(rows) == charts.TABLE_ROWS
        assert sum(row.sent for row in rows) == sum(range(CELLS_PER_RING - seconds // CELL_SECONDS, CELLS_PER_RING))
        assert sum(row.taken for row in rows) == seconds // CELL_SECONDS
        assert (rows[0].depth, rows[1].depth) == (9, None)
        assert {one.begin - other.begin for one, other in pairwise(rows)} == {seconds / 10}
        assert rows[-1].begin == (CELLS_PER_RING + 1) * CELL_SECONDS - seconds


def test_to_look_is_not_to_read(browser: Browser, owner: Caller) -> None:
    """What the console reads for its pages is in no chart."""
    owner.create("q")
    owner.create("q.dead")
    owner.batch("q", *({"body": "x"} for _ in range(20)))
    match = re.search(r'/q/(messages/1(?::|%3A)[0-9a-f]+)"', browser.get("/console/a/queuey/q/messages").text)
    assert match is not None
    for path in ("messages", match[1], f"{match[1]}/body", "", *queue.TABS):
        assert browser.get(f"/console/a/queuey/q/{path}".rstrip("/")).status == 200
    assert set(figures(browser.get(LIVE, headers=EVENTS).body)["taken"]) == {0}


def test_who_may_not_see_a_queue_gets_no_stream(stranger: Browser, limited: Browser, owner: Caller) -> None:
    """A stream needs a session whose key may see the queue's counts."""
    owner.create("q")
    owner.create("p", type="public")
    assert stranger.get(LIVE, headers=EVENTS).status == 303
    assert limited.get(LIVE, headers=EVENTS).status == 403
    assert stranger.get("/console/a/queuey/p/live", headers=EVENTS).status == 303


def test_a_key_has_some_streams(app: App, browser: Browser, measuring: Browser, owner: Caller) -> None:
    """The streams of one key are bounded, over all of its sessions, and hinder no other key."""
    owner.create("q")
    again = logged_in(app, MEASURE_KEY)

    def live(by: Browser) -> Reader:
        reader = Reader(key=None)
        reader.path = LIVE
        reader.headers += [
            ("host", by.host),
            ("cookie", f"{cookies.SESSION_COOKIE}={by.cookies[cookies.SESSION_COOKIE]}"),
        ]
        return reader

    async def work(gateway: Gateway) -> None:
        async with AsyncExitStack() as stack:
            for by in (measuring, again) * (charts.MAX_LIVE // 2):
                reader = await stack.enter_async_context(reading(gateway, live(by)))
                assert reader.status == 200
            one_more = await live(again).to(gateway)
            assert (one_more.status, "20 open pages with live charts" in one_more.text) == (429, True)
            assert (await stack.enter_async_context(reading(gateway, live(browser)))).status == 200
        async with reading(gateway, live(again)) as later:
            assert later.status == 200

    make_runner(app, waiters=50)(work)


def test_messages_are_counted_round_after_round(store: Store, app: App) -> None:
    """Queues that were used are counted again and again, deleted ones are not, until the service ends."""
    service = app.service
    history = History(service.workers)
    queue, _ = bridge.run(store.catalogue.create_queue("queuey", "q", QueueSpec()))
    deleted, _ = bridge.run(store.catalogue.create_queue("queuey", "gone", QueueSpec()))
    bridge.run(store.catalogue.delete_queue(deleted))
    bridge.run(store.messages.append(queue, [NewMessage("x", 1, 60)]))
    for queue_row in (queue, deleted):
        history.record(queue_row, 1, 0)
    rounds = iter([False, False, True])
    sample_depths(service, history, lambda _seconds: next(rounds))
    assert asyncio.run(history.read(queue)).depth[-1] == 1
    assert set(asyncio.run(history.read(deleted)).depth) == {UNKNOWN_DEPTH}
