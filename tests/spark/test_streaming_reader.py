"""A stream's reader on its own, asked what Spark asks it in the order in which Spark does, on the embedded store."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from queuey import ids
from queuey.errors import QueueNotFound, StoreUnavailable
from queuey.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Message, NewMessage, OffsetChange, Queue, QueueSpec, Slice
from queuey.spark import offsets
from queuey.spark.errors import DataLoss, OptionError
from queuey.storage import Store
from tests.backends import APP, CassandraSite, Clock, Site, SqliteSite
from tests.spark.micro_batches import ALL, Query, Row, opened, reader

DAY = 86_400


@pytest.fixture
def clock() -> Clock:
    """A clock moved by hand."""
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """An embedded store on the clock, with one application; readers with :func:`options` use it, too."""
    store = SqliteSite(tmp_path / "data").open(clock)
    store.create_application(APP)
    with opened({"data": str(tmp_path / "data"), "subscribe": "any"}, store):
        yield store
    store.close()


@pytest.fixture
def options(tmp_path: Path, store: Store) -> Callable[..., dict[str, str]]:
    """Makes options of a read of queue ``a`` from its beginning, or of what is given."""

    def make(**more: str) -> dict[str, str]:
        chosen = {} if {"assign", "subscribePattern"} & more.keys() else {"subscribe": "a"}
        return {"data": str(tmp_path / "data"), **chosen, "startingOffsets": "earliest", **more}

    return make


def create(store: Store, name: str = "a", *, partitions: int = 1, ttl: int | None = None) -> Queue:
    """Creates a queue."""
    return store.create_queue(APP, name, QueueSpec(partitions=partitions, ttl=ttl))[0]


def send(
    store: Store, name: str, texts: Sequence[str], partition: int = 1, *, ttl: int = DAY, delay: float = 0
) -> None:
    """Sends messages, each with a time of its own."""
    store.append(
        store.queue(APP, name, fresh=True),
        [NewMessage(text, partition, ttl, delay=delay) for text in texts],
    )


def values(rows: list[Row] | None) -> list[str]:
    """The texts of rows, in their order."""
    assert rows is not None
    return [row["value"].decode() for row in rows]


def numbered(count: int, first: int = 0) -> list[str]:
    """So many different texts."""
    return [f"m{number}" for number in range(first, first + count)]


def test_a_stream_gives_what_was_there_and_what_comes(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """From the beginning, then each batch what is new, in the order of each partition; without news no batch."""
    create(store, partitions=2)
    send(store, "a", ["1", "2"])
    send(store, "a", ["x"], 2)
    query = Query(options())
    assert values(query.batch()) == ["1", "2", "x"]
    assert query.batch() is None
    send(store, "a", ["3"])
    assert values(query.batch()) == ["3"]
    assert query.batch() is None


def test_rows_have_the_columns_that_were_asked_for(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """All columns, or some of them in an order of one's own, without bodies where none are needed."""
    queue = create(store, partitions=3)
    send(store, "a", ["1"], 3)
    (row,) = Query(options()).batch() or []
    [[message]] = store.scan(queue, Slice(3))
    assert (row["queue"], row["partition"], row["id"], row["valueType"]) == ("a", 3, message.id, "text")
    (row,) = Query(options(), "partition", "id").batch() or []
    assert row == {"partition": 3, "id": message.id}
    assert list(row) == ["partition", "id"]


