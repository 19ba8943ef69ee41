"""Incoming rows: allowed columns, chunks, the messages that they become, and tasks that write them. No Spark runs."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.types import StringType, StructField, StructType

from queuey.model import ids
from queuey.model.errors import QueueNotFound
from queuey.model.messages import Message, Meta, Queue, QueueSpec, Slice
from queuey.model.partitions import by_key
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import SinkOptions, StoreOptions, write_options
from queuey.spark.sink.arrow_rows import ColumnLayout, RowChunk, divide_into_chunks, read_layout
from queuey.spark.sink.exactly_once import NotRepeatable, WriteCounts
from queuey.spark.sink.spark_writer import QueueyWriter, TaskCommit
from queuey.spark.sink.write_task import RateLimit, TaskIdentity, TaskWriter, WriteLimits
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.replacing import replace
from tests.spark.kept import Kept

_HEADER = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
)
_TYPES: dict[str, tuple[types.DataType, pa.DataType]] = {
    "int": (types.IntegerType(), pa.int32()),
    "long": (types.LongType(), pa.int64()),
    "string": (types.StringType(), pa.string()),
    "binary": (types.BinaryType(), pa.binary()),
    "timestamp": (types.TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (types.TimestampNTZType(), pa.timestamp("us")),
    "map<string,string>": (types.MapType(types.StringType(), types.StringType()), pa.map_(pa.string(), pa.string())),
    "array<struct<key:string,value:binary>>": (
        types.ArrayType(_HEADER),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ),
}
HEADERS = "array<struct<key:string,value:binary>>"
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
TICKS = ids.seconds_to_ticks(NOW.timestamp())
LOW = ids.random_low()
FIRST, LAST = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)


def layout(schema: str, queue: str | None = "q") -> ColumnLayout:
    """Returns the layout of a schema written as ``name type, name type``."""
    named = [field.split(" ") for field in schema.split(", ")]
    fields = [types.StructField(name, _TYPES[kind][0]) for name, kind in named]
    return read_layout(types.StructType(fields), queue=queue)


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
    """A queue of four partitions, and tasks that write to it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.clock = clock
        self.store = store
        self.queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(partitions=4)))

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
        limits = WriteLimits(max_body=500, default_ttl=5000)
        writer = TaskWriter(self.store, APP, wanted, columns, identity, limits, sleep=self.clock.advance)
        return writer.write([_arrow(schema, rows)])

    def all(self, queue: Queue | None = None) -> list[Message]:
        """Advances the clock by 40 s, and returns all messages of a queue, by partition and position."""
        self.clock.advance(40.0)
        queue = queue or self.queue
        slices = [Slice(partition, limit=100_000, max_bytes=1 << 30) for partition in range(1, queue.partitions + 1)]
        return [message for page in bridge.run(self.store.messages.read(queue, slices)) for message in page.messages]


