"""The job ``pipe``: moves messages from queues to a queue through SQL or a function, each exactly once.

The stream reads from positions in its checkpoint, and writes at ids that are reserved for its micro-batches
(:mod:`queuey.spark.sink.exactly_once`). So a micro-batch that runs again writes the same messages at the same ids. That
requires the transform to return the same rows in the same order. If rows are only filtered and mapped one by one, they
keep the order of their messages. If they are shuffled (grouped, joined, made distinct), their order is not defined, so
each task's rows are sorted before they are written.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec

from queuey.model.errors import QueueNotFound
from queuey.model.messages import Queue, QueueSpec
from queuey.pipeline.archive import find_buckets
from queuey.pipeline.options import VIEW_NAME, Pipe
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.failures import explain
from queuey.spark.options import Selection, StoreOptions
from queuey.spark.sink.arrow_rows import read_layout
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PREVIEW_ROWS = 10
STOP_TIMEOUT = 30.0
"""Timeout for the running micro-batch when the job stops, in seconds."""
_START_TIMEOUT = 60.0
"""Timeout for a query to start, in seconds."""
_CHECK_INTERVAL = 0.5
"""Interval between checks of the stream, in seconds."""
_REPORT_INTERVAL = 10.0
"""Interval between reports of progress, in seconds."""
_STOPPING_CHECK_INTERVAL = 0.05
"""Interval between checks of a stopping stream, in seconds: short, so that hardly another batch is started."""
_SOURCE_COLUMNS = ("id", "position", "timestamp")
"""Input columns that new messages get anew."""
_COUNTING_NODE = "CollectMetrics"
"""The plan node that counts the rows passing through it."""
_ROWS = "rows"
_ROW_BY_ROW_NODES = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "Generate",
        "EventTimeWatermark",
        "Union",
        "MapInArrow",
        _COUNTING_NODE,
    }
)
_SOURCE_NODES = re.compile(r"Stream|Relation|Scan|LogicalRDD")
ReportProgress = Callable[[str], None]


class Piped(msgspec.Struct, frozen=True):
    """Result of a run.

    Attributes:
        query: The stream's id, which its checkpoint keeps.
        batches: Number of micro-batches with messages.
        messages: Number of messages that were read.
        rows: Number of rows that the transform returned.
    """

    query: str
    batches: int
    messages: int
    rows: int


class Preview(msgspec.Struct, frozen=True):
    """Rows that a run would write.

    Attributes:
        columns: Names and types of the columns.
        sorted: True if rows are shuffled, so that the rows of each task are sorted.
        rows: The first rows, as texts.
    """

    columns: dict[str, str]
    sorted: bool
    rows: tuple[dict[str, str | None], ...]


def run(spark: SparkSession, pipe: Pipe, report_progress: ReportProgress, stop: Event) -> Piped:
    """Moves messages until it is stopped, or with ``once`` until all are moved.

    Raises:
        OptionError: The queues, the transform or its columns are not valid. Nothing was moved.
        QueueNotFound: A queue does not exist.
    """
    check(pipe)
    frame = _transform(spark, pipe, _read_stream(spark, pipe))
    if not frame.isStreaming:
        raise OptionError("the result of the transform does not depend on the stream of messages")
    written = _select_output(frame, pipe)
    _prepare_target(pipe)
    query = _start_query(written, pipe)
    report_progress(f"query {query.id} {'moves existing messages' if pipe.once else 'is running'}")
    return _report_until_end(query, report_progress, stop)


def preview(spark: SparkSession, pipe: Pipe) -> Preview:
    """Returns the first rows that would be written for existing messages; changes nothing.

    Raises:
        OptionError, QueueNotFound: As in :func:`run`.
    """
    open_stores.find_selected_queues(pipe.store, pipe.source)
    reader = spark.read.format("queuey").options(**_read_options(pipe.store, pipe.source), includeHeaders="true")
    if not isinstance(pipe.start, str):
        reader = reader.option("startingTimestamp", str(round(pipe.start * 1000)))
    frame = _select_output(_transform(spark, pipe, reader.load()), pipe)
    rows = frame.limit(PREVIEW_ROWS).collect()
    columns = {field.name: field.dataType.simpleString() for field in frame.schema}
    return Preview(
        columns, _has_shuffle(frame), tuple({name: _cell_text(row[name]) for name in columns} for row in rows)
    )


def load(name: str) -> Callable[[DataFrame], DataFrame]:
    """Imports a function. Its module need not be importable where tasks run.

    Args:
        name: ``module:function``.

    Raises:
        OptionError: The module cannot be imported, or does not have the function.
    """
    from pyspark import cloudpickle

    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise OptionError(f"{name!r} is not module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(f"module {module_name} cannot be imported: {_error_text(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise OptionError(f"module {module_name} has no function {function_name}")
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    transform: Callable[[DataFrame], DataFrame] = function
    return transform


# Reading and transforming


def _read_options(store: StoreOptions, selection: Selection) -> dict[str, str]:
    return find_buckets.make_option_texts(store) | find_buckets.make_subscribe_options(selection)


def _read_stream(spark: SparkSession, pipe: Pipe) -> DataFrame:
    reader = spark.readStream.format("queuey").options(**_read_options(pipe.store, pipe.source), includeHeaders="true")
    if isinstance(pipe.start, str):
        reader = reader.option("startingOffsets", pipe.start)
    else:
        reader = reader.option("startingTimestamp", str(round(pipe.start * 1000)))
    if pipe.most is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(pipe.most))
    if pipe.group is not None:
        reader = reader.option("group", pipe.group)
    return reader.load()


def _transform(spark: SparkSession, pipe: Pipe, messages: DataFrame) -> DataFrame:
    """Sets the watermark, makes the messages a view, and returns the result of the SQL or of the function.

    Raises:
        OptionError: The function cannot be imported, fails, or does not return a DataFrame.
    """
    from pyspark.sql import DataFrame

    if pipe.watermark is not None:
        messages = messages.withWatermark("timestamp", pipe.watermark)
    messages.createOrReplaceTempView(VIEW_NAME)
    if pipe.sql is not None:
        return spark.sql(pipe.sql)
    name = pipe.function or ""
    function = load(name)
    try:
        result = function(messages)
    except Exception as error:
        if explain(error) is not None:
            raise
        raise OptionError(f"{name} failed: {_error_text(error)}") from error
    if not isinstance(result, DataFrame):
        raise OptionError(f"{name} returned {type(result).__name__}, not a DataFrame")
    return result


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _select_output(frame: DataFrame, pipe: Pipe) -> DataFrame:
    names = {name.lower() for name in frame.columns}
    dropped = {*_SOURCE_COLUMNS}
    if pipe.target is not None:
        dropped |= {"queue", "topic"}
    if "ttl" in names or pipe.ttl is not None:
        dropped.add("expires")
    if "key" in names:
        dropped.add("partition")
    kept = frame.select(*(frame[f"`{name}`"] for name in frame.columns if name.lower() not in dropped))
    read_layout(kept.schema, queue=pipe.target)
    return kept


def _has_shuffle(frame: DataFrame) -> bool:
    """Returns whether the order of a frame's rows is undefined, because it does more than filter and map rows."""
    names = _node_names(frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - there is no public way
    return any(name not in _ROW_BY_ROW_NODES and not _SOURCE_NODES.search(name) for name in names)


def _node_names(plan: Any) -> Iterator[str]:  # noqa: ANN401 - a plan in the JVM
    yield plan.nodeName()
    children = plan.children()
    for place in range(children.size()):
        yield from _node_names(children.apply(place))


def _cell_text(value: object) -> str | None:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return None if value is None else str(value)


# Queues


def check(pipe: Pipe) -> None:
    """Checks that the source and target queues exist or can be created. Needs no Spark.

    Raises:
        QueueNotFound: A queue does not exist, and is not to be created.
        OptionError: The target's name is not valid for a new queue.
    """
    open_stores.find_selected_queues(pipe.store, pipe.source)
    if pipe.target is not None and _find_target(pipe) is None:
        open_stores.check_name(pipe.target)


def _find_target(pipe: Pipe) -> Queue | None:
    try:
        return open_stores.find_queue(open_stores.opened(pipe.store), pipe.store, pipe.target or "")
    except QueueNotFound:
        if not pipe.create:
            raise
        return None


def _prepare_target(pipe: Pipe) -> None:
    if pipe.target is None:
        return
    target = _find_target(pipe)
    if pipe.create:
        store = open_stores.opened(pipe.store)
        most = max((queue.partitions for queue in open_stores.find_selected_queues(pipe.store, pipe.source)), default=1)
        partitions = pipe.partitions or (None if target else most)
        bridge.run(
            store.catalogue.create_queue(
                open_stores.application(store, pipe.store), pipe.target, QueueSpec(partitions=partitions)
            )
        )


# Running


def _start_query(frame: DataFrame, pipe: Pipe) -> StreamingQuery:
    """Starts the query. Shuffled rows are sorted in each task, and each micro-batch is written as a named run."""
    from pyspark.sql import functions as f

    frame = frame.observe(_ROWS, f.count(f.lit(1)).alias(_ROWS))
    writer = frame.writeStream.option("checkpointLocation", pipe.checkpoint).outputMode(pipe.mode)
    writer = writer.trigger(availableNow=True) if pipe.once else writer.trigger(processingTime=f"{pipe.every} seconds")
    options = _sink_options(pipe)
    if not _has_shuffle(frame):
        return writer.format("queuey").options(**options).start()

    name: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.sortWithinPartitions(*batch.columns)
        run = f"pipe/{name.result(_START_TIMEOUT)}/{number}"
        rows.write.format("queuey").mode("append").options(**options, run=run).save()

    query = writer.foreachBatch(write).start()
    # The checkpoint keeps the id, so a micro-batch that runs again after a restart has the same name.
    name.set_result(str(query.id))
    return query


def _sink_options(pipe: Pipe) -> dict[str, str]:
    options: Mapping[str, str | None] = {
        "queue": pipe.target,
        "ttl": None if pipe.ttl is None else str(pipe.ttl),
        "lead": str(pipe.lead),
    }
    return {
        **find_buckets.make_option_texts(pipe.store),
        **{name: text for name, text in options.items() if text is not None},
    }


def _report_until_end(query: StreamingQuery, report_progress: ReportProgress, stop: Event) -> Piped:
    """Reports progress until the query ends.

    After ``stop`` is set, ends it when the running micro-batch is done, at the latest after ``STOP_TIMEOUT`` seconds.
    """
    last, batches, messages, written = -1, 0, 0, 0
    deadline: float | None = None
    silent_until = 0.0
    while True:
        ended = query.awaitTermination(_CHECK_INTERVAL if deadline is None else _STOPPING_CHECK_INTERVAL)  # type: ignore[arg-type]  # fractions are fine
        before = last
        for progress in query.recentProgress:
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if number > last:
                last, batches, messages = number, batches + (rows > 0), messages + rows
                counted = progress["observedMetrics"].get(_ROWS)
                written += counted[_ROWS] if counted is not None else 0
        if last > before and time.monotonic() >= silent_until:
            report_progress(f"{messages:,} messages in {batches:,} micro-batches, {written:,} written")
            silent_until = time.monotonic() + _REPORT_INTERVAL
        if ended:
            return Piped(str(query.id), batches, messages, written)
        if not stop.is_set():
            continue
        if deadline is None:
            deadline = time.monotonic() + STOP_TIMEOUT
        elif last > before or not query.status["isTriggerActive"] or time.monotonic() > deadline:
            query.stop()
