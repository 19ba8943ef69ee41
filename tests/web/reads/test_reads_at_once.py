"""Short reads, which are awaited in the loop's thread. A store may finish one immediately, or later from a thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from queuey.errors import QueueChanged, StoreUnavailable
from queuey.messages import Page, Queue, Slice
from queuey.service.reading import Reader
from queuey.storage import Messages, Store, bridge
from queuey.storage.calls import in_thread, may_block
from queuey.storage.sqlite.messages import SqliteMessages
from queuey.web.parts import App
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, Run, make_runner, skip_short_read


class Reads:
    """Replaces ``Messages.read``; each read runs in another thread, and is counted by where it was begun.

    Attributes:
        error: Error with which the next read ends.
        at_once: Number of reads awaited in the loop's thread.
        in_threads: Number of reads run in another thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: Exception | None = None
        self.at_once = 0
        self.in_threads = 0

    async def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        if may_block():
            self.in_threads += 1
        else:
            self.at_once += 1
        return await in_thread(partial(self._read, queue, slices))

    def _read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return bridge.run(self._store.messages.read(queue, slices))


@pytest.fixture
def reads(store: Store, between: InterposedStore) -> Reads:
    reads = Reads(store)
    between.instead(Messages.read, reads.read)
    return reads


@pytest.fixture
def run(reads: Reads, app: App) -> Run:
    """Runs a coroutine with a gateway before an application whose store ends reads in threads."""
    return make_runner(app)


@pytest.fixture
def q(owner: Caller) -> str:
    """A queue with five messages in the first of its two partitions, in memory."""
    owner.create("q", partitions="2")
    for number in range(5):
        owner.post("q", str(number), X_Partition="1")
    return "q"


def got(run: Run, query: str = "", **request: Any) -> Reply:  # noqa: ANN401 - as Request takes it
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
def test_a_read_at_once_answers_as_any_other(run: Run, reads: Reads, q: str, query: str) -> None:
    """Whatever is read of one partition, the answer equals that of a thread; only the horizon differs."""
    at_once = got(run, query)
    assert (reads.at_once, reads.in_threads) == (1, 0)
    with replace(Reader.read_short, skip_short_read):
        in_a_thread = got(run, query)
    assert (reads.at_once, reads.in_threads) == (1, 1)
    for name in ("status", "messages", "more"):
        assert at_once.json[name] == in_a_thread.json[name]
    assert at_once.json.keys() == in_a_thread.json.keys()
    assert at_once.status == in_a_thread.status == 200


def test_a_row_that_changed_is_read_again(run: Run, reads: Reads, q: str) -> None:
    """If the row turns out to be out of date, it is read by a fresh one."""
    reads.error = QueueChanged("q")
    assert [one["body"] for one in got(run).json["messages"]] == list("01234")
    assert (reads.at_once, reads.in_threads) == (2, 0)


def test_a_failure_is_an_answer(run: Run, reads: Reads, q: str) -> None:
    """What goes wrong later is answered like what goes wrong in a thread."""
    reads.error = StoreUnavailable("no node is there")
    assert got(run).status == 503


@pytest.mark.parametrize(("size", "count"), [(100_000, 4), (10, 300)])
def test_what_is_not_short_is_read_in_a_thread(run: Run, reads: Reads, owner: Caller, size: int, count: int) -> None:
    """A read that has more messages or bytes than a short one answers in full all the same."""
    owner.create("q")
    for _ in range(0, count, 50):
        batch = [{"body": "x" * size}] * min(count, 50)
        assert owner.send_json("POST", "q", {"messages": batch}).status == 201
    reply = got(run, f"limit={count}")
    assert (len(reply.json["messages"]), reply.json["more"]) == (count, True)
    assert (reads.at_once, reads.in_threads) == (size > 10, 1)


def test_the_embedded_store_reads_in_the_loops_thread(
    prompt: None,
    app: App,
    owner: Caller,
) -> None:
    """A short read takes no thread, once a connection is open."""
    owner.create("q")
    owner.post("q", "hello")
    assert owner.get("q").bodies == ["hello"]
    with replace(SqliteMessages._read, lambda *_: pytest.fail("read in a thread")):
        for _ in range(10):
            assert [one["body"] for one in got(make_runner(app)).json["messages"]] == ["hello"]
