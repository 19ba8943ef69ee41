"""The writers that Spark calls.

A writer is created and pickled in a process of the driver, when a write is planned. ``write`` runs in the Python
workers of executors, and ``commit`` and ``abort`` in a process of the driver again. A stream repeats this for every
micro-batch. So a writer holds only options and columns, and each process opens the store when it needs it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from queuey.model.errors import QueueExists, QueueyError
from queuey.model.messages import QueueSpec
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import SinkOptions
from queuey.spark.sink import write_reports
from queuey.spark.sink.arrow_rows import ColumnLayout, read_layout
from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.write_task import TaskIdentity, TaskWriter, WriteLimits
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""Local properties of a stream's tasks. The query keeps its id across restarts from its checkpoint."""


class TaskCommit(WriterCommitMessage):
    """Report of a task: its rows by outcome, the ``uid`` of their queues, and its query."""

    def __init__(self, counts: WriteCounts, uids: frozenset[int] = frozenset(), query: str | None = None) -> None:
        self.counts = counts
        self.uids = uids
        self.query = query


class QueueyWriter(DataSourceArrowWriter):
    """A batch write.

    Args:
        options: Options of the write.
        schema: Schema of the frame.
        overwrite: True if the mode is overwrite, which is an error.

    Raises:
        OptionError: The options or the columns are not valid.
        QueueNotFound: The queue does not exist, and is not to be created.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._layout = _make_layout(options, schema, overwrite=overwrite)
        _prepare_queue(options)
        self._writer_name = ("once", secrets.token_hex(16)) if options.run is None else ("run", options.run)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskCommit:
        return _write_task_rows(iterator, self._options, self._layout, self._writer_name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the counts. For a run, records them, and that it has finished its queues.

        The messages themselves need no commit.
        """
        counts = _sum_counts(messages)
        if self._options.run is not None:
            store = open_stores.opened(self._options.store)
            application = open_stores.application(store, self._options.store)
            identity = TaskIdentity.make("run", application, self._options.run)
            for uid in sorted({uid for task in messages if isinstance(task, TaskCommit) for uid in task.uids}):
                bridge.run(store.ledger.enter(identity.finished_name(uid), 0, b"finished", expected=None))
            write_reports.record_run(store.ledger, application, self._options.run, counts)
        _log_counts(counts, self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the number of written rows. They stay, and a run with the same name does not write them again."""
        counts = _sum_counts(messages)
        log.warning(
            "A write to %s has failed. %d of its messages were written and stay.",
            _target_text(self._options),
            counts.rows,
        )


class QueueyStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write; see :class:`QueueyWriter`.

    A task raises OptionError if Spark does not name its query and micro-batch.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._layout = _make_layout(options, schema, overwrite=overwrite, streaming=True)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskCommit:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
        if query is None or batch is None:
            raise OptionError("Spark does not name the micro-batch, so it cannot be written exactly once.")
        done = _write_task_rows(iterator, self._options, self._layout, ("stream", query), batch=int(batch))
        return TaskCommit(done.counts, done.uids, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Records the counts of a micro-batch, and logs them. A failure to record is only logged."""
        counts = _sum_counts(messages)
        query = next((task.query for task in messages if isinstance(task, TaskCommit)), None)
        if query is not None:
            try:
                store = open_stores.opened(self._options.store)
                application = open_stores.application(store, self._options.store)
                write_reports.record_batch(store.ledger, application, query, batchId, counts)
            except QueueyError as error:
                # The messages are stored, so a micro-batch does not fail because of its report.
                log.warning("The counts of micro-batch %d could not be recorded: %s", batchId, error)
        if counts.moved or counts.kept:
            log.warning("Micro-batch %d:", batchId)
        _log_counts(counts, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: written messages stay, and Spark repeats the micro-batch."""


def _make_layout(options: SinkOptions, schema: StructType, *, overwrite: bool, streaming: bool = False) -> ColumnLayout:
    if overwrite:
        mode = "the output mode complete" if streaming else "the mode overwrite"
        raise OptionError(f"Queues can only be appended to: {mode} is not possible, append is.")
    return read_layout(schema, queue=options.queue)


def _prepare_queue(options: SinkOptions) -> None:
    """Creates the options' queue if ``create`` is set; otherwise checks that it exists.

    Raises:
        OptionError: The queue exists with another number of partitions than the options have.
        QueueNotFound: The queue does not exist, and is not to be created.
    """
    if options.queue is None:
        return
    store = open_stores.opened(options.store)
    if not options.create:
        open_stores.find_queue(store, options.store, options.queue)
        return
    application = open_stores.application(store, options.store)
    try:
        bridge.run(store.catalogue.create_queue(application, options.queue, QueueSpec(partitions=options.partitions)))
    except QueueExists as error:
        raise OptionError(
            f"Queue {options.queue!r} exists with another number of partitions than {options.partitions}: leave option "
            "partitions out."
        ) from error


def _write_task_rows(
    iterator: Iterator[RecordBatch],
    options: SinkOptions,
    layout: ColumnLayout,
    name: tuple[str, str],
    *,
    batch: int = 0,
) -> TaskCommit:
    store = open_stores.opened(options.store)
    application = open_stores.application(store, options.store)
    settings = open_stores.read_settings(options.store)
    kind, writer_name = name
    identity = TaskIdentity.make(kind, application, writer_name, batch=batch, task=_task_context().partitionId())
    limits = WriteLimits(settings.max_body, settings.default_ttl)
    writer = TaskWriter(store, application, options, layout, identity, limits)
    return TaskCommit(writer.write(iterator), writer.uids)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise QueueyError("a write can only run in a Spark task")
    return context


def _sum_counts(messages: Sequence[WriterCommitMessage | None]) -> WriteCounts:
    return sum((task.counts for task in messages if isinstance(task, TaskCommit)), WriteCounts())


def _target_text(options: SinkOptions) -> str:
    return "queues" if options.queue is None else f"queue {options.queue}"


def _log_counts(counts: WriteCounts, options: SinkOptions) -> None:
    log.info("%d rows for %s: %d were written by this attempt.", counts.rows, _target_text(options), counts.written)
    if counts.expired:
        log.warning(
            "%d rows for %s were left out: they have expired, or expire before a reader can get them.",
            counts.expired,
            _target_text(options),
        )
    if counts.moved:
        log.warning(
            "%d messages for %s got later ids: the attempt was late, and readers may have passed the first ids.",
            counts.moved,
            _target_text(options),
        )
    if counts.kept:
        log.warning(
            "%d messages for %s were written by attempts that ended before they could record it; they stay.",
            counts.kept,
            _target_text(options),
        )
