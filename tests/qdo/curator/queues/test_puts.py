"""Puts: in the background, in the foreground, and their limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from qdo.coordination.tree import MAX_BUNDLE_BYTES, Link
from qdo.curator.bridge import run
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.options import BYTES, NODE_LIMIT, QueueOptions
from qdo.curator.puts import MAX_FAILURES, MAX_PENDING, MAX_TRANSACTIONS, Puts
from qdo.errors import CoordinationLost, InvalidArgument, PutFailed, QdoError
from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Nodes, RecordedCalls, start, until


def test_a_broken_connection_fails_puts(nodes: Nodes, client: Any, proxy: Proxy) -> None:  # noqa: ANN401 - kazoo's
    """Puts without an answer are in the error of the flush, and can be repeated; the next flush succeeds."""
    errors: list[QdoError] = []
    queue = nodes.builder(nodes.client(proxy.address), on_error=errors.append).build_queue()
    with nodes.opened(queue):
        proxy.mute()
        queue.put("m0")
        queue.put_multi(["m1", "m2"])
        assert not queue.flush_puts(0.0)
        until(lambda: client.exists(nodes.path).children_count == 2)  # messages that were not sent would only wait
        proxy.cut()
        until(lambda: len(errors) == 2)
        proxy.resume()
        proxy.heal()
        with pytest.raises(PutFailed, match=r"2 puts failed.*may have been stored") as caught:
            queue.flush_puts(PATIENCE)
        assert (caught.value.messages, caught.value.puts) == (["m0", "m1", "m2"], 2)
        until(lambda: queue.state == "started")
        for message in caught.value.messages:
            queue.put(message)
        assert queue.flush_puts(PATIENCE)
        assert client.exists(nodes.path).children_count == 5


def test_a_put_at_once_waits_for_its_answer_and_not_for_ever(nodes: Nodes, proxy: Proxy) -> None:
    """A foreground put is stored when it returns; without an answer in time its outcome is unknown."""
    builder = nodes.builder(nodes.client(proxy.address), put_in_background=False, answer_timeout=0.5)
    queue = builder.build_queue()
    start(queue)
    proxy.mute()
    with pytest.raises(CoordinationLost, match=r"has not answered for 0\.5 s"):
        queue.put("m0")
    proxy.resume()
    assert queue.close(PATIENCE)


def test_a_message_that_is_too_large_is_refused(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """The error says how many bytes fit; the largest message that fits is stored and handled."""
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        with pytest.raises(InvalidArgument, match=r"too large for ZooKeeper, 1,0\d\d,\d\d\d fit.*jute.maxbuffer"):
            queue.put("x" * 1_048_575)
        largest = 0xFFFFF - 1024 - 8 * len(f"{nodes.path}/queue-") - 10
        queue.put("x" * largest)
        assert queue.flush_puts(PATIENCE)
        assert len(heard.wait(1)[0]) == largest
        with pytest.raises(InvalidArgument, match="too large"):
            queue.put("x" * (largest + 1))


def test_a_bounded_queue_makes_puts_wait(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """Without room a put returns False after its timeout, and goes on when a consumer has made room."""
    queue = nodes.builder(client, max_items=3).build_queue()
    with nodes.opened(queue):
        for number in range(3):
            assert queue.put(f"m{number}", timeout=PATIENCE)
        assert not queue.put("m3", timeout=0.0)
        assert queue.message_count() == 3
        with nodes.opened(nodes.builder(client, heard).build_queue()):
            assert queue.put("m4", timeout=PATIENCE)
            assert heard.wait(4) == ["m0", "m1", "m2", "m4"]


class UnansweredLink:
    """A link that keeps its requests, and fails each with CoordinationLost once it is told to."""

    def __init__(self) -> None:
        self.state = "connected"
        self.changes: list[Any] = []
        self._answers: list[asyncio.Future[Any]] = []

    async def apply(self, changes: Iterable[Any]) -> Any:  # noqa: ANN401 - as in the base class
        assert self.state == "connected"
        self.changes += changes
        self._answers.append(asyncio.get_running_loop().create_future())
        await self._answers[-1]
        raise CoordinationLost("broken")

    async def fail(self, number: int) -> None:
        """Fails one request, counted from 0; returns once the failure was processed."""
        self._answers[number].set_result(None)
        await let_loop_run()

    async def end(self) -> None:
        for answer in self._answers:
            answer.cancel()
        await let_loop_run()


async def let_loop_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def make_started_puts(silent: UnansweredLink, limit: int = NODE_LIMIT) -> tuple[Lifecycle, Puts]:
    lifecycle, link = Lifecycle("/q"), cast("Link", silent)
    lifecycle.handle("start")
    return lifecycle, Puts(lifecycle, link, QueueOptions(None, None, BYTES, "/q", node_limit=limit), lambda _: None)


def put(puts: Puts, data: bytes, *messages: Any) -> bool:  # noqa: ANN401 - any data
    stored = puts.put("queue-", messages, data, 0.0)
    run(let_loop_run())
    return stored


@pytest.fixture
def silent() -> Iterator[UnansweredLink]:
    """Servers that do not answer until the test has ended."""
    silent = UnansweredLink()
    yield silent
    silent.state = "suspended"
    run(silent.end())


@pytest.fixture
def puts(silent: UnansweredLink) -> Puts:
    """Puts in the background to servers that do not answer."""
    return make_started_puts(silent)[1]


def test_puts_under_way_are_bounded(puts: Puts, silent: UnansweredLink) -> None:
    """With the max number of puts or bytes unanswered a put waits, and gives up after its timeout."""
    assert put(puts, b"", 0)
    for number in range(1, MAX_PENDING):
        assert puts.put("queue-", [number], b"", 0.0)
    assert not puts.put("queue-", ["more"], b"", 0.0)
    waiting = threading.Thread(target=puts.put, args=("queue-", ["more"], b"", None))
    waiting.start()
    run(silent.fail(0))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert not puts.put("queue-", ["more"], b"", 0.0)


def test_what_is_put_while_others_are_under_way_goes_together(puts: Puts, silent: UnansweredLink) -> None:
    """Two transactions are sent at a time, each with the waiting puts, in order and within its limits."""
    for number in range(300):
        put(puts, b"%d" % number, number)
    puts.put("queue-", ["large"], bytes(MAX_BUNDLE_BYTES), 0.0)
    puts.put("queue-", ["last"], b"last", 0.0)
    for number, _ in enumerate(silent.changes):  # which grows
        assert len(silent.changes) <= number + MAX_TRANSACTIONS
        run(silent.fail(number))
    assert [len(change) for change in silent.changes] == [1, 1, 128, 128, 42, 1, 1]
    sent = [create.data for change in silent.changes for create in change]
    assert sent == [*(b"%d" % number for number in range(300)), bytes(MAX_BUNDLE_BYTES), b"last"]
    with pytest.raises(PutFailed, match="302 puts failed"):
        puts.flush(0.0)


def test_servers_with_a_lower_limit_get_smaller_transactions(silent: UnansweredLink) -> None:
    """Transactions are no larger than the servers accept."""
    _, puts = make_started_puts(silent, 20_000)
    for number in range(10):
        put(puts, bytes(5_000), number)
    for number, _ in enumerate(silent.changes):  # which grows
        run(silent.fail(number))
    assert [len(change) for change in silent.changes] == [1, 1, 3, 3, 2]


def test_what_waits_when_the_session_ends_is_not_sent(silent: UnansweredLink) -> None:
    """Puts that wait when the session ends fail as not stored; they do not use a later session of the client."""
    lifecycle, puts = make_started_puts(silent)
    for number in range(5):
        put(puts, b"", number)
    lifecycle.handle("lost")
    silent.state = "lost"
    for number in range(MAX_TRANSACTIONS):
        run(silent.fail(number))
    assert len(silent.changes) == MAX_TRANSACTIONS
    with pytest.raises(PutFailed, match="5 puts failed") as caught:
        puts.flush(0.0)
    assert sorted(caught.value.messages) == [0, 1, 2, 3, 4]


def test_bytes_under_way_are_bounded(puts: Puts) -> None:
    """A message of any size is sent alone; further ones wait."""
    assert puts.put("queue-", ["large"], bytes(64 * 1024 * 1024), 0.0)
    assert not puts.put("queue-", ["small"], b"x", 0.0)


def test_failures_are_told_in_the_order_of_the_puts(puts: Puts, silent: UnansweredLink) -> None:
    """Failures are reported in the order of the puts, in whatever order the transactions fail."""
    put(puts, b"", 0)
    put(puts, b"", 1)
    for number in (1, 0):
        run(silent.fail(number))
    with pytest.raises(PutFailed, match="2 puts failed") as caught:
        puts.flush(0.0)
    assert caught.value.messages == [0, 1]


def test_failures_are_kept_up_to_a_bound(puts: Puts, silent: UnansweredLink) -> None:
    """Beyond the limit only the number of failed puts is kept."""
    for number in range(MAX_FAILURES + 5):
        put(puts, b"", number)
    for number, _ in enumerate(silent.changes):  # which grows
        run(silent.fail(number))
    with pytest.raises(PutFailed, match="105 puts failed") as caught:
        puts.flush(0.0)
    assert caught.value.messages == list(range(MAX_FAILURES))
    assert caught.value.puts == MAX_FAILURES + 5
    assert puts.flush(0.0)
