"""Streams whose messages expire before they are read, whose queues change or go, and whose store is away."""

from __future__ import annotations

import json
import logging

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import OffsetChange, Queue, QueueSpec, Slice
from queuey.spark.errors import DataLoss
from queuey.storage import Bulk, Store, bridge
from tests.backends import Clock
from tests.replacing import replace
from tests.spark.reader.micro_batches import Query
from tests.spark.reader.queues import Options, create, make_texts, send, values


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
