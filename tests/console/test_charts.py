"""The charts of a queue: what a stream gives, to whom, and who counts messages meanwhile."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from typing import Any

from queuey.console import charts, cookies
from queuey.console.charts import sample
from queuey.errors import StoreClosed
from queuey.messages import NewMessage, QueueSpec
from queuey.service.browsing.history import CELLS, STEP, UNKNOWN, Cells, History
from queuey.storage import Store
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.console.browser import Browser
from tests.console.conftest import MEASURE_KEY, logged_in
from tests.web.caller import Caller
from tests.web.gateway_calls import running
from tests.web.reads.test_streams import Reader, reading

LIVE = "/console/a/queuey/q/live"
EVENTS = {"accept": "text/event-stream"}


def figures(body: bytes) -> dict[str, list[float | None]]:
    """Returns what the first event of a stream has."""
    [data] = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    found: dict[str, list[float | None]] = json.loads(data)
    return found


def test_a_stream_has_the_last_hour(browser: Browser, owner: Caller) -> None:
    """What was sent and read since the service began is in the newest cells; so is how many messages there are."""
    owner.create("q")
    owner.batch("q", *({"body": "x"} for _ in range(20)))
    owner.claim("q", limit=10)
    reply = browser.get(LIVE, headers=EVENTS)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    found = figures(reply.body)
    assert {len(each) for each in found.values()} == {CELLS}
    assert sum(each or 0 for each in found["sent"]) == 20 / STEP
    assert sum(each or 0 for each in found["taken"]) == 10 / STEP
    assert found["depth"][-1] == 20
    assert [later - sooner for sooner, later in zip(found["at"], found["at"][1:], strict=False)] == [STEP] * (CELLS - 1)  # type: ignore[operator]


def test_rates_are_means_of_the_last_minute() -> None:
    """The unfinished cell and those before the last minute do not count."""
    sent = [600, 1, 2, 3, 4, 5, 9, 1000]
    assert charts.rates(Cells(8, sent, [0] * 8, [UNKNOWN] * 8)) == (24 / 60, 0)
    assert charts.rates(Cells(0, [], [], [])) == (0, 0)


def test_to_look_is_not_to_read(browser: Browser, owner: Caller) -> None:
    """What the console reads for its pages is in no chart."""
    owner.create("q")
    owner.batch("q", *({"body": "x"} for _ in range(20)))
    found = re.search(r'/q/(messages/1(?::|%3A)[0-9a-f]+)"', browser.get("/console/a/queuey/q/messages").text)
    assert found is not None
    for path in ("messages", found[1], f"{found[1]}/body", "parts/size", "parts/backlog", "parts/dead"):
        assert browser.get(f"/console/a/queuey/q/{path}").status == 200
    assert set(figures(browser.get(LIVE, headers=EVENTS).body)["taken"]) == {0}


def test_who_may_not_see_a_queue_gets_no_stream(stranger: Browser, limited: Browser, owner: Caller) -> None:
    """A stream needs a session whose key may see the queue's counts."""
    owner.create("q")
    owner.create("p", type="public")
    assert stranger.get(LIVE, headers=EVENTS).status == 303
    assert limited.get(LIVE, headers=EVENTS).status == 403
    assert stranger.get("/console/a/queuey/p/live", headers=EVENTS).status == 303


def test_a_key_has_some_streams(app: App, browser: Browser, measuring: Browser, owner: Caller) -> None:
    """Those of one key are bounded, in all of its sessions together, and hinder no other key."""
    owner.create("q")
    again = logged_in(app, MEASURE_KEY)

    def live(by: Browser) -> Reader:
        reader = Reader(key=None)
        reader.path = LIVE
        reader.headers += [("host", by.host), ("cookie", f"{cookies.SESSION}={by.cookies[cookies.SESSION]}")]
        return reader

    async def work(gateway: Gateway) -> None:
        async with AsyncExitStack() as stack:
            for by in (measuring, again) * (charts.MAX_LIVE // 2):
                reader = await stack.enter_async_context(reading(gateway, live(by)))
                assert reader.status == 200
            one_more = await live(again).to(gateway)
            assert (one_more.status, "20 live charts" in one_more.text) == (429, True)
            assert (await stack.enter_async_context(reading(gateway, live(browser)))).status == 200
        async with reading(gateway, live(again)) as later:
            assert later.status == 200

    running(app, waiters=50)(work)


def test_errors_of_a_stream_are_plain_text(browser: Browser, owner: Caller) -> None:
    """A stream that cannot be had is refused in one sentence, as nobody sees a page there."""
    reply = browser.get(LIVE, headers=EVENTS)
    assert reply.status == 404
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "<" not in reply.text


def test_messages_are_counted_round_after_round(store: Store, app: App) -> None:
    """Those of the queues that were used are counted, of a queue that is gone none, until the service ends."""
    service = app.service
    history = History(service.workers)
    queue, _ = store.create_queue("queuey", "q", QueueSpec())
    gone, _ = store.create_queue("queuey", "gone", QueueSpec())
    store.delete_queue(gone)
    store.append(queue, [NewMessage("x", 1, 60)])
    for each in (queue, gone):
        history.note(each, 1, 0)
    rounds = iter([False, False, True])
    sample(service, history, lambda _seconds: next(rounds))
    assert history.of(queue).depth[-1] == 1
    assert set(history.of(gone).depth) == {UNKNOWN}


def test_counting_ends_with_the_store(app: App) -> None:
    """Once the store is closed, nobody asks it any more."""

    class Closed:
        """A service whose store is closed."""

        def find(self, application: str, name: str) -> None:
            """Finds nothing any more."""
            raise StoreClosed("The store is closed.")

    history = History(app.service.workers)
    queue, _ = app.service.store.create_queue("queuey", "q", QueueSpec())
    history.note(queue, 1, 0)
    closed: Any = Closed()
    sample(closed, history, lambda _seconds: False)