def _arrow(schema: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    fields = [field.split(" ") for field in schema.split(", ")]
    columns = [pa.array([row[place] for row in rows], _TYPES[kind][1]) for place, (_, kind) in enumerate(fields)]
    return pa.record_batch(columns, names=[name for name, _ in fields])


@pytest.fixture
def clock() -> Clock:
    return Clock(TICKS)


@pytest.fixture
def setup(store: Store, clock: Clock) -> WriteSetup:
    return WriteSetup(store, clock)


def test_rows_become_messages_with_all_that_they_say(setup: WriteSetup) -> None:
    """Bodies keep their type, headers, content type and expiry; missing columns have their defaults."""
    schema = f"value binary, partition int, ttl int, valueType string, contentType string, headers {HEADERS}"
    nested = "[" * 200 + "]" * 200
    rows = [
        (b"plain", 1, None, None, None, None),
        ("täxt".encode(), 2, 70, "text", "text/csv", []),
        (b'{"a":1}', 3, 90, "json", None, [{"key": "Who", "value": b"me"}]),
        (b"\xff", 4, 200, "bytes", None, None),
        (nested.encode(), 4, None, "json", None, None),
    ]
    assert setup.write(schema, rows) == WriteCounts(rows=5, written=5)
    found = [(one.partition, one.body, one.meta or Meta(), one.expires - one.ticks) for one in setup.all()]
    assert [(partition, body, meta, span // ids.TICKS_PER_SECOND) for partition, body, meta, span in found] == [
        (1, b"plain", Meta(), 5000),
        (2, "täxt", Meta("text/csv"), 70),
        (3, '{"a":1}', Meta(None, (("who", "me"),), json=True), 90),
        (4, b"\xff", Meta(), 200),
        (4, nested, Meta(json=True), 5000),
    ]


@pytest.mark.parametrize("column", ["ttl int", "partition int", "key string"])
def test_a_row_that_leaves_a_column_out(setup: WriteSetup, column: str) -> None:
    """A null takes the default of the queue or the write, like a missing column."""
    assert setup.write(f"value string, {column}", [("a", None)]).written == 1
    [message] = setup.all()
    assert (message.body, message.meta) == ("a", None)
    assert (message.expires - message.ticks) // ids.TICKS_PER_SECOND == 5000


def test_some_rows_say_when_they_end(setup: WriteSetup) -> None:
    """One column may have instants, kept to the microsecond, past ones, and nulls, for which the TTL counts."""
    end = NOW + dt.timedelta(seconds=300, microseconds=17)
    counts = setup.write("value string, expires timestamp", [("a", end), ("b", None), ("c", FIRST)])
    assert (counts.rows, counts.written, counts.expired) == (3, 2, 1)
    assert setup.write("value string, sequence long", [("d", 2**63 - 1)]).written == 1
    expiry_by_body = {one.body: one.expires for one in setup.all()}
    assert expiry_by_body["a"] == TICKS + 300 * ids.TICKS_PER_SECOND + 170 < expiry_by_body["b"]


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
        ("value string", ("ä" * 251,), "column value: longer than the 500 bytes of max_body"),
        ("value string, partition int", ("a", 0), "column partition: 0 is not one of the queue's (1 to 4)"),
        ("value string, ttl int", ("a", 0), "column ttl: 0 is not between 1 and 33554432 seconds"),
        ("value string, expires timestamp", ("a", LAST), "column expires: more than 33554432 seconds ahead"),
        ("value string, valueType string", ("a", "xml"), "column valueType: 'xml' is not one of text, bytes, json"),
        ("value binary, valueType string", (b"\xff", "text"), "column value: 'utf-8' codec can't decode"),
        ("value string, valueType string", ("{", "json"), "column value: Input data was truncated"),
        ("value string, valueType string", ("[" * 201 + "]" * 201, "json"), "nested deeper than 200 levels"),
        ("value string, sequence long", ("a", -1), "column sequence: every row needs a number from 0 on"),
        ("value string, id string", ("a", "xyz"), "column id: 'xyz' is not a message id"),
        ("value string, contentType string", ("a", "a\nb"), "column contentType: a content type cannot have control"),
        (f"value string, headers {HEADERS}", ("a", [{"key": "a", "value": None}]), "the value of header a is null"),
        (f"value string, headers {HEADERS}", ("a", [{"key": None, "value": b"1"}]), "None is not a header name"),
    ],
)
def test_a_bad_row_ends_the_task_and_its_chunk_is_not_written(
    setup: WriteSetup, schema: str, bad: tuple[Any, ...], text: str
) -> None:
    """The error names the row and its column, and no row of the chunk is stored."""
    value, *others = schema.split(", ")
    needed = {"sequence long": 3, "id string": ids.to_hex((TICKS, LOW))}
    good = ("fine" if value == "value string" else b"fine", *map(needed.get, others))
    with pytest.raises(OptionError) as caught:
        setup.write(schema, [good, bad])
    assert "Row 2 of this task" in str(caught.value)
    assert text in str(caught.value)
    assert setup.all() == []


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


