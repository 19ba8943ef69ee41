"""Incoming rows: allowed columns, their chunks, and the messages they become. No Spark runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from queuey import ids
from queuey.errors import QueueNotFound
from queuey.messages import Message, Meta, Queue, QueueSpec, Slice
from queuey.partitions import by_key
from queuey.spark.errors import OptionError
from queuey.spark.options import SinkOptions, StoreOptions
from queuey.spark.sink.arrow_rows import ColumnLayout, RowChunk, divide_into_chunks, read_layout
from queuey.spark.sink.exactly_once import NotRepeatable, WriteCounts
from queuey.spark.sink.rate_limit import RateLimit
from queuey.spark.sink.write_task import TaskIdentity, TaskWriter, WriteLimits
from queuey.storage import Store, bridge
from tests.backends import APP, Clock, SqliteLocation

_HEADER = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
)
_TYPES: dict[str, types.DataType] = {
    "int": types.IntegerType(),
    "long": types.LongType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    "array<struct<key:string,value:binary>>": types.ArrayType(_HEADER),
}
HEADERS = "array<struct<key:string,value:binary>>"
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
TICKS = ids.seconds_to_ticks(NOW.timestamp())
LOW = ids.random_low()
FIRST, LAST = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)


def layout(schema: str, queue: str | None = "q") -> ColumnLayout:
    """Returns the layout of a schema written as ``name type, name type``."""
    fields = [field.split(" ") for field in schema.split(", ")]
    return read_layout(types.StructType([types.StructField(name, _TYPES[kind]) for name, kind in fields]), queue=queue)


@pytest.mark.parametrize(
    ("schema", "queue", "text"),
    [
        ("value string, colour string", "q", "A write has no column 'colour'; it can have value, queue, partition"),
        ("key string", "q", "A write needs a column value"),
        ("value int", "q", "The column value is of type int; it can be binary or string."),
        ("body binary, value string", "q", "The frame has the column value twice"),
        ("value string", None, "A write needs the option queue or a column queue"),
        ("value string, id string, sequence long", "q", "The columns id and sequence exclude each other"),
        ("value string, ttl int, expires timestamp", "q", "The columns ttl and expires exclude each other"),
        ("value string, timestamp timestamp", "q", "The column timestamp needs a column id"),
        ("value string, headers map<string,string>", "q", "The column headers is of type map<string,string>"),
        ("value string, expires timestamp_ntz", "q", "The column expires is of type timestamp_ntz"),
    ],
)
def test_wrong_columns_are_refused_by_name(schema: str, queue: str | None, text: str) -> None:
    """Each mistake in a frame's columns gives one message that names the column, before anything is written."""
    with pytest.raises(OptionError) as caught:
        layout(schema, queue)
    assert text in str(caught.value)


def test_columns_are_known_by_any_case_and_alias() -> None:
    """Columns are known in any case, and by the names that Kafka users know."""
    found = layout("BODY binary, Topic string, valuetype string, id string, position string, timestamp timestamp", None)
    assert found == ColumnLayout(("value", "queue", "valueType", "id", "", ""), text=False)


def test_everything_that_a_read_gives_can_be_written() -> None:
    """A frame read from a queue, headers included, can be written unchanged."""
    from queuey.spark.source.columns import read_schema  # noqa: PLC0415 - imports PySpark

    assert "id" in read_layout(read_schema(headers=True), queue=None)


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=8), st.integers(1, 7), st.integers(1, 60))
def test_chunks_do_not_depend_on_how_rows_arrive(lengths: list[list[int]], rows: int, size: int) -> None:
    """The same rows in other Arrow batches give the same chunks: none is too long, and no row is lost or reordered."""
    texts = [["x" * length for length in batch] for batch in lengths]
    flat = [text for batch in texts for text in batch]
    found = list(divide_into_chunks(map(_batch, texts), layout("value string"), rows=rows, size=size))
    assert found_texts(found) == found_texts(
        list(divide_into_chunks([_batch(flat)], layout("value string"), rows=rows, size=size))
    )
    assert [text for some in found_texts(found) for text in some] == flat
    assert [chunk.number for chunk in found] == list(range(len(found)))
    for chunk in found:
        values = chunk.columns["value"].to_pylist()
        assert 0 < chunk.count == len(values) <= rows
        assert sum(map(len, values[:-1])) < size