def test_a_stream_starts_at_the_latest_by_default(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """What was there before its first batch is left out, what comes from then on is not."""
    create(store)
    send(store, "a", ["before"])
    given = options()
    del given["startingOffsets"]
    query = Query(given)
    query.reader.initialOffset()
    send(store, "a", ["after"])
    assert values(query.batch()) == []
    assert values(query.batch()) == ["after"]


def test_the_start_is_the_same_however_often_it_is_asked_for(
    store: Store, options: Callable[..., dict[str, str]]
) -> None:
    """Spark asks for it several times within a run, and messages come in between."""
    create(store)
    one = reader(options(startingOffsets="latest"))
    first = one.initialOffset()
    send(store, "a", ["1"])
    assert one.initialOffset() == first


def test_a_first_batch_at_the_latest_that_is_run_again_loses_nothing(
    store: Store, options: Callable[..., dict[str, str]]
) -> None:
    """After a crash in the first batch the start is sampled anew; the one in the checkpoint counts nevertheless."""
    create(store, partitions=2)
    query = Query(options(startingOffsets="latest"))
    assert query.begin()
    send(store, "a", ["1"])
    query.start()
    assert values(query.run()) == []
    send(store, "a", ["2"], 2)
    assert sorted(values(query.rest())) == ["1", "2"]


def test_a_start_can_be_an_id(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """The message with that id is the first; each partition has its own, or a word, or Kafka's number for it."""
    queue = create(store, partitions=4)
    for number in (1, 2, 3, 4):
        send(store, "a", [f"{number}-1", f"{number}-2", f"{number}-3"], number)
    second = next(store.scan(queue, Slice(1)))[1].id
    starts = json.dumps({"a": {"1": second, "2": "earliest", "3": -1, "4": -2}})
    query = Query(options(startingOffsets=starts))
    rows = query.rest()
    assert Counter(value[0] for value in values(rows)) == {"1": 2, "2": 3, "4": 3}
    assert values(rows)[0] == "1-2"


def test_a_start_can_be_an_instant(store: Store, clock: Clock, options: Callable[..., dict[str, str]]) -> None:
    """Messages from that millisecond on; for all partitions, or for each its own; it goes before startingOffsets."""
    create(store, partitions=2)
    send(store, "a", ["old"])
    send(store, "a", ["old"], 2)
    clock.advance(10)
    instant = int(ids.ticks_to_seconds(clock.ticks) * 1000)
    send(store, "a", ["new"])
    send(store, "a", ["new"], 2)
    assert values(Query(options(startingTimestamp=str(instant))).batch()) == ["new", "new"]
    each = json.dumps({"a": {"1": instant, "2": 0}})
    assert values(Query(options(startingOffsetsByTimestamp=each)).batch()) == ["new", "old", "new"]


def test_an_instant_may_be_earlier_than_anything_or_still_to_come(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """The one is no loss of data, whatever the TTL; the other waits for its time."""
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


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOffsets": '{"a":{"1":"earliest"}}'}, "says nothing of partition 2"),
        ({"startingOffsets": '{"a":{"1-2":"earliest"},"b":{"1":"earliest"}}'}, "'b'"),
        ({"startingOffsets": '{"a":{"1-3":"earliest"}}'}, "partition 3"),
        ({"assign": '{"a":[1,3]}'}, "partition 3"),
        ({"maxRecordsPerPartition": "5"}, "batch reads"),
    ],
)
def test_starts_that_do_not_fit_are_refused_at_the_start(
    store: Store, options: Callable[..., dict[str, str]], more: dict[str, str], says: str
) -> None:
    """One sentence on what is wrong, before anything runs."""
    create(store, partitions=2)
    with pytest.raises(OptionError, match=says):
        Query(options(**more)).batch()


def test_a_queue_that_is_not_there_is_refused_at_the_start(
    store: Store, options: Callable[..., dict[str, str]]
) -> None:
    """The name is in the message."""
    create(store)
    with pytest.raises(QueueNotFound, match="'b'"):
        Query(options(subscribe="a,b")).batch()


def test_assigned_partitions_are_all_that_is_read(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """Others are left alone, those that come later as well."""
    queue = create(store, partitions=3)
    query = Query(options(assign='{"a":[1,3]}'))
    query.batch()
    store.update_queue(queue, QueueSpec(partitions=4))
    for number in (1, 2, 3, 4):
        send(store, "a", [str(number)], number)
    assert values(query.rest()) == ["1", "3"]


def test_new_partitions_appear(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """They are read from their beginning, also if the stream was started at the latest."""
    queue = create(store)
    query = Query(options(startingOffsets="latest"))
    assert values(query.batch()) == []
    store.update_queue(queue, QueueSpec(partitions=3))
    send(store, "a", ["new"], 3)
    send(store, "a", ["old"], 1)
    assert sorted(values(query.rest())) == ["new", "old"]
    send(store, "a", ["newer"], 3)
    assert values(query.rest()) == ["newer"]


def test_new_queues_of_a_pattern_appear(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """A queue that comes later is read from its beginning, if its whole name matches."""
    create(store, "log-1")
    query = Query(options(subscribePattern="log-.", startingOffsets="latest"))
    assert values(query.batch()) == []
    for name in ("log-2", "log-22", "other"):
        create(store, name)
        send(store, name, [name])
    assert values(query.rest()) == ["log-2"]
    create(store, "log-3")
    assert query.batch() is None


def test_a_pattern_may_match_nothing_yet(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """Such a stream waits for its first queue."""
    query = Query(options(subscribePattern="log-."))
    assert values(query.batch()) == []
    assert query.batch() is None
    create(store, "log-1")
    send(store, "log-1", ["1"])
    assert values(query.rest()) == ["1"]


def test_a_batch_that_is_run_again_has_the_same_tasks_and_rows(
    store: Store, options: Callable[..., dict[str, str]]
) -> None:
    """Whatever has come since: messages, partitions, queues."""
    queue = create(store, "log-1", partitions=2)
    for number in (1, 2):
        send(store, "log-1", numbered(20, number * 100), number)
    query = Query(options(subscribePattern="log-.", minPartitions="7"))
    query.rest(ReadMaxRows(10))
    send(store, "log-1", numbered(20))
    assert query.begin()
    tasks = [task.value for task in query.tasks()]
    assert len(tasks) >= 7
    rows = query.run()
    send(store, "log-1", ["late"])
    store.update_queue(queue, QueueSpec(partitions=3))
    send(store, "log-1", ["late"], 3)
    create(store, "log-2")
    send(store, "log-2", ["late"])
    query.done -= 1
    query.start()
    assert [task.value for task in query.tasks()] == tasks
    assert query.run() == rows
    assert values(query.rest()) == ["late"] * 3


def test_a_limit_is_kept_and_shared_equally(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """Each batch has as many messages as it may; nobody waits for another's backlog; all of it comes, in order."""
    create(store, "log-1", partitions=2)
    create(store, "log-2")
    send(store, "log-1", numbered(500), 1)
    send(store, "log-1", numbered(10, 1000), 2)
    send(store, "log-2", numbered(500, 2000))
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
    for name, number, texts in (("log-1", 1, numbered(500)), ("log-2", 1, numbered(500, 2000))):
        assert values([row for row in rows if (row["queue"], row["partition"]) == (name, number)]) == texts
    assert len(rows) == 1010


def test_a_trigger_that_wants_all_gets_all(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """The limit is the default of a trigger that says nothing; ReadAllAvailable goes before it."""
    create(store)
    send(store, "a", numbered(50))
    query = Query(options(maxOffsetsPerTrigger="5"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert len(query.batch(ALL) or []) == 50
    assert Query(options()).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_it_began(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """What is stored after the start of such a run is for the next one: messages, partitions, queues."""
    queue = create(store, "log-1", partitions=2)
    send(store, "log-1", numbered(25))
    query = Query(options(subscribePattern="log-.", maxOffsetsPerTrigger="10"), available_now=True)
    assert len(query.batch() or []) == 10
    send(store, "log-1", ["late"])
    send(store, "log-1", ["late"], 2)
    store.update_queue(queue, QueueSpec(partitions=3))
    send(store, "log-1", ["late"], 3)
    create(store, "log-2")
    send(store, "log-2", ["late"])
    assert values(query.rest()) == numbered(15, 10)
    query.start(available_now=True)
    assert values(query.rest()) == ["late"] * 4
    query.start(available_now=True)
    assert query.batch() is None


def test_available_now_ends_although_its_positions_get_old(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """A run that takes long is not kept going by positions that are moved along."""
    create(store, ttl=40)
    send(store, "a", ["1"], ttl=DAY)
    query = Query(options(), available_now=True)
    assert values(query.batch()) == ["1"]
    clock.advance(30)
    assert query.batch() is None


def test_an_idle_stream_moves_along_before_it_is_stale(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """No batches but one in a quarter of the TTL, which is empty; so a long silence is no loss of data in the end."""
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


def test_a_queue_that_was_always_empty_moves_along(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """What expires while a stream is away is noticed also where it had never had a message to remember."""
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


def test_an_idle_stream_does_not_look_twice(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for news all the time: what was seen to be empty is not looked at again, only what is above it."""
    create(store, partitions=5)
    create(store, "b")
    query = Query(options())
    query.batch()
    send(store, "a", ["1"], 3)
    assert values(query.batch()) == ["1"]
    looks: list[Slice] = []
    reach = type(store).reach

    def counted(store: Store, queue: Queue, part: Slice) -> tuple[int, Position]:
        looks.append(part)
        return reach(store, queue, part)

    monkeypatch.setattr(type(store), "reach", counted)
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


def test_a_start_that_has_expired_is_an_error(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """A stream that was away for longer than the TTL says so, and what to do, unless loss is accepted."""
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


def test_an_id_to_start_at_that_has_expired_is_an_error(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """Whoever names a message wants it, and what came after it."""
    queue = create(store, ttl=60)
    send(store, "a", ["1"], ttl=60)
    [[first]] = store.scan(queue, Slice(1))
    clock.advance(61)
    send(store, "a", ["2"], ttl=60)
    starts = json.dumps({"a": {"1": first.id}})
    with pytest.raises(DataLoss, match="may have expired"):
        Query(options(startingOffsets=starts)).batch()
    assert values(Query(options(startingOffsets=starts, failOnDataLoss="false")).batch()) == ["2"]


def test_a_batch_that_expired_before_it_was_run_again_is_an_error(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """A batch in the checkpoint that was not finished is checked before its tasks are planned again."""
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


def test_a_queue_that_is_deleted_is_an_error(
    store: Store, options: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Unless loss is accepted: then the others go on, with a warning, and a new queue of the name is read anew."""
    queue = create(store, "log-1")
    create(store, "log-2")
    query = Query(options(subscribePattern="log-."))
    send(store, "log-1", ["1"])
    send(store, "log-2", ["2"])
    assert values(query.batch()) == ["1", "2"]
    store.delete_queue(queue)
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


def test_a_named_queue_that_is_deleted_is_an_error(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """The same holds for queues that are named one by one."""
    queue = create(store)
    create(store, "b")
    query = Query(options(subscribe="a,b"))
    query.batch()
    send(store, "a", ["1"])
    store.delete_queue(queue)
    with pytest.raises(DataLoss, match="'a'"):
        query.batch()
    query.start(options(subscribe="a,b", failOnDataLoss="false"))
    send(store, "b", ["2"])
    assert values(query.rest()) == ["2"]


@pytest.mark.parametrize("fail", [True, False])
def test_a_queue_deleted_between_plan_and_task(
    store: Store, options: Callable[..., dict[str, str]], *, fail: bool
) -> None:
    """The task fails with a sentence, or has no rows of it."""
    queue = create(store, "log-1")
    create(store, "log-2")
    send(store, "log-1", ["1"])
    send(store, "log-2", ["2"])
    query = Query(options(subscribePattern="log-.", failOnDataLoss=str(fail).lower()))
    assert query.begin()
    store.delete_queue(queue)
    if fail:
        with pytest.raises(DataLoss, match="'log-1' was deleted"):
            query.run()
    else:
        assert values(query.run()) == ["2"]


def test_a_scan_goes_on_over_changes_of_the_queue(
    store: Store, options: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that gets another partition while a task reads it is looked up again; no row is lost or given twice."""
    queue = create(store)
    send(store, "a", numbered(30))
    monkeypatch.setattr("queuey.spark.stream_tasks.ROWS", 10)
    query = Query(options())
    assert query.begin()
    [task] = query.tasks()
    batches = query.reader.read(task)
    rows = next(batches).to_pylist()
    store.update_queue(queue, QueueSpec(partitions=2))
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert values(rows) == numbered(30)


def test_progress_is_recorded_for_the_group(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """What batches have processed shows as the group's offsets: of all batches before the present one."""
    queue = create(store, partitions=2)
    send(store, "a", numbered(10))
    query = Query(options(group="spark", maxOffsetsPerTrigger="4"))
    lags: list[int] = []
    while query.batch() is not None:
        recorded = {offset.partition: offset.position for offset in store.offsets(queue, "spark")} if lags else {}
        lags.append(store.lag(queue, [(1, recorded.get(1))])[0].count)
    assert lags == [10, 6, 2]
    [offset] = store.offsets(queue, "spark")
    assert store.lag(queue, [(1, offset.position)])[0].count == 0


def test_progress_never_goes_backwards(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """A stream that starts over, and one that is behind another, leave what is recorded."""
    queue = create(store)
    send(store, "a", numbered(10))
    last = next(store.scan(queue, Slice(1)))[-1].position
    store.set_offsets(queue, "spark", [OffsetChange(1, last)])
    Query(options(group="spark", maxOffsetsPerTrigger="2")).rest(ReadMaxRows(2))
    assert store.offsets(queue, "spark")[0].position >= last
    behind = Query(options(group="spark", maxOffsetsPerTrigger="2"))
    for _ in range(3):
        behind.batch()
        assert store.offsets(queue, "spark")[0].position >= last


def test_purged_messages_are_gone_and_the_stream_goes_on(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """Whoever purges a queue wants its messages gone, for streams as well."""
    queue = create(store)
    query = Query(options())
    query.batch()
    send(store, "a", ["gone"])
    store.purge_queue(queue)
    send(store, "a", ["1"])
    assert values(query.rest()) == ["1"]


def test_a_task_waits_for_a_horizon_that_is_behind(
    store: Store, options: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose clock is behind the driver's nothing is left out: the task waits."""
    create(store)
    send(store, "a", ["1"])
    query = Query(options())
    assert query.begin()
    horizon, looks = type(store).horizon, iter([100, 100, 0])
    monkeypatch.setattr(
        type(store), "horizon", lambda self, queue: horizon(self, queue) - next(looks) * TICKS_PER_SECOND
    )
    assert values(query.run()) == ["1"]
    assert next(looks, None) is None


def test_a_short_outage_does_not_end_a_stream(
    store: Store, options: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the next batch ends is asked for again until the store answers."""
    create(store)
    send(store, "a", ["1"])
    query = Query(options())
    query.reader.initialOffset()
    reach, outages = type(store).reach, iter([True, True, False])

    def failing(store: Store, queue: Queue, part: Slice) -> tuple[int, Position]:
        if next(outages):
            raise StoreUnavailable("away for a moment")
        return reach(store, queue, part)

    monkeypatch.setattr(type(store), "reach", failing)
    assert values(query.batch()) == ["1"]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Fresh data on the store that the test is for."""
    if request.param == "sqlite":
        return SqliteSite(tmp_path / "data")
    return CassandraSite(request.getfixturevalue("contract_keyspace")).fresh()


@pytest.mark.parametrize("site", ["sqlite", "cassandra"], indirect=True)
def test_nothing_appears_below_the_end_of_a_batch(site: Site) -> None:
    """Writers in several stores, some of them with delays, and a stream beside them: every message once, in order."""
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(site.open())) for _ in range(3)]
        stores[0].create_application(APP)
        queue = create(stores[0], partitions=2)
        where = {"store": site.url} if isinstance(site, CassandraSite) else {"data": str(cast("SqliteSite", site).path)}
        options = {**where, "subscribe": "a", "startingOffsets": "earliest"}
        with ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write_at_random, stores[number], queue, number) for number in range(2)]
            stack.enter_context(opened(options, stores[2]))
            query = Query(options)
            rows: list[Row] = []
            while not all(writer.done() for writer in writers):
                rows += query.batch(ReadMaxRows(50)) or []
        sent = Counter(text for writer in writers for text in writer.result())
        while len(rows) < sum(sent.values()):
            rows += query.batch(ReadMaxRows(50)) or []
        assert Counter(values(rows)) == sent
        assert Counter(values(Query(options).rest())) == sent
    for number in (1, 2):
        placed = [row["position"] for row in rows if row["partition"] == number]
        assert placed == sorted(placed)
    steps = pairwise(offsets.parse(json.loads(end)) for end in query.ends)
    assert all(later.of(place) >= position for earlier, later in steps for place, position in earlier.positions.items())


def write_at_random(store: Store, queue: Queue, number: int) -> list[str]:
    """Sends messages to two partitions, a few at a time, some of them to come later; returns their texts."""
    chance = random.Random(number)
    sent: list[str] = []
    for turn in range(120):
        texts = [f"{number}-{turn}-{index}" for index in range(chance.randrange(1, 6))]
        delay = chance.choice([0, 0, 0.05, 0.3])
        store.append(queue, [NewMessage(text, chance.randrange(1, 3), DAY, delay=delay) for text in texts])
        sent += texts
    return sent


def test_a_delayed_message_comes_when_it_is_due(
    store: Store, clock: Clock, options: Callable[..., dict[str, str]]
) -> None:
    """Also if nothing else is written meanwhile, and in the order of due times."""
    create(store)
    query = Query(options())
    send(store, "a", ["later"], delay=10)
    send(store, "a", ["now"])
    assert values(query.batch()) == ["now"]
    clock.advance(9)
    assert query.batch() is None
    clock.advance(2)
    assert values(query.batch()) == ["later"]


def test_a_read_delay_is_kept(store: Store, clock: Clock, options: Callable[..., dict[str, str]]) -> None:
    """Batches end so far behind the clock as the queue says; what comes late within that is not missed."""
    queue = store.create_queue(APP, "a", QueueSpec(read_delay=5.0))[0]
    query = Query(options())
    send(store, "a", ["1"])
    early = clock.ticks
    clock.advance(3)
    send(store, "a", ["3"])
    assert values(query.batch()) == []
    store.load(queue, [Message(early + 10, LOW_MIN + 1, 1, early + DAY * TICKS_PER_SECOND, "2")])
    clock.advance(3)
    assert values(query.batch()) == ["1", "2"]
    clock.advance(3)
    assert values(query.batch()) == ["3"]


def test_the_newest_offset_is_reported(store: Store, options: Callable[..., dict[str, str]]) -> None:
    """How far a batch could have gone is known after it was planned, not before."""
    create(store, partitions=2)
    send(store, "a", numbered(9))
    query = Query(options())
    assert query.reader.reportLatestOffset() is None
    query.batch(ReadMaxRows(2))
    newest = offsets.parse(query.reader.reportLatestOffset())
    end = offsets.parse(json.loads(query.ends[-1]))
    assert newest.of(("a", 2)) == newest.of(("a", 1)) > end.of(("a", 1)) > FIRST
