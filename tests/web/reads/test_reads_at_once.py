"""Short reads, which the gateway begins at once. A store may end one before it returns, or later from a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from queuey.errors import QueueChanged, StoreUnavailable
from queuey.messages import Page, Queue, Slice
from queuey.storage import Store
from queuey.web.parts import App
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, Run, running

Told = Callable[[Page | None, Exception | None], None]


class Begins:
    """Stands for ``Messages.begin_read``.

    Attributes:
        willing: Whether it begins anything.
        error: What the next one ends with.
        asked: How often it was asked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.willing = True
        self.error: Exception | None = None
        self.asked = 0

    def __call__(self, queue: Queue, part: Slice, done: Told) -> bool:
        """Begins a read."""
        self.asked += 1
        if self.willing:
            threading.Thread(target=self._read, args=(queue, part, done)).start()
        return self.willing

    def _read(self, queue: Queue, part: Slice, done: Told) -> None:
        error, self.error = self.error, None
        if error is not None:
            done(None, error)
        else:
            done(self._store.read(queue, [part])[0], None)


@pytest.fixture
def begins(store: Store, between: InterposedStore) -> Begins:
    """Has the store begin reads."""
    begins = Begins(store)
    between.instead(Store.begin_read, begins)
    return begins


@pytest.fixture
def run(begins: Begins, app: App) -> Run:
    """Runs something with a gateway before an application whose store begins reads."""
    return running(app)


@pytest.fixture
def q(owner: Caller) -> str:
    """A queue with five messages in the first of its two partitions, in memory."""
    owner.create("q", partitions="2")
    for number in range(5):
        owner.post("q", str(number), X_Partition="1")
    return "q"


def got(run: Run, query: str = "", **request: Any) -> Reply:  # noqa: ANN401 - as Request takes it
    """Reads the queue through the gateway."""
    reply: Reply = run(Request("GET", query=query, **request).to)
    return reply


@pytest.mark.parametrize(
    "query",
    [
        "",
        "limit=2",
        "order=descending&limit=2",
        "partitions=2",
        "delay=0",
        "merge=true",
        "limit=1&since=1",
        "partitions=9",
    ],
)
def test_a_read_at_once_answers_as_any_other(run: Run, begins: Begins, q: str, query: str) -> None:
    """Whatever is asked of one partition, the answer is the one that a thread gives; only the horizon moves on."""
    at_once = got(run, query)
    assert begins.asked == 1
    begins.willing = False
    in_a_thread = got(run, query)
    assert begins.asked == 2
    for name in ("status", "messages", "more"):
        assert at_once.json[name] == in_a_thread.json[name]
    assert at_once.json.keys() == in_a_thread.json.keys()
    assert at_once.status == in_a_thread.status == 200


def test_a_row_that_changed_is_read_again(run: Run, begins: Begins, q: str) -> None:
    """If the row turns out to be out of date, it is read by a fresh one."""
    begins.error = QueueChanged("q")
    assert [one["body"] for one in got(run).json["messages"]] == list("01234")
    assert begins.asked == 2


def test_a_failure_is_an_answer(run: Run, begins: Begins, q: str) -> None:
    """What goes wrong later is answered like what goes wrong in a thread."""
    begins.error = StoreUnavailable("no node is there")
    assert got(run).status == 503


@pytest.mark.parametrize(("size", "count"), [(100_000, 4), (10, 300)])
def test_what_is_not_short_is_read_in_a_thread(run: Run, begins: Begins, owner: Caller, size: int, count: int) -> None:
    """A read that has more messages or bytes than a short one answers in full all the same."""
    owner.create("q")
    for _ in range(0, count, 50):
        batch = [{"body": "x" * size}] * min(count, 50)
        assert owner.send_json("POST", "q", {"messages": batch}).status == 201
    reply = got(run, f"limit={count}")
    assert (len(reply.json["messages"]), reply.json["more"]) == (count, True)
    assert begins.asked == (size > 10)


def test_the_embedded_store_reads_in_the_loops_thread(
    prompt: None,
    app: App,
    owner: Caller,
    between: InterposedStore,
) -> None:
    """A short read takes no thread, once a connection is open."""
    owner.create("q")
    owner.post("q", "hello")
    assert owner.get("q").bodies == ["hello"]
    between.instead(Store.read, lambda *_: pytest.fail("read in a thread"))
    for _ in range(10):
        assert [one["body"] for one in got(running(app)).json["messages"]] == ["hello"]