def found_texts(found: Sequence[RowChunk]) -> list[list[str]]:
    return [[body.decode() for body in chunk.columns["value"].to_pylist()] for chunk in found]


def _batch(texts: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(texts, pa.string())], names=["value"])


class WriteSetup:
    """An embedded store with a queue of four partitions, and tasks that write to it."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock(TICKS)
        self.store: Store = SqliteLocation(path).open(self.clock)
        bridge.run(self.store.applications.create_application(APP))
        self.queue, _ = bridge.run(self.store.catalogue.create_queue(APP, "q", QueueSpec(partitions=4)))

    def write(
        self,
        schema: str,
        rows: Sequence[tuple[Any, ...]],
        *,
        name: str = "x",
        task: int = 0,
        batch: int = 0,
        **options: Any,  # noqa: ANN401 - fields of WriteOptions
    ) -> WriteCounts:
        named: dict[str, Any] = {"queue": "q", **options}
        wanted = SinkOptions(store=StoreOptions(), **named)
        columns = layout(schema, wanted.queue)
        identity = TaskIdentity.make("run", APP, name, batch=batch, task=task)
        limits = WriteLimits(max_body=100, default_ttl=5000)
        writer = TaskWriter(self.store, APP, wanted, columns, identity, limits, sleep=self.clock.advance)
        return writer.write([_arrow(schema, rows)])

    def all(self, queue: Queue | None = None) -> list[Message]:
        """Advances the clock by 40 s, and returns all messages of a queue, by partition and position."""
        self.clock.advance(40.0)
        queue = queue or self.queue
        slices = [Slice(partition, limit=100_000, max_bytes=1 << 30) for partition in range(1, queue.partitions + 1)]
        return [message for page in bridge.run(self.store.messages.read(queue, slices)) for message in page.messages]


_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def _arrow(schema: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    fields = [field.split(" ") for field in schema.split(", ")]
    columns = [
        pa.array([row[place] for row in rows], _ARROW[kind]) for place, (_, kind) in enumerate(fields)
    ]  # fmt: skip
    return pa.record_batch(columns, names=[name for name, _ in fields])


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[WriteSetup]:
    made = WriteSetup(tmp_path / "data")
    yield made
    made.store.close()


def test_rows_become_messages_with_all_that_they_say(setup: WriteSetup) -> None:
    """Bodies keep their type, headers, content type and expiry; missing columns have their defaults."""
    schema = f"value binary, partition int, ttl int, valueType string, contentType string, headers {HEADERS}"
    rows = [
        (b"plain", 1, None, None, None, None),
        ("täxt".encode(), 2, 7, "text", "text/csv", []),
        (b'{"a":1}', 3, 9, "json", None, [{"key": "Who", "value": b"me"}]),
        (b"\xff", 4, 20, "bytes", None, None),
    ]
    assert setup.write(schema, rows) == WriteCounts(rows=4, written=4)
    bridge.run(setup.store.messages.read(setup.queue, [Slice(1)]))
    places = bridge.run(setup.store.messages.fetch(setup.queue, _places(setup)))
    messages = [(one.partition, one.body, one.meta or Meta(), one.expires - one.ticks) for one in places]
    assert [(partition, body, meta, span // ids.TICKS_PER_SECOND) for partition, body, meta, span in messages] == [
        (1, b"plain", Meta(), 5000),
        (2, "täxt", Meta("text/csv"), 7),
        (3, '{"a":1}', Meta(None, (("who", "me"),), json=True), 9),
        (4, b"\xff", Meta(), 20),
    ]


def _places(setup: WriteSetup) -> list[tuple[int, ids.Position]]:
    infos = bridge.run(setup.store.messages.inspect(setup.queue))[1]
    return [(info.partition, info.newest) for info in infos if info.newest is not None]


def test_a_column_expires_is_an_instant(setup: WriteSetup) -> None:
    """The expiry of a row is kept to the microsecond."""
    end = NOW + dt.timedelta(seconds=300, microseconds=17)
    setup.write("value string, partition int, expires timestamp", [("a", 1, end)])
    [message] = setup.all()
    assert message.expires == TICKS + 300 * ids.TICKS_PER_SECOND + 170


@pytest.mark.parametrize(
    "column",
    [
        "ttl int",
        "expires timestamp",
        "partition int",
        "key string",
        "valueType string",
        "contentType string",
        f"headers {HEADERS}",
    ],
)
def test_a_row_that_leaves_a_column_out(setup: WriteSetup, column: str) -> None:
    """A null takes the default of the queue or the write, like a missing column."""
    assert setup.write(f"value string, {column}", [("a", None)]).written == 1
    assert setup.write("value string", [("a",)], name="y").written == 1
    first, second = setup.all()
    assert first.expires - first.ticks == second.expires - second.ticks
    assert (first.body, first.meta) == (second.body, second.meta)


def test_some_rows_say_when_they_end(setup: WriteSetup) -> None:
    """One column may have instants, including past ones, and nulls, for which the TTL counts."""
    end = NOW + dt.timedelta(seconds=300)
    counts = setup.write("value string, expires timestamp", [("a", end), ("b", None), ("c", FIRST)])
    assert (counts.rows, counts.written, counts.expired) == (3, 2, 1)
    assert setup.write("value string, sequence long", [("d", 2**63 - 1)]).written == 1
    expiry_by_body = {one.body: one.expires for one in setup.all()}
    assert expiry_by_body["a"] == TICKS + 300 * ids.TICKS_PER_SECOND < expiry_by_body["b"]


def test_partitions_come_from_the_row_its_key_or_its_place(setup: WriteSetup) -> None:
    """A partition wins over a key; other rows are divided evenly, in the same way in each attempt."""
    rows = [("a", 3, "k"), ("b", None, "k"), *((str(number), None, None) for number in range(40))]
    setup.write("value string, partition int, key string", rows)
    where = {str(one.body): one.partition for one in setup.all()}
    assert where["a"] == 3
    assert where["b"] == by_key("k", 4)
    counts = [sum(where[str(number)] == partition for number in range(40)) for partition in range(1, 5)]
    assert min(counts) >= 9


def test_a_queue_that_gets_partitions_between_attempts_keeps_rows_where_they_were(setup: WriteSetup) -> None:
    """If a queue gets partitions between attempts, rows keep theirs, so that a retry does not write them twice."""
    rows = [(str(number), f"k{number}") for number in range(50)]
    assert setup.write("value string, key string", rows).written == 50
    setup.queue = bridge.run(setup.store.catalogue.update_queue(setup.queue, QueueSpec(partitions=9)))
    assert setup.write("value string, key string", rows[::-1]).skipped == 50
    # As if no rows had been noted: only their partitions are known.
    work = TaskIdentity.make("run", APP, "y").task_name(f"{setup.queue.uid:x}/partitions")
    bridge.run(setup.store.ledger.enter(work, 0, b"0 4", expected=None))
    setup.write("value string, key string", rows, name="y")
    assert {one.partition for one in setup.all()} <= {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("schema", "bad", "text"),
    [
        ("value string", ("",), "column value: a message cannot be empty"),
        ("value string", (None,), "column value: null"),
        ("value string", ("ä" * 51,), "column value: longer than the 100 bytes of max_body"),
        ("value string, partition int", ("a", 5), "column partition: 5 is not one of the queue's (1 to 4)"),
        ("value string, partition int", ("a", 0), "column partition: 0 is not one of the queue's (1 to 4)"),
        ("value string, ttl int", ("a", 0), "column ttl: 0 is not between 1 and 33554432 seconds"),
        ("value string, expires timestamp", ("a", LAST), "column expires: more than 33554432 seconds ahead"),
        ("value string, partition int", ("a", -(2**31)), "-2147483648 is not one of the queue's"),
        ("value string, ttl int", ("a", 2**31 - 1), "column ttl: 2147483647 is not between"),
        ("value string, valueType string", ("a", "xml"), "column valueType: 'xml' is not one of text, bytes, json"),
        ("value binary, valueType string", (b"\xff", "text"), "column value: 'utf-8' codec can't decode"),
        ("value string, valueType string", ("{", "json"), "column value: Input data was truncated"),
        ("value string, valueType string", ("[" * 300 + "]" * 300, "json"), "longer than the 100 bytes"),
        ("value string, sequence long", ("a", -1), "column sequence: every row needs a number from 0 on"),
        ("value string, id string", ("a", "xyz"), "column id: 'xyz' is not a message id"),
        ("value string, id string", ("a", None), "column id: null"),
        ("value string, contentType string", ("a", "a\nb"), "column contentType: a content type cannot have control"),
        (f"value string, headers {HEADERS}", ("a", [{"key": "a", "value": None}]), "the value of header a is null"),
        (f"value string, headers {HEADERS}", ("a", [{"key": None, "value": b"1"}]), "None is not a header name"),
        (f"value string, headers {HEADERS}", ("a", [None]), "column headers: None is not a header name"),
    ],
)
def test_a_bad_row_ends_the_task_and_its_chunk_is_not_written(
    setup: WriteSetup, schema: str, bad: tuple[Any, ...], text: str
) -> None:
    """The error names the row and its column, and no row of the chunk is stored."""
    fine = {"value string": ("fine",), "value binary": (b"fine",)}[schema.split(", ", maxsplit=1)[0]]
    others = {
        "partition int": 1,
        "ttl int": 9,
        "expires timestamp": NOW + dt.timedelta(seconds=99),
        "valueType string": None,
        "sequence long": 3,
        "id string": ids.to_hex((TICKS, LOW)),
        "contentType string": None,
        f"headers {HEADERS}": [],
    }
    good = (*fine, *(others[field] for field in schema.split(", ")[1:]))
    with pytest.raises(OptionError) as caught:
        setup.write(schema, [good, bad])
    assert "Row 2 of this task" in str(caught.value)
    assert text in str(caught.value)
    assert setup.all() == []


def test_deep_json_is_refused() -> None:
    """JSON that the service would refuse over HTTP is refused from Spark, too."""
    from queuey.spark.sink.messages_from_rows import _require_valid_json  # noqa: PLC0415 - private

    _require_valid_json("[" * 200 + "]" * 200)
    for deep in (201, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 200 levels"):
            _require_valid_json("[" * deep + "]" * deep)
    _require_valid_json("[" + ",".join(["[]"] * 1000) + "]")


def test_rows_go_to_the_queues_that_they_name(setup: WriteSetup) -> None:
    """Rows of a task may go to many queues; if one does not exist nothing of the chunk is written."""
    other, _ = bridge.run(setup.store.catalogue.create_queue(APP, "other", QueueSpec()))
    schema = "value string, queue string"
    rows = [("a", "other"), ("b", "q"), ("c", "other"), ("d", "q")]
    assert setup.write(schema, rows, queue=None) == WriteCounts(rows=4, written=4)
    assert setup.write(schema, rows, queue=None) == WriteCounts(rows=4, skipped=4)
    assert sorted(str(one.body) for one in setup.all()) == ["b", "d"]
    assert [str(one.body) for one in setup.all(other)] == ["a", "c"]
    with pytest.raises(QueueNotFound):
        setup.write(schema, [("e", "q"), ("f", "nowhere")], name="y", queue=None)
    with pytest.raises(OptionError, match="no queue is named"):
        setup.write(schema, [("e", "q"), ("f", None)], name="y", queue=None)
    assert len(setup.all()) == 2


def test_the_option_goes_before_the_column(setup: WriteSetup) -> None:
    """Rows read from one queue are copied to the queue of the option, and not back to their own."""
    other, _ = bridge.run(setup.store.catalogue.create_queue(APP, "other", QueueSpec()))
    assert setup.write("value string, queue string", [("a", "q"), ("b", None)], queue="other").written == 2
    assert [str(one.body) for one in setup.all(other)] == ["a", "b"]
    assert setup.all() == []


def test_rows_with_ids_are_written_there_again_and_again(setup: WriteSetup) -> None:
    """Archived rows are written at their own ids, however often; a TTL counts from now."""
    rows = [(f"m{number}", ids.to_hex((TICKS - 1000 + number, LOW)), 2) for number in range(5)]
    for _ in range(2):
        assert setup.write("value string, id string, partition int", rows) == WriteCounts(rows=5, written=5)
    messages = setup.all()
    assert [(one.id, str(one.body)) for one in messages] == [(id_, body) for body, id_, _ in rows]
    assert messages[0].expires == TICKS + 5000 * ids.TICKS_PER_SECOND


def test_a_run_is_one_queues(setup: WriteSetup) -> None:
    """A run's name used for another queue, or a recreated one, writes there from the start."""
    rows = [("a",), ("b",)]
    assert setup.write("value string", rows).written == 2
    bridge.run(setup.store.catalogue.create_queue(APP, "other", QueueSpec()))
    assert setup.write("value string", rows, queue="other").written == 2
    bridge.run(setup.store.catalogue.delete_queue(bridge.run(setup.store.catalogue.queue(APP, "q", fresh=True))))
    setup.queue, _ = bridge.run(setup.store.catalogue.create_queue(APP, "q", QueueSpec()))
    assert setup.write("value string", rows).written == 2
    assert len(setup.all()) == 2