ROWS = [(str(number),) for number in range(8)]
NUMBERED = [(str(number), number) for number in range(8)]


def finish(setup: WriteSetup, name: str) -> None:
    finished = TaskIdentity.make("run", APP, name).finished_name(setup.queue.uid)
    bridge.run(setup.store.ledger.enter(finished, 0, b"finished", expected=None))


def texts(setup: WriteSetup) -> list[str]:
    return sorted(str(message.body) for message in setup.all())


def test_a_finished_run_in_other_tasks_writes_nothing(setup: WriteSetup) -> None:
    """A finished run that is repeated with more tasks writes no rows again."""
    setup.write("value string", ROWS, name="june", run="june")
    finish(setup, "june")
    for task in range(4):
        says = "Run 'june' is finished, and its task" if task else "rows in another order|other rows"
        with pytest.raises(NotRepeatable, match=says):
            setup.write("value string", ROWS[2 * task : 2 * task + 2], name="june", task=task, run="june")
    assert setup.write("value string", ROWS, name="june", run="june").skipped == 8
    assert texts(setup) == sorted(text for (text,) in ROWS)


def test_a_finished_run_goes_on_where_rows_are_numbered(setup: WriteSetup) -> None:
    """A finished run with a sequence continues: rows are identified, so any task may bring them, and new ones."""
    setup.write("value string, sequence long", NUMBERED[:4], name="june", run="june", ttl=99)
    finish(setup, "june")
    for task in range(2):
        setup.write("value string, sequence long", NUMBERED[4 * task :], name="june", task=task, run="june", ttl=99)
    assert texts(setup) == sorted(text for text, _ in NUMBERED)


def test_names_of_runs_may_have_slashes(setup: WriteSetup) -> None:
    """A run ``nightly/1`` with numbered rows has other entries than task 1 of the run ``nightly``."""
    for name in ("nightly", "nightly/1"):
        assert setup.write("value string", ROWS, name=name, task=1).written == 8
    assert setup.write("value string, sequence long", NUMBERED, name="nightly/1").written == 8
    for name in ("nightly", "nightly/1"):
        assert setup.write("value string", ROWS, name=name, task=1).skipped == 8
    assert len(texts(setup)) == 24


def test_a_task_makes_the_queue_that_is_to_be_created(setup: WriteSetup) -> None:
    """Tasks of a stream create its queue, with its partitions, once, because its planning cannot."""
    for task in range(2):
        setup.write("value string", ROWS, task=task, queue="new", create=True, partitions=3)
    made, created = bridge.run(setup.store.catalogue.create_queue(APP, "new", QueueSpec()))
    assert (made.partitions, created) == (3, False)
    assert len(setup.all(made)) == 16


def test_a_task_makes_no_other_queue(setup: WriteSetup) -> None:
    """A queue named by a row only must exist; the error names it and its application."""
    with pytest.raises(QueueNotFound, match="application 'acme' has no queue 'other'"):
        setup.write("value string, queue string", [("a", "other")], queue=None, create=True)


def test_a_task_without_rows_leaves_the_ledger_alone(setup: WriteSetup) -> None:
    """A task without rows, of which Spark has many, leaves nothing in the ledger."""

    def refuse(*_: object) -> None:
        raise AssertionError("an entry was made")

    with replace(type(setup.store.ledger).enter, refuse):
        assert setup.write("value string", []) == WriteCounts()


def test_a_row_that_ends_before_its_id_is_counted_as_expired(setup: WriteSetup) -> None:
    """A row that expires before readers can have it, by ``lead``, is not reported as written."""
    rows = [("early", NOW + dt.timedelta(seconds=5)), ("late", NOW + dt.timedelta(seconds=99))]
    counts = setup.write("value string, expires timestamp", rows, lead=10.0)
    assert (counts.rows, counts.written, counts.expired) == (2, 1, 1)
    assert texts(setup) == ["late"]


