"""A stream's reader, called as Spark calls it, on the embedded store."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import Message, OffsetChange, Queue, QueueSpec, Slice
from queuey.spark.errors import DataLoss
from queuey.spark.source import stream_offsets
from queuey.storage import Bulk, Store, bridge
from tests.backends import APP, Clock
from tests.replacing import replace
from tests.spark.reader.micro_batches import ALL, DAY, Options, Query, create, make_texts, send, values


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


def test_new_partitions_and_queues_of_a_pattern_appear(store: Store, options: Options) -> None:
    """They are read from their beginning, even if the stream was started at the latest; whole names have to match."""
    queue = create(store, "log-1")
    query = Query(options(subscribePattern="log-.", startingOffsets="latest"))
    assert values(query.batch()) == []
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3)))
    send(store, "log-1", ["partition"], 3)
    send(store, "log-1", ["old"], 1)
    for name in ("log-2", "log-22", "other"):
        create(store, name)
        send(store, name, [name])
    assert sorted(values(query.rest())) == ["log-2", "old", "partition"]
    send(store, "log-1", ["newer"], 3)
    assert values(query.rest()) == ["newer"]
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
    backlogs = {("log-1", 1): make_texts(50), ("log-1", 2): make_texts(10, 100), ("log-2", 1): make_texts(50, 200)}
    for (name, number), texts in backlogs.items():
        send(store, name, texts, number)
    query = Query(options(subscribePattern="log-.", maxOffsetsPerTrigger="30"))
    batches = [query.batch() or []]
    assert Counter((row["queue"], row["partition"]) for row in batches[0]) == dict.fromkeys(backlogs, 10)
    while (more := query.batch()) is not None:
        batches.append(more)
    assert [len(batch) for batch in batches] == [30, 30, 30, 20]
    rows = [row for batch in batches for row in batch]
    for place, texts in backlogs.items():
        assert values([row for row in rows if (row["queue"], row["partition"]) == place]) == texts


def test_a_trigger_that_wants_all_gets_all(store: Store, options: Options) -> None:
    """The limit is the default of triggers without one; ReadAllAvailable overrides it."""
    create(store)
    send(store, "a", make_texts(50))
    query = Query(options(maxOffsetsPerTrigger="5"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert len(query.batch(ALL) or []) == 50
    assert Query(options()).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_it_began(store: Store, clock: Clock, options: Options) -> None:
    """Messages, partitions and queues added after the start of an available-now run are left to the next one.

    It ends although its positions would be moved along, as they get old.
    """
    queue = create(store, "log-1", partitions=2, ttl=40)
    send(store, "log-1", make_texts(25))
    query = Query(options(subscribePattern="log-.", maxOffsetsPerTrigger="10"), available_now=True)
    assert len(query.batch() or []) == 10
    clock.advance(30)
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


def test_an_idle_stream_moves_along_before_it_is_stale(store: Store, clock: Clock, options: Options) -> None:
    """An idle stream gets an empty batch in a quarter of the TTL, so that a long silence is not a loss of data."""
    create(store, ttl=4000)
    send(store, "a", ["1"])
    query = Query(options())
    assert values(query.batch()) == ["1"]
    idle: list[bool] = []
    for _ in range(100):
        clock.advance(100)
        rows = query.batch()
        assert not rows
        idle.append(rows is None)
    assert 5 <= idle.count(False) <= 10
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
        assert query.batch() is None
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


def test_a_start_that_has_expired_is_an_error(store: Store, clock: Clock, options: Options) -> None:
    """A stream that was away for longer than the TTL fails with what to do, unless loss is accepted."""
    create(store, ttl=60)
    send(store, "a", ["1"], ttl=60)
    query = Query(options())
    assert values(query.batch()) == ["1"]
    send(store, "a", ["lost"], ttl=60)
    clock.advance(61)
    send(store, "a", ["2"], ttl=60)
    query.start()
    with pytest.raises(DataLoss, match=r"queue 'a', partition 1, may have expired.*failOnDataLoss=false"):
        query.batch()
    query.start(options(failOnDataLoss="false"))
    assert values(query.batch()) == ["2"]
    query.start()
    assert query.batch() is None


def test_an_id_to_start_at_that_has_expired_is_an_error(store: Store, clock: Clock, options: Options) -> None:
    """A start at an expired id fails, because its message and the later ones were wanted."""
    queue = create(store, ttl=60)
    send(store, "a", ["1"], ttl=60)
    [[first]] = bridge.iterate(store.bulk.scan(queue, Slice(1)))
    clock.advance(61)
    send(store, "a", ["2"], ttl=60)
    starts = json.dumps({"a": {"1": first.id}})
    with pytest.raises(DataLoss, match="may have expired"):
        Query(options(startingOffsets=starts)).batch()
    assert values(Query(options(startingOffsets=starts, failOnDataLoss="false")).batch()) == ["2"]


def test_a_batch_that_expired_before_it_was_run_again_is_an_error(store: Store, clock: Clock, options: Options) -> None:
    """An unfinished batch of the checkpoint is checked before its tasks are planned again."""
    create(store, ttl=60)
    send(store, "a", ["0"], ttl=60)
    query = Query(options())
    assert values(query.batch()) == ["0"]
    send(store, "a", ["1"], ttl=60)
    assert query.begin()
    clock.advance(61)
    query.start()
    with pytest.raises(DataLoss, match="may have expired"):
        query.run()
    query.start(options(failOnDataLoss="false"))
    assert values(query.run()) == []


def test_a_queue_that_is_deleted_is_an_error(store: Store, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    """A deleted queue fails the stream; with loss accepted it warns, reads the others, and a new queue anew."""
    queue = create(store, "log-1")
    create(store, "log-2")
    query = Query(options(subscribePattern="log-."))
    send(store, "log-1", ["1"])
    send(store, "log-2", ["2"])
    assert values(query.batch()) == ["1", "2"]
    bridge.run(store.catalogue.delete_queue(queue))
    with pytest.raises(DataLoss, match=r"'log-1'.*failOnDataLoss=false"):
        query.batch()
    query.start(options(subscribePattern="log-.", failOnDataLoss="false"))
    send(store, "log-2", ["3"])
    with caplog.at_level(logging.WARNING):
        assert values(query.batch()) == ["3"]
    assert "'log-1'" in caplog.text
    create(store, "log-1")
    send(store, "log-1", ["again"])
    assert values(query.batch()) == ["again"]
    assert query.batch() is None


@pytest.mark.parametrize("fail", [True, False])
def test_a_queue_deleted_between_plan_and_task(store: Store, options: Options, *, fail: bool) -> None:
    """If a queue is deleted before its task runs, the task fails with a clear error, or gives none of its rows."""
    queue = create(store, "log-1")
    create(store, "log-2")
    send(store, "log-1", ["1"])
    send(store, "log-2", ["2"])
    query = Query(options(subscribePattern="log-.", failOnDataLoss=str(fail).lower()))
    assert query.begin()
    bridge.run(store.catalogue.delete_queue(queue))
    if fail:
        with pytest.raises(DataLoss, match="'log-1' was purged or deleted"):
            query.run()
    else:
        assert values(query.run()) == ["2"]


def test_a_scan_goes_on_over_changes_of_the_queue(store: Store, options: Options) -> None:
    """If a queue gets another partition while a task reads it, no row is lost or repeated."""
    queue = create(store)
    send(store, "a", make_texts(30))
    query = Query(options(), rows=10)
    assert query.begin()
    [task] = query.tasks()
    batches = query.reader.read(task)
    rows = next(batches).to_pylist()
    bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=2)))
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert values(rows) == make_texts(30)


def test_progress_is_recorded_for_the_group(store: Store, options: Options) -> None:
    """The group's offsets show the progress of all batches before the present one."""
    queue = create(store, partitions=2)
    send(store, "a", make_texts(10))
    query = Query(options(group="spark", maxOffsetsPerTrigger="4"))
    lags: list[int] = []
    while query.batch() is not None:
        recorded = (
            {offset.partition: offset.position for offset in bridge.run(store.offsets.group_offsets(queue, "spark"))}
            if lags
            else {}
        )
        lags.append(bridge.run(store.messages.lag(queue, [(1, recorded.get(1))]))[0].count)
    assert lags == [10, 6, 2]
    [offset] = bridge.run(store.offsets.group_offsets(queue, "spark"))
    assert bridge.run(store.messages.lag(queue, [(1, offset.position)]))[0].count == 0


