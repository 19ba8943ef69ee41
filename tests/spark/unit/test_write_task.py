"""A task of a write after others: with a finished run, a missing queue, or no rows."""

from __future__ import annotations

import datetime as dt
import logging
from typing import cast

import msgspec
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from queuey import ids
from queuey.errors import QueueNotFound
from queuey.messages import QueueSpec
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import write_options
from queuey.spark.sink import write_reports
from queuey.spark.sink.exactly_once import NotRepeatable, WriteCounts
from queuey.spark.sink.spark_writer import QueueyWriter, TaskCommit
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteStore
from tests.backends import APP
from tests.spark.kept import Kept
from tests.spark.unit.test_arrow_rows import NOW, WriteSetup, setup

__all__ = ["setup"]

ROWS = [(str(number),) for number in range(8)]
NUMBERED = [(str(number), number) for number in range(8)]


def finish(setup: WriteSetup, name: str) -> None:
    bridge.run(
        setup.store.ledger.enter(
            TaskIdentity.make("run", APP, name).finished_name(setup.queue.uid), 0, b"finished", expected=None
        )
    )


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


def test_a_finished_run_stays_finished(setup: WriteSetup) -> None:
    """A finished run refuses more rows, also in new tasks, and its report can be read."""
    task = TaskIdentity.make("run", APP, "june")
    bridge.run(setup.store.ledger.enter(task.finished_name(setup.queue.uid), 0, b"finished", expected=None))
    with pytest.raises(NotRepeatable, match="Run 'june' is finished"):
        setup.write("value string", ROWS, name="june", run="june", task=3)
    bridge.run(
        setup.store.ledger.enter(
            task.shared_name("report"), 0, msgspec.msgpack.encode(WriteCounts(rows=8)), expected=None
        )
    )
    assert write_reports.report(setup.store, APP, "june") == WriteCounts(rows=8)
    write_reports.record_run(setup.store.ledger, APP, "june", WriteCounts(rows=8, skipped=8))
    assert write_reports.report(setup.store, APP, "june") == WriteCounts(rows=8, skipped=8)


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
    assert setup.write("value string", []) == WriteCounts()
    with cast("SqliteStore", setup.store)._db.readers.lend() as connection:
        assert connection.execute("SELECT work FROM ledger").fetchall() == []


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


def test_a_queue_that_cannot_be_written_to_is_named_at_planning(embedded: Kept) -> None:
    """A missing queue, or one with other partitions than requested, is refused at planning with a message."""
    embedded.queue(partitions=2)
    schema = StructType([StructField("value", StringType())])
    options = write_options({**embedded.options, "queue": "other"}, streaming=False)
    with pytest.raises(QueueNotFound, match="application 'acme' has no queue 'other'"):
        QueueyWriter(options, schema, overwrite=False)
    create = {"queue": "orders", "create": "true", "partitions": "3"}
    options = write_options({**embedded.options, **create}, streaming=False)
    with pytest.raises(OptionError, match="Queue 'orders' exists with another number of partitions than 3"):
        QueueyWriter(options, schema, overwrite=False)


def test_what_a_service_allows_can_be_written(embedded: Kept) -> None:
    """The max length of bodies is a setting of services, and a write accepts it as an option."""
    options = write_options({**embedded.options, "queue": "orders", "max_body": "4000000"}, streaming=False)
    assert open_stores.read_settings(options.store).max_body == 4_000_000


def test_a_commit_finishes_the_run_and_tells_what_was_left_out(
    embedded: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit of a run finishes it for each queue that it wrote to, and warns of rows that were left out."""
    queue, other = embedded.queue(), embedded.queue("other")
    options = write_options({**embedded.options, "queue": "orders", "run": "june"}, streaming=False)
    writer = QueueyWriter(options, StructType([StructField("value", StringType())]), overwrite=False)
    with caplog.at_level(logging.WARNING):
        writer.commit(
            [TaskCommit(WriteCounts(rows=3, written=1, expired=2), frozenset({queue.uid})), TaskCommit(WriteCounts())]
        )
    assert "2 rows for queue orders were left out" in caplog.text
    names = [TaskIdentity.make("run", APP, "june").finished_name(one.uid) for one in (queue, other)]
    assert [bridge.run(embedded.store.ledger.entry(name, 0)) is not None for name in names] == [True, False]