def test_a_rate_is_kept_by_rows_that_are_numbered(setup: WriteSetup) -> None:
    """Rows with a sequence share ledger entries; each waits its turn, and is in time for its id."""
    start = setup.clock.ticks
    rows = [(str(number), number, 1) for number in range(100)]
    for task in range(2):
        rows_of_task = rows[50 * task : 50 * task + 60]
        assert setup.write("value string, sequence long, partition int", rows_of_task, task=task, rate=2.0).moved == 0
    assert (setup.clock.ticks - start) / ids.TICKS_PER_SECOND == pytest.approx(49.0)
    assert [int(message.body) for message in setup.all()] == list(range(100))


def test_numbered_rows_may_come_in_any_number_of_tasks_and_as_late_as_they_like(setup: WriteSetup) -> None:
    """Tasks that bring rows after the ids of their piece have passed move them, none further than the one before."""
    for task in range(30):
        rows = [(str(number), number, 1) for number in range(task, 90, 30)]
        assert setup.write("value string, sequence long, partition int", rows, task=task).written == 3
        setup.clock.advance(15)
    assert sorted(int(message.body) for message in setup.all()) == list(range(90))


def test_rows_with_one_number_are_refused(setup: WriteSetup) -> None:
    """Two rows of one partition with one number are refused, because they would be one message."""
    schema = "value string, sequence long, partition int"
    with pytest.raises(OptionError, match="Several rows for partition 2 have the sequence 7"):
        setup.write(schema, [("a", 7, 1), ("b", 7, 2), ("c", 8, 2), ("d", 7, 2)])
    assert setup.write(schema, [("a", 7, 1), ("b", 7, 2)], name="y").written == 2


def test_pieces_of_numbered_rows_stay_as_they_were(setup: WriteSetup) -> None:
    """A run repeated at another rate finds its rows done, although the pieces are cut differently now."""
    for rate in (3.0, 0.0, 5.0):
        setup.write("value string, sequence long", NUMBERED, rate=rate)
    assert texts(setup) == sorted(text for text, _ in NUMBERED)


def make_writer(kept: Kept, **options: str) -> QueueyWriter:
    schema = StructType([StructField("value", StringType())])
    return QueueyWriter(write_options({**kept.options, **options}, streaming=False), schema, overwrite=False)


def test_a_queue_that_cannot_be_written_to_is_named_at_planning(embedded: Kept) -> None:
    """A missing queue, or one with other partitions than requested, is refused at planning with a message."""
    embedded.queue(partitions=2)
    with pytest.raises(QueueNotFound, match="application 'acme' has no queue 'other'"):
        make_writer(embedded, queue="other")
    with pytest.raises(OptionError, match="Queue 'orders' exists with another number of partitions than 3"):
        make_writer(embedded, queue="orders", create="true", partitions="3")


def test_what_a_service_allows_can_be_written(embedded: Kept) -> None:
    """The max length of bodies is a setting of services, and a write accepts it as an option."""
    options = write_options({**embedded.options, "queue": "orders", "max_body": "4000000"}, streaming=False)
    assert open_stores.read_settings(options.store).max_body == 4_000_000


def test_a_commit_finishes_the_run_and_tells_what_was_left_out(
    embedded: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit of a run finishes it for each queue that it wrote to, and warns of rows that were left out."""
    queue, other = embedded.queue(), embedded.queue("other")
    writer = make_writer(embedded, queue="orders", run="june")
    with caplog.at_level(logging.WARNING):
        writer.commit(
            [TaskCommit(WriteCounts(rows=3, written=1, expired=2), frozenset({queue.uid})), TaskCommit(WriteCounts())]
        )
    assert "2 rows for queue orders were left out" in caplog.text
    names = [TaskIdentity.make("run", APP, "june").finished_name(one.uid) for one in (queue, other)]
    assert [bridge.run(embedded.store.ledger.entry(name, 0)) is not None for name in names] == [True, False]