def test_progress_never_goes_backwards(store: Store, options: Options) -> None:
    """A stream that starts over, or is behind another one, does not move recorded offsets back."""
    queue = create(store)
    send(store, "a", make_texts(10))
    last = next(bridge.iterate(store.bulk.scan(queue, Slice(1))))[-1].position
    bridge.run(store.offsets.set_offsets(queue, "spark", [OffsetChange(1, last)]))
    Query(options(group="spark", maxOffsetsPerTrigger="2")).rest(ReadMaxRows(2))
    assert bridge.run(store.offsets.group_offsets(queue, "spark"))[0].position >= last
    behind = Query(options(group="spark", maxOffsetsPerTrigger="2"))
    for _ in range(3):
        behind.batch()
        assert bridge.run(store.offsets.group_offsets(queue, "spark"))[0].position >= last


def test_purged_messages_are_gone_and_the_stream_goes_on(store: Store, options: Options) -> None:
    """A purge is not a loss of data: the stream goes on with later messages."""
    queue = create(store)
    query = Query(options())
    query.batch()
    send(store, "a", ["gone"])
    bridge.run(store.catalogue.purge_queue(queue))
    send(store, "a", ["1"])
    assert values(query.rest()) == ["1"]


def test_a_task_waits_for_a_horizon_that_is_behind(store: Store, options: Options) -> None:
    """On a machine whose clock is behind the driver's the task waits, and leaves nothing out."""
    create(store)
    send(store, "a", ["1"])
    query = Query(options())
    assert query.begin()
    horizon, looks = type(store.bulk).horizon, iter([100, 100, 0])

    async def behind(bulk: Bulk, queue: Queue) -> int:
        return await horizon(bulk, queue) - next(looks) * TICKS_PER_SECOND

    with replace(horizon, behind):
        assert values(query.run()) == ["1"]
    assert next(looks, None) is None


def test_a_short_outage_does_not_end_a_stream(store: Store, options: Options) -> None:
    """The end of the next batch is requested again until the store answers."""
    create(store)
    send(store, "a", ["1"])
    query = Query(options())
    query.reader.initialOffset()
    extent, outages = type(store.bulk).extent, iter([True, True, False])

    async def failing(bulk: Bulk, queue: Queue, part: Slice) -> tuple[int, Position]:
        if next(outages):
            raise StoreUnavailable("away for a moment")
        return await extent(bulk, queue, part)

    with replace(extent, failing):
        assert values(query.batch()) == ["1"]
