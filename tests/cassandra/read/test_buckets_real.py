"""Where messages lie, on a real node: what is found, what it costs, and what happens while a queue gets hot."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec import structs

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LAST, TICKS_PER_SECOND, Position
from queuey.messages import Message, NewMessage, Queue, QueueSpec, Slice
from queuey.storage.cassandra import CassandraStore, bucketing
from queuey.storage.cassandra.bucketing import BucketWidths
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Statement
from queuey.storage.cassandra.write import writer
from tests.cassandra.begun import page_of
from tests.cassandra.interposed import CLOCKS, LOW_WATERMARKS, Wire
from tests.cassandra.scene import C, D, S, Scene
from tests.replacing import replace_in

DAY = 86_400
HOUR = 3600


class Asked:
    """Which tables a store asks from now on.

    Args:
        wire: Its way to Cassandra.
    """

    def __init__(self, wire: Wire) -> None:
        self._log = wire.log
        self._statements, self._rounds = len(wire.log.statements), len(wire.log.rounds)

    @property
    def rounds(self) -> list[int]:
        """How many requests were sent side by side, each time that some were."""
        return self._log.rounds[self._rounds :]

    def tables(self) -> list[str]:
        """The tables that were asked since the last time, one for each request."""
        asked = [one for one in self._log.statements[self._statements :] if one.reads and one not in CLOCKS]
        self._statements = len(self._log.statements)
        return [statement.cql.split(" FROM ")[1].split()[0] for statement in asked]


def make(store: CassandraStore, application: str, name: str) -> Queue:
    """A queue without a read delay."""
    return store.create_queue(application, name, QueueSpec(ttl=3 * DAY, read_delay=0.0))[0]


def new(body: str, ttl: int = 3 * DAY, delay: float = 0.0) -> NewMessage:
    """A message for partition 1."""
    return NewMessage(body, 1, ttl, delay=delay)


def whole(store: CassandraStore, queue: Queue, *, limit: int = 100, descending: bool = False) -> list[Message]:
    """Everything in partition 1, page by page."""
    part = Slice(1, FIRST, LAST, limit=limit, descending=descending)
    return [message for some in store.scan(queue, part) for message in some]


def bodies(messages: Sequence[Message]) -> list[str | bytes]:
    """Their bodies."""
    return [message.body for message in messages]


def test_a_message_that_outlives_its_queues_ttl_is_kept(store: CassandraStore, application: str) -> None:
    """With a TTL of 388 days in a queue of three days Cassandra keeps the row that long, and every read finds it."""
    queue = make(store, application, "long")
    [first, long, last] = store.append(queue, [new("a"), new("long", 388 * DAY), new("b")])
    for descending in (False, True):
        found = whole(store, queue, descending=descending)
        assert [message.position for message in found] == sorted([first, long, last], reverse=descending)
    [message] = store.fetch(queue, [(1, long)])
    assert message.expires == long[0] + 388 * DAY * TICKS_PER_SECOND
    time_bucket = bucketing.bucket_of(long[0], bucketing.class_of(388 * DAY), bucketing.HOME_WIDTH)
    [[left]] = store._driver.run(
        Statement("SELECT TTL(body) FROM messages_400d WHERE qid = ? AND partition = 1 AND bucket = ?"),
        (queue.qid, time_bucket.bucket),
    )
    assert 388 * DAY - 60 < left <= 388 * DAY + 10
    [known] = store._bucket_index.lookup([(queue.qid, 1, 0)], consistency="QUORUM", low_watermarks=True)
    assert known.recorded.time_buckets == (time_bucket,)
    store.delete(queue, [(1, long)])
    assert bodies(whole(store, queue)) == ["a", "b"]


@pytest.mark.parametrize("ttl", [HOUR, 3 * DAY, 300 * DAY])
def test_an_idle_queue_is_read_with_few_requests(scene: Scene, ttl: int) -> None:
    """Reading a queue with few messages costs at most two probes, one look at its buckets and one at its row."""
    process = scene.start()
    store, queue = process.store, scene.queue(process, ttl=ttl)
    store.append(queue, [new("lonely", ttl)])
    recent = store._clock.now() - 60 * TICKS_PER_SECOND, 0
    asked = Asked(process.wire)
    for part in (Slice(1), Slice(1, descending=True), Slice(1, recent), Slice(1, FIRST, recent)):
        store.read(queue, [part])
        scene.world.advance(0.7 * C)
        tables = asked.tables()
        assert (part == Slice(1)) <= sum(table.startswith("messages_") for table in tables) <= 2
        assert tables.count("bucket_index") <= 1
        assert tables.count("queues") <= 1


def test_reading_again_at_the_tail_costs_one_request(scene: Scene) -> None:
    """While rows and buckets are fresh enough, the next read from a cursor near the end is a probe and nothing else."""
    process = scene.start()
    store, queue = process.store, scene.queue(process, ttl=3 * DAY)
    tail = Slice(1, (store._clock.now() - 10 * TICKS_PER_SECOND, 0))
    store.read(queue, [tail])
    scene.world.advance(0.3 * C)
    asked = Asked(process.wire)
    store.read(queue, [tail])
    buckets = len(
        bucketing.own_buckets(1, tail.lower[0], store._clock.now())
    )  # Two if one of four days has just ended.
    tables = asked.tables()
    assert set(tables) == {"messages_4d"}
    assert len(tables) <= buckets


def test_ids_are_found_behind_more_places_than_one_look_shows(store: CassandraStore, application: str) -> None:
    """Reading, overwriting and deleting by id work at the far end of a partition with very many buckets."""
    queue = make(store, application, "wide")
    now = store._clock.now()
    step = 16 * 60 * TICKS_PER_SECOND
    ends = now + 10 * HOUR * TICKS_PER_SECOND
    given = [Message(now - number * step, 5, 1, ends, f"{number}") for number in reversed(range(1100))]
    assert store.load(queue, given) == len(given)
    for at in (0, 1, 400, 501, 777, -1):
        assert store.fetch(queue, [(1, given[at].position)]) == [given[at]]
    assert store.fetch(queue, [(1, message.position) for message in reversed(given[::50])]) == given[::50][::-1]
    store.put(queue, [(1, given[-2].position)], new("put"))
    store.delete(queue, [(1, given[-1].position)])
    assert bodies(store.fetch(queue, [(1, message.position) for message in given[-3:]])) == [given[-3].body, "put"]
    for descending in (False, True):
        found = whole(store, queue, limit=500, descending=descending)
        expected = [*bodies(given[:-2]), "put"]
        assert bodies(found) == (expected[::-1] if descending else expected)


def test_puts_are_found_wherever_their_ids_lie(store: CassandraStore, application: str) -> None:
    """Ids of the distant past, at the edges of buckets and due soon are read, fetched and deleted like others."""
    queue = make(store, application, "put")
    now = store._clock.now()
    edge = now // bucketing.width(1, bucketing.HOME_WIDTH) * bucketing.width(1, bucketing.HOME_WIDTH)
    at: list[Position] = [FIRST, (1, 0), (edge - 1, ids.LOW_MAX), (edge, ids.LOW_MIN), (now - 1, 0)]
    for number, position in enumerate(at):
        store.put(queue, [(1, position)], new(f"{number}", 388 * DAY if number % 2 else DAY))
    store.put(queue, [(1, LAST), (1, (now + 40 * DAY * TICKS_PER_SECOND, 0))], new("ahead"))
    for descending in (False, True):
        found = whole(store, queue, limit=2, descending=descending)
        assert [message.position for message in found] == (at[::-1] if descending else at)
    assert len(store.fetch(queue, [(1, position) for position in [*at, LAST]])) == 6
    store.delete(queue, [(1, position) for position in [*at, LAST]])
    assert whole(store, queue) == []
    assert store.fetch(queue, [(1, LAST)]) == []


class Reader:
    """Follows a queue by cursors in a thread of its own, until it has read past a position."""

    def __init__(self, store: CassandraStore, queue: Queue) -> None:
        self._store, self._queue = store, queue
        self._found: list[Message] = []
        self._last: Position | None = None
        self._error: BaseException | None = None
        self._waiting = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        part = Slice(1, limit=70)
        try:
            while self._last is None or part.lower <= self._last:
                try:
                    page = page_of(self._store, self._queue, part)
                except StoreUnavailable:  # The time was moved while the node was being asked for it.
                    continue
                self._found += page.messages
                assert page.next is not None
                part = structs.replace(part, lower=page.next)
                if not page.more:
                    self._waiting.wait(0.02)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._error = error

    def found(self, last: Position) -> list[Message]:
        """Waits until it is past a position; returns what it has found."""
        self._last = last
        self._thread.join(60)
        if self._error is not None:
            raise self._error
        assert not self._thread.is_alive()
        return self._found


def test_a_queue_that_gets_hot_loses_and_doubles_nothing(scene: Scene) -> None:
    """While two processes write to a partition that gets hot and cools again, every reader sees each message once."""
    first, second = scene.start(), scene.start()
    one, other = first.store, second.store
    queue = scene.queue(first, ttl=3 * DAY)
    reader = Reader(other, queue)
    written: list[tuple[Position, str]] = []
    levels: list[int] = []

    def write(store: CassandraStore, size: int, ttl: int = 3 * DAY, *, pause: float = 0.3 * S) -> int:
        # Time moves by less than S/2 at once, as a clock check that is on its way would find the clock off otherwise.
        texts = [f"{len(written) + number}" for number in range(size)]
        written.extend(zip(store.append(queue, [new(text, ttl) for text in texts]), texts, strict=True))
        [buffer] = store._writer._buffers.values()
        assert buffer.bucket_widths is not None
        levels.append(buffer.bucket_widths.width_index)
        scene.world.advance(pause)
        return buffer.bucket_widths.width_index

    with replace_in(writer, BucketWidths, partial(BucketWidths, full_rows=300)):
        for _ in range(2):
            for size in (1, 20, 60, 120, 120):
                write(one, size)
                write(other, size)
            write(one, 10, 388 * DAY)
            while write(one, 1, pause=6 * HOUR) != bucketing.HOME_WIDTH:
                pass
    assert {bucketing.HOME_WIDTH, bucketing.NARROWEST} <= set(levels)
    scene.world.advance(D + S)
    written.sort()
    expected = [text for _, text in written]
    last = written[-1][0]
    assert bodies(reader.found(last)) == expected
    for store in (one, other):
        for limit in (170, 1000):
            assert bodies(whole(store, queue, limit=limit)) == expected
            assert bodies(whole(store, queue, limit=limit, descending=True)) == expected[::-1]
        for at in range(0, len(written), 200):
            time_buckets = [(1, position) for position, _ in written[at : at + 200]]
            assert bodies(store.fetch(queue, time_buckets)) == expected[at : at + 200]
    doomed = [(1, position) for position, _ in written[::2]]
    for at in range(0, len(doomed), 200):
        one.delete(queue, doomed[at : at + 200])
    assert bodies(whole(other, queue)) == expected[1::2]


def test_a_read_concludes_nothing_where_another_data_centre_writes(scene: Scene) -> None:
    """An empty read raises the low watermark, until a process learns of a data centre whose writes it may not see."""
    copies, process = {"east": 1}, scene.start()
    process.store._levels = ConsistencyLevels(process.store._options, lambda: {**copies}, process.store._timing)
    queue, found = scene.queue(process), []
    for _ in range(2):
        scene.world.advance(10 * D)
        before = len(process.wire.log.statements)
        assert page_of(process.store, queue, Slice(1)).messages == []
        found.append([statement in LOW_WATERMARKS for statement in process.wire.log.statements[before:]].count(True))
        copies["west"] = 3
    assert found == [1, 0]
