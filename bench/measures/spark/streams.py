"""Measures a micro-batch for growing queues: with the stream reader alone, and within Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness import Bench, Skip, Void, measure
from bench.load import traffic
from bench.measures.cassandra.scale import load_over_three_days
from bench.measures.scale import MAX_FLAT_RATIO
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from queuey.messages import Queue
    from queuey.storage import Store

BATCH_MESSAGES = 1000
"""Messages per micro-batch, new or of a backlog."""
WARM_UP_BATCHES = 3
BATCHES = 3
"""Batches per sample, of which the median counts, because a single one is too short to be precise."""


class FollowedQueue:
    """A queue that the stream reader follows without Spark, from its end or from its beginning.

    Args:
        store: An open store, to send messages.
        options: The same store as Spark options.
        start: ``latest`` or ``earliest``. With ``earliest``, the batches are taken from a backlog.
    """

    def __init__(self, store: Store, options: Mapping[str, str], start: str) -> None:
        from queuey.spark.options import read_options  # noqa: PLC0415 - likewise
        from queuey.spark.source import columns  # noqa: PLC0415 - needs PySpark
        from queuey.spark.source.stream_reader import QueueyStreamReader  # noqa: PLC0415 - likewise

        self.store = store
        self.queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
        self.backlog = start == "earliest"
        own = {**options, "subscribe": "bench", "startingOffsets": start, "maxOffsetsPerTrigger": str(BATCH_MESSAGES)}
        self.reader = QueueyStreamReader(read_options(own, streaming=True), columns.read_schema(headers=False))
        self.end = self.reader.initialOffset()
        self.reader.latestOffset(self.end, self.reader.getDefaultReadLimit())

    def time_batches(self) -> float:
        """Runs :data:`BATCHES` micro-batches (the first ones of a backlog); returns the median milliseconds."""
        if self.backlog:
            self.end = self.reader.initialOffset()
        return statistics.median(self.time_batch() for _ in range(BATCHES))

    def time_batch(self) -> float:
        """Runs one micro-batch (end offset, tasks, and rows); returns its milliseconds.

        Raises:
            Void: The batch had the wrong number of rows.
        """
        if not self.backlog:
            send(self.store, self.queue)
        began = time.perf_counter()
        start = json.loads(json.dumps(self.end))
        self.end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        tasks = self.reader.partitions(start, self.end)
        rows = sum(batch.num_rows for task in tasks for batch in self.reader.read(task))
        milliseconds = (time.perf_counter() - began) * 1000
        if rows != BATCH_MESSAGES:
            raise Void(f"a micro-batch had {rows:,} rows")
        return milliseconds


def send(store: Store, queue: Queue) -> None:
    """Appends :data:`BATCH_MESSAGES` messages; on Cassandra, waits until readers can see them."""
    service.fill(store, queue, traffic.bodies(BATCH_MESSAGES), BATCH_MESSAGES)
    if store.name != "sqlite":
        on_cassandra.let_appear(store, queue)


def compare_sizes(bench: Bench, calls: Mapping[tuple[str, int], Callable[[], float]], rounds: int) -> Report:
    """Measures the calls in turn after a warm-up. Compares the largest size of each kind with the smallest."""
    for call, _ in itertools.product(calls.values(), range(bench.count(WARM_UP_BATCHES, 1))):
        call()
    names = {f"{kind}, {size:,} there": call for (kind, size), call in calls.items()}
    samples = bench.interleave(names, rounds)
    rows = [Row(name, values, "ms") for name, values in samples.items()]
    verdicts = []
    for kind in dict.fromkeys(kind for kind, _ in calls):
        sizes = sorted(size for call_kind, size in calls if call_kind == kind)
        fewest, most = (samples[f"{kind}, {size:,} there"] for size in (sizes[0], sizes[-1]))
        name = f"{kind}: {sizes[-1]:,} there / {sizes[0]:,} there"
        verdicts.append(Verdict(name, pairwise_ratios(most, fewest), goal=MAX_FLAT_RATIO, better="lower"))
    return Report(
        "", "", rows, verdicts, [f"latestOffset, partitions and read of {BATCH_MESSAGES:,} messages of 200 B."]
    )


def require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415 - only checks that it is installed
    except ModuleNotFoundError as error:
        raise Skip("PySpark is not installed") from error


@measure("spark-micro-batch", "A micro-batch of 1,000 messages, however many the queue holds, behind and ahead")
def measure_micro_batches(bench: Bench) -> Report:
    """Embedded stores: new messages at the end of a queue, a backlog from its start, and new messages within Spark."""
    require_pyspark()
    from queuey.spark import open_stores  # noqa: PLC0415 - needs PySpark

    sizes = [10_000, 40_000] if bench.quick else [10_000, 1_000_000, 5_000_000]
    calls: dict[tuple[str, int], Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(open_stores.close_all)
        spark = stack.enter_context(contextlib.closing(Spark(bench.new_directory("spark"))))
        for size in sizes:
            store, options = fill_store(bench, stack, size)
            for kind, start in (("new ones", "latest"), ("out of a backlog", "earliest")):
                calls[kind, size] = FollowedQueue(store, options, start).time_batches
            if size != sizes[-1]:
                # Uses its own store; otherwise its batches would include the messages for the reader alone.
                calls["new ones, with Spark", size] = spark.follow(*fill_store(bench, stack, size))
            bench.print_progress(f"{size:,} messages are there")
        return compare_sizes(bench, calls, bench.count(9, 1))


@measure("cassandra-spark-micro-batch", "A micro-batch of 1,000 messages on Cassandra, however many the queue holds")
def measure_micro_batches_on_cassandra(bench: Bench) -> Report:
    """One node; the stored messages are up to three days old, so they are in many buckets."""
    require_pyspark()
    from queuey.spark import open_stores  # noqa: PLC0415 - needs PySpark

    sizes = [10_000, 20_000] if bench.quick else [10_000, 300_000]
    calls: dict[tuple[str, int], Callable[[], float]] = {}
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        stack.callback(open_stores.close_all)
        for size in sizes:
            keyspace = f"micro_{size}"
            store = on_cassandra.prepare(cassandra, keyspace)
            stack.callback(store.close)
            load_over_three_days(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), size)
            options = {"store": cassandra.store_url(keyspace)}
            for kind, start in (("new ones", "latest"), ("out of a backlog", "earliest")):
                calls[kind, size] = FollowedQueue(store, options, start).time_batches
            bench.print_progress(f"{size:,} messages are there")
        return compare_sizes(bench, calls, bench.count(7, 1))


def fill_store(bench: Bench, stack: contextlib.ExitStack, size: int) -> tuple[Store, dict[str, str]]:
    directory = bench.new_directory(f"micro-{size}")
    store = service.prepare(directory)
    stack.callback(store.close)
    service.fill(
        store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), traffic.bodies(BATCH_MESSAGES), size
    )
    return store, {"data": str(directory)}


class Spark:
    """A Spark session that runs queries one by one; it starts with the first query."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spark: SparkSession | None = None

    def follow(self, store: Store, options: Mapping[str, str]) -> Callable[[], float]:
        """Consumes a queue to its end.

        Returns a function that sends messages and returns the milliseconds of their batch.
        """
        frame = self._session().readStream.format("queuey").options(**options, subscribe="bench").load()
        checkpoint = tempfile.mkdtemp(dir=self._directory)
        # One run per batch: a continuous query would poll all the time and disturb the other sides.
        writing = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writing.start().awaitTermination()
        return partial(
            time_spark_batch, store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), writing.start
        )

    def close(self) -> None:
        if self._spark is not None:
            from tests.spark.conftest import end  # noqa: PLC0415 - needs PySpark

            end(self._spark)

    def _session(self) -> SparkSession:
        if self._spark is None:
            from queuey.spark.session import session  # noqa: PLC0415 - needs PySpark

            self._spark = session(master="local[2,4]", conf={"spark.local.dir": str(self._directory)})
        return self._spark


def time_spark_batch(store: Store, queue: Queue, start: Callable[[], StreamingQuery]) -> float:
    """Sends messages; returns the milliseconds that Spark took for their batch.

    Raises:
        Void: Spark did not process them in one batch.
    """
    send(store, queue)
    query = start()
    query.awaitTermination()
    batches: list[dict[str, Any]] = [json.loads(p.json) for p in query.recentProgress if p.numInputRows]
    if [batch["numInputRows"] for batch in batches] != [BATCH_MESSAGES]:
        raise Void(f"Spark had batches of {[batch['numInputRows'] for batch in batches]} rows")
    milliseconds: float = batches[0]["durationMs"]["triggerExecution"]
    return milliseconds
