"""A stream's reader, called as Spark calls it, on the embedded store."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from queuey import ids
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import Queue, QueueSpec, Slice
from queuey.spark.errors import DataLoss
from queuey.storage import Bulk, Store, bridge
from tests.backends import Clock
from tests.replacing import replace
from tests.spark.reader.micro_batches import ALL, Query
from tests.spark.reader.queues import DAY, Options, create, make_texts, send, values


def test_a_stream_gives_what_was_there_and_what_comes(store: Store, options: Options) -> None:
    """A stream gives all messages from the beginning, then each batch the new ones, in order; no batch without news."""
    create(store, partitions=2)
    send(store, "a", ["1", "2"])
    send(store, "a", ["x"], 2)
    query = Query(options())
    assert values(query.batch()) == ["1", "2", "x"]
    assert query.batch() is None
    send(store, "a", ["3"])
    assert values(query.batch()) == ["3"]
    assert query.batch() is None


def test_a_stream_starts_at_the_latest_by_default(store: Store, options: Options) -> None:
    """By default messages before the first batch are left out, and later ones are read."""
    create(store)
    send(store, "a", ["before"])
    read_options = options()
    del read_options["startingOffsets"]
    query = Query(read_options)
    query.reader.initialOffset()
    send(store, "a", ["after"])
    assert values(query.batch()) == []
    assert values(query.batch()) == ["after"]


def test_a_first_batch_at_the_latest_that_is_run_again_loses_nothing(store: Store, options: Options) -> None:
    """After a crash in the first batch the start is sampled anew, but the one in the checkpoint counts."""
    create(store, partitions=2)
    query = Query(options(startingOffsets="latest"))
    assert query.begin()
    send(store, "a", ["1"])
    query.start()
    assert values(query.run()) == []
    send(store, "a", ["2"], 2)
    assert sorted(values(query.rest())) == ["1", "2"]


def test_a_start_can_be_an_id(store: Store, options: Options) -> None:
    """The message with the given id is the first; each partition has its own id, a word, or Kafka's number for it."""
    queue = create(store, partitions=4)
    for number in (1, 2, 3, 4):
        send(store, "a", [f"{number}-1", f"{number}-2", f"{number}-3"], number)
    second = next(bridge.iterate(store.bulk.scan(queue, Slice(1))))[1].id
    starts = json.dumps({"a": {"1": second, "2": "earliest", "3": -1, "4": -2}})
    query = Query(options(startingOffsets=starts))
    rows = query.rest()
    assert Counter(value[0] for value in values(rows)) == {"1": 2, "2": 3, "4": 3}
    assert values(rows)[0] == "1-2"


def test_a_start_can_be_an_instant(store: Store, clock: Clock, options: Options) -> None:
    """A timestamp starts at its millisecond, for all partitions or for each; it wins over startingOffsets."""
    create(store, partitions=2)
    send(store, "a", ["old"])
    send(store, "a", ["old"], 2)
    clock.advance(10)
    instant = int(ids.ticks_to_seconds(clock.ticks) * 1000)
    send(store, "a", ["new"])
    send(store, "a", ["new"], 2)
    assert values(Query(options(startingTimestamp=str(instant))).batch()) == ["new", "new"]
    timestamps = json.dumps({"a": {"1": instant, "2": 0}})
    assert values(Query(options(startingOffsetsByTimestamp=timestamps)).batch()) == ["new", "old", "new"]


def test_an_instant_may_be_earlier_than_anything_or_still_to_come(store: Store, clock: Clock, options: Options) -> None:
    """A timestamp before all messages is not a loss of data, whatever the TTL; a future one waits for its time."""
    create(store, ttl=60)
    send(store, "a", ["1"])
    assert values(Query(options(startingTimestamp="5")).batch()) == ["1"]
    future = int(ids.ticks_to_seconds(clock.ticks) * 1000) + 10_000
    query = Query(options(startingTimestamp=str(future)))
    assert values(query.batch()) == []
    clock.advance(5)
    send(store, "a", ["2"])
    assert query.batch() is None
    clock.advance(6)
    send(store, "a", ["3"])
    assert values(query.batch()) == ["3"]


def test_assigned_partitions_are_all_that_is_read(store: Store, options: Options) -> None:
    """Other partitions are not read, including later ones."""
    queue = create(store, partitions=3)
    query = Query(options(assign='{"a":[1,3]}'))
    query.batch()
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=4)))
    for number in (1, 2, 3, 4):
        send(store, "a", [str(number)], number)
    assert values(query.rest()) == ["1", "3"]


def test_new_partitions_appear(store: Store, options: Options) -> None:
    """New partitions are read from their beginning, even if the stream was started at the latest."""
    queue = create(store)
    query = Query(options(startingOffsets="latest"))
    assert values(query.batch()) == []
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3)))
    send(store, "a", ["new"], 3)
    send(store, "a", ["old"], 1)
    assert sorted(values(query.rest())) == ["new", "old"]
    send(store, "a", ["newer"], 3)
    assert values(query.rest()) == ["newer"]


def test_new_queues_of_a_pattern_appear(store: Store, options: Options) -> None:
    """A new queue is read from its beginning, if its whole name matches."""
    create(store, "log-1")
    query = Query(options(subscribePattern="log-.", startingOffsets="latest"))
    assert values(query.batch()) == []
    for name in ("log-2", "log-22", "other"):
        create(store, name)
        send(store, name, [name])
    assert values(query.rest()) == ["log-2"]
    create(store, "log-3")
    assert query.batch() is None