def test_each_micro_batch_divides_rows_anew(setup: WriteSetup) -> None:
    """The next micro-batch uses new partitions of a queue; an earlier one is refused."""
    rows = [(str(number),) for number in range(40)]
    for batch, partitions in enumerate((4, 9)):
        setup.queue = bridge.run(setup.store.catalogue.update_queue(setup.queue, QueueSpec(partitions=partitions)))
        assert setup.write("value string", rows, batch=batch).written == 40
    assert max(one.partition for one in setup.all()) > 4
    with pytest.raises(NotRepeatable, match="micro-batch 1 has begun"):
        setup.write("value string", rows, batch=0)


def test_a_rate_is_kept_over_all_tasks(setup: WriteSetup) -> None:
    """Tasks share one rate limit; rows written before cost nothing."""
    rows = [(str(number),) for number in range(100)]
    start = setup.clock.ticks
    for task in range(3):
        setup.write("value string", rows, task=task, rate=20.0)
    seconds = (setup.clock.ticks - start) / ids.TICKS_PER_SECOND
    assert 14.0 - 0.01 <= seconds < 15.1
    start = setup.clock.ticks
    for task in range(3):
        assert setup.write("value string", rows, task=task, rate=7.0).skipped == 100
    assert setup.clock.ticks == start


def test_two_tasks_never_get_the_same_turn(setup: WriteSetup) -> None:
    """A turn that another task has taken meanwhile is not taken again."""
    first, second = (RateLimit(setup.store.ledger, "pace", 1.0, sleep=setup.clock.advance) for _ in range(2))
    start = setup.clock.ticks
    for _ in range(3):
        first.reserve_time(1)
        second.reserve_time(1)
    assert (setup.clock.ticks - start) / ids.TICKS_PER_SECOND == pytest.approx(5.0)
