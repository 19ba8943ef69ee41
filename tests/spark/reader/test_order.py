"""No message appears below the end of an earlier batch: concurrent writers, delays, read delays."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from queuey.ids import FIRST, LOW_MIN, TICKS_PER_SECOND
from queuey.messages import Message, NewMessage, Queue, QueueSpec
from queuey.spark.source import stream_offsets
from queuey.storage import Store, bridge
from tests.backends import APP, PROMPT, CassandraLocation, Clock, SqliteLocation, StoreLocation
from tests.spark.reader.micro_batches import Query, Row, opened
from tests.spark.reader.queues import DAY, Options, create, make_texts, send, values


@pytest.mark.parametrize("location", ["sqlite", "cassandra"], indirect=True)
def test_nothing_appears_below_the_end_of_a_batch(location: StoreLocation) -> None:
    """With writers in several stores, some with delays, a concurrent stream gets every message once, in order."""
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(location.open())) for _ in range(3)]
        bridge.run(stores[0].applications.create_application(APP))
        queue = bridge.run(stores[0].catalogue.create_queue(APP, "a", QueueSpec(partitions=2, consistency=PROMPT)))[0]
        where = (
            {"store": location.url}
            if isinstance(location, CassandraLocation)
            else {"data": str(cast("SqliteLocation", location).path)}
        )
        options = {**where, "subscribe": "a", "startingOffsets": "earliest"}
        with ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write_at_random, stores[number], queue, number) for number in range(2)]
            stack.enter_context(opened(options, stores[2]))
            query = Query(options)
            rows: list[Row] = []
            while not all(writer.done() for writer in writers):
                rows += query.batch(ReadMaxRows(50)) or []
        sent = Counter(text for writer in writers for text in writer.result(60))
        while len(rows) < sum(sent.values()):
            rows += query.batch(ReadMaxRows(50)) or []
        assert Counter(values(rows)) == sent
        assert Counter(values(Query(options).rest())) == sent
    for number in (1, 2):
        placed = [row["position"] for row in rows if row["partition"] == number]
        assert placed == sorted(placed)
    steps = pairwise(stream_offsets.parse(json.loads(end)) for end in query.ends)
    assert all(
        later.position_of(queue_partition) >= position
        for earlier, later in steps
        for queue_partition, position in earlier.positions.items()
    )


def write_at_random(store: Store, queue: Queue, number: int) -> list[str]:
    chance = random.Random(number)
    sent: list[str] = []
    for turn in range(120):
        texts = [f"{number}-{turn}-{index}" for index in range(chance.randrange(1, 6))]
        delay = chance.choice([0, 0, 0.05, 0.3])
        bridge.run(
            store.messages.append(queue, [NewMessage(text, chance.randrange(1, 3), DAY, delay=delay) for text in texts])
        )
        sent += texts
    return sent


def test_a_delayed_message_comes_when_it_is_due(store: Store, clock: Clock, options: Options) -> None:
    """A delayed message comes when it is due, in the order of due times, even without further writes."""
    create(store)
    query = Query(options())
    send(store, "a", ["later"], delay=10)
    send(store, "a", ["now"])
    assert values(query.batch()) == ["now"]
    clock.advance(9)
    assert query.batch() is None
    clock.advance(2)
    assert values(query.batch()) == ["later"]


def test_a_read_delay_is_kept(store: Store, clock: Clock, options: Options) -> None:
    """A batch ends behind the clock by the queue's read delay, so late messages within it are not missed."""
    queue = bridge.run(store.catalogue.create_queue(APP, "a", QueueSpec(read_delay=5.0)))[0]
    query = Query(options())
    send(store, "a", ["1"])
    early = clock.ticks
    clock.advance(3)
    send(store, "a", ["3"])
    assert values(query.batch()) == []
    bridge.run(store.bulk.load(queue, [Message(early + 10, LOW_MIN + 1, 1, early + DAY * TICKS_PER_SECOND, "2")]))
    clock.advance(3)
    assert values(query.batch()) == ["1", "2"]
    clock.advance(3)
    assert values(query.batch()) == ["3"]


def test_the_newest_offset_is_reported(store: Store, options: Options) -> None:
    """The newest possible end of a batch is known only after it was planned."""
    create(store, partitions=2)
    send(store, "a", make_texts(9))
    query = Query(options())
    assert query.reader.reportLatestOffset() is None
    query.batch(ReadMaxRows(2))
    newest = stream_offsets.parse(query.reader.reportLatestOffset())
    end = stream_offsets.parse(json.loads(query.ends[-1]))
    assert newest.position_of(("a", 2)) == newest.position_of(("a", 1)) > end.position_of(("a", 1)) > FIRST