def test_a_batch_that_is_run_again_has_the_same_tasks_and_rows(store: Store, options: Options) -> None:
    """A repeated batch has the same tasks and rows, though messages, partitions and queues were added."""
    queue = create(store, "log-1", partitions=2)
    for number in (1, 2):
        send(store, "log-1", make_texts(20, number * 100), number)
    query = Query(options(subscribePattern="log-.", minPartitions="7"))
    query.rest(ReadMaxRows(10))
    send(store, "log-1", make_texts(20))
    assert query.begin()
    tasks = [task.value for task in query.tasks()]
    assert len(tasks) >= 7
    rows = query.run()
    send(store, "log-1", ["late"])
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3)))
    send(store, "log-1", ["late"], 3)
    create(store, "log-2")
    send(store, "log-2", ["late"])
    query.done -= 1
    query.start()
    assert [task.value for task in query.tasks()] == tasks
    assert query.run() == rows
    assert values(query.rest()) == ["late"] * 3


def test_a_limit_is_kept_and_shared_equally(store: Store, options: Options) -> None:
    """Each batch has the max number of messages, shared equally whatever the backlogs, and all come, in order."""
    create(store, "log-1", partitions=2)
    create(store, "log-2")
    send(store, "log-1", make_texts(500), 1)
    send(store, "log-1", make_texts(10, 1000), 2)
    send(store, "log-2", make_texts(500, 2000))
    query = Query(options(subscribePattern="log-.", maxOffsetsPerTrigger="30"))
    first = query.batch() or []
    assert Counter((row["queue"], row["partition"]) for row in first) == {
        ("log-1", 1): 10,
        ("log-1", 2): 10,
        ("log-2", 1): 10,
    }
    batches = [first]
    while (more := query.batch()) is not None:
        batches.append(more)
    assert {len(batch) for batch in batches[:-1]} == {30}
    rows = [row for batch in batches for row in batch]
    for name, number, texts in (("log-1", 1, make_texts(500)), ("log-2", 1, make_texts(500, 2000))):
        assert values([row for row in rows if (row["queue"], row["partition"]) == (name, number)]) == texts
    assert len(rows) == 1010


def test_a_trigger_that_wants_all_gets_all(store: Store, options: Options) -> None:
    """The limit is the default of triggers without one; ReadAllAvailable overrides it."""
    create(store)
    send(store, "a", make_texts(50))
    query = Query(options(maxOffsetsPerTrigger="5"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert len(query.batch(ALL) or []) == 50
    assert Query(options()).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_it_began(store: Store, options: Options) -> None:
    """Messages, partitions and queues added after the start of an available-now run are left to the next one."""
    queue = create(store, "log-1", partitions=2)
    send(store, "log-1", make_texts(25))
    query = Query(options(subscribePattern="log-.", maxOffsetsPerTrigger="10"), available_now=True)
    assert len(query.batch() or []) == 10
    send(store, "log-1", ["late"])
    send(store, "log-1", ["late"], 2)
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3)))
    send(store, "log-1", ["late"], 3)
    create(store, "log-2")
    send(store, "log-2", ["late"])
    assert values(query.rest()) == make_texts(15, 10)
    query.start(available_now=True)
    assert values(query.rest()) == ["late"] * 4
    query.start(available_now=True)
    assert query.batch() is None


def test_available_now_ends_although_its_positions_get_old(store: Store, clock: Clock, options: Options) -> None:
    """A long available-now run ends, although its positions would be moved along."""
    create(store, ttl=40)
    send(store, "a", ["1"], ttl=DAY)
    query = Query(options(), available_now=True)
    assert values(query.batch()) == ["1"]
    clock.advance(30)
    assert query.batch() is None


def test_an_idle_stream_moves_along_before_it_is_stale(store: Store, clock: Clock, options: Options) -> None:
    """An idle stream gets an empty batch in a quarter of the TTL, so that a long silence is not a loss of data."""
    create(store, ttl=4000)
    send(store, "a", ["1"])
    query = Query(options())
    assert values(query.batch()) == ["1"]
    batches = 0
    for _ in range(1000):
        clock.advance(100)
        rows = query.batch()
        assert not rows
        batches += rows is not None
    assert 50 <= batches <= 100
    send(store, "a", ["2"])
    assert values(query.batch()) == ["2"]


def test_a_queue_that_was_always_empty_moves_along(store: Store, clock: Clock, options: Options) -> None:
    """Messages that expire while a stream is away are noticed, even if it never saw a message of the queue."""
    create(store, ttl=60)
    query = Query(options())
    assert query.batch() == []
    for _ in range(9):
        clock.advance(10)
        assert not query.batch()
    send(store, "a", ["lost"], ttl=60)
    clock.advance(61)
    query.start()
    with pytest.raises(DataLoss, match=r"queue 'a', partition 1, may have expired"):
        query.batch()


def test_an_idle_stream_does_not_look_twice(store: Store, clock: Clock, options: Options) -> None:
    """An idle stream does not read a range twice that was empty, only what is above it."""
    create(store, partitions=5)
    create(store, "b")
    query = Query(options())
    query.batch()
    send(store, "a", ["1"], 3)
    assert values(query.batch()) == ["1"]
    looks: list[Slice] = []
    extent = type(store.bulk).extent

    async def counted(bulk: Bulk, queue: Queue, part: Slice) -> tuple[int, Position]:
        looks.append(part)
        return await extent(bulk, queue, part)

    with replace(extent, counted):
        assert [query.batch() for _ in range(9)] == [None] * 9
        assert len(looks) <= 5
        clock.advance(1)
        send(store, "b", ["elsewhere"])
        looks.clear()
        before = clock.ticks - TICKS_PER_SECOND
        assert [query.batch() for _ in range(9)] == [None] * 9
    assert len(looks) == 5
    assert all(look.lower[0] >= before for look in looks)
    send(store, "a", ["2"], 1)
    send(store, "a", ["3"], 3)
    assert values(query.rest(ReadMaxRows(1))) == ["2", "3"]
