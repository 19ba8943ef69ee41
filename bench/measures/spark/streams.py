"""What a micro-batch costs, however much a queue holds: with Spark's reader alone, and with Spark around it."""

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
from bench.measures.cassandra.scale import spread
from bench.measures.scale import FLAT
from bench.results import Report, Row, Verdict, paired
from bench.started import nodes, on_cassandra, service
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from queuey.messages import Queue
    from queuey.storage import Store

BATCH = 1000
"""New messages, or messages out of a backlog."""
WARM = 3
BATCHES = 3
"""In a row, of which the median counts: one alone is so short that anything disturbs it."""


class Followed:
    """A queue that is followed by the reader of a stream, without Spark: from its end, or from its beginning.

    Args:
        store: Open; messages are sent through it.
        options: The same store, as options of Spark.
        start: ``latest``, or ``earliest``: then each batch takes so many of the backlog.
    """

    def __init__(self, store: Store, options: Mapping[str, str], start: str) -> None:
        from queuey.spark.options import read_options  # noqa: PLC0415 - likewise
        from queuey.spark.source import columns  # noqa: PLC0415 - needs PySpark
        from queuey.spark.source.stream_reader import QueueyStreamReader  # noqa: PLC0415 - likewise

        self.store = store
        self.queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
        self.backlog = start == "earliest"
        given = {**options, "subscribe": "bench", "startingOffsets": start, "maxOffsetsPerTrigger": str(BATCH)}
        self.reader = QueueyStreamReader(read_options(given, streaming=True), columns.read_schema(headers=False))
        self.end = self.reader.initialOffset()
        self.reader.latestOffset(self.end, self.reader.getDefaultReadLimit())

    def batches(self) -> float:
        """Runs some micro-batches, out of a backlog the first ones; returns the median of their times (ms)."""
        if self.backlog:
            self.end = self.reader.initialOffset()
        return statistics.median(self.batch() for _ in range(BATCHES))

    def batch(self) -> float:
        """Runs one micro-batch: where does it end, what are its tasks, and their rows; returns milliseconds.

        Raises:
            Void: It had other than the rows that it should.
        """
        if not self.backlog:
            send(self.store, self.queue)
        began = time.perf_counter()
        start = json.loads(json.dumps(self.end))
        self.end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        tasks = self.reader.partitions(start, self.end)
        rows = sum(batch.num_rows for task in tasks for batch in self.reader.read(task))
        took = (time.perf_counter() - began) * 1000
        if rows != BATCH:
            raise Void(f"a micro-batch had {rows:,} rows")
        return took


def send(store: Store, queue: Queue) -> None:
    """Sends a batch of messages and waits until they may be read."""
    service.fill(store, queue, traffic.bodies(BATCH), BATCH)
    if store.name != "sqlite":
        on_cassandra.let_appear(store, queue)


def compared(bench: Bench, calls: Mapping[tuple[str, int], Callable[[], float]], rounds: int) -> Report:
    """Compares, for each kind of batch, the queue with most messages with the one with fewest."""
    for call, _ in itertools.product(calls.values(), range(bench.size(WARM, 1))):
        call()
    names = {f"{kind}, {size:,} there": call for (kind, size), call in calls.items()}
    samples = bench.interleave(names, rounds)
    rows = [Row(name, values, "ms") for name, values in samples.items()]
    verdicts = []
    for kind in dict.fromkeys(kind for kind, _ in calls):
        sizes = sorted(size for one, size in calls if one == kind)
        fewest, most = (samples[f"{kind}, {size:,} there"] for size in (sizes[0], sizes[-1]))
        name = f"{kind}: {sizes[-1]:,} there / {sizes[0]:,} there"
        verdicts.append(Verdict(name, paired(most, fewest), goal=FLAT, better="lower"))
    return Report("", "", rows, verdicts, [f"latestOffset, partitions and read of {BATCH:,} messages of 200 B."])


def needs_pyspark() -> None:
    """Skips where it is not installed.

    Raises:
        Skip: It is not.
    """
    try:
        import pyspark  # noqa: F401, PLC0415 - only to see whether it is there
    except ModuleNotFoundError as error:
        raise Skip("PySpark is not installed") from error


@measure("spark-micro-batch", "A micro-batch of 1,000 messages, however many the queue holds, behind and ahead")
def micro_batches(bench: Bench) -> Report:
    """Embedded stores: new messages at the end of a queue, a backlog from its beginning, and new ones with Spark."""
    needs_pyspark()
    from queuey.spark import open_stores  # noqa: PLC0415 - needs PySpark

    sizes = [10_000, 40_000] if bench.quick else [10_000, 1_000_000, 5_000_000]
    calls: dict[tuple[str, int], Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(open_stores.close_all)
        spark = stack.enter_context(contextlib.closing(Spark(bench.fresh("spark"))))
        for size in sizes:
            store, options = filled(bench, stack, size)
            for kind, start in (("new ones", "latest"), ("out of a backlog", "earliest")):
                calls[kind, size] = Followed(store, options, start).batches
            if size != sizes[-1]:
                # In a store of its own: here a batch would hold what the reader alone is sent as well.
                calls["new ones, with Spark", size] = spark.follow(*filled(bench, stack, size))
            bench.say(f"{size:,} messages are there")
        return compared(bench, calls, bench.size(9, 1))


@measure("cassandra-spark-micro-batch", "A micro-batch of 1,000 messages on Cassandra, however many the queue holds")
def micro_batches_on_cassandra(bench: Bench) -> Report:
    """One node; the messages that are there are up to three days old, so they lie in many buckets."""
    needs_pyspark()
    from queuey.spark import open_stores  # noqa: PLC0415 - needs PySpark

    sizes = [10_000, 20_000] if bench.quick else [10_000, 300_000]
    calls: dict[tuple[str, int], Callable[[], float]] = {}
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        stack.callback(open_stores.close_all)
        for size in sizes:
            keyspace = f"micro_{size}"
            store = on_cassandra.prepare(cassandra, keyspace)
            stack.callback(store.close)
            spread(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), size)
            options = {"store": cassandra.url(keyspace)}
            for kind, start in (("new ones", "latest"), ("out of a backlog", "earliest")):
                calls[kind, size] = Followed(store, options, start).batches
            bench.say(f"{size:,} messages are there")
        return compared(bench, calls, bench.size(7, 1))


def filled(bench: Bench, stack: contextlib.ExitStack, size: int) -> tuple[Store, dict[str, str]]:
    """Makes an embedded store with so many messages in a queue; returns it, and as options of Spark."""
    directory = bench.fresh(f"micro-{size}")
    store = service.prepare(directory)
    stack.callback(store.close)
    service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), traffic.bodies(BATCH), size)
    return store, {"data": str(directory)}


class Spark:
    """A session that runs queries, one after another; it is started for the first of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spark: SparkSession | None = None

    def follow(self, store: Store, options: Mapping[str, str]) -> Callable[[], float]:
        """Starts to follow a queue; returns what sends some messages and tells how long their batch took."""
        frame = self._session().readStream.format("queuey").options(**options, subscribe="bench").load()
        checkpoint = tempfile.mkdtemp(dir=self._directory)
        # A run for each batch: a query that goes on asks for news all the time and disturbs the other sides.
        writing = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writing.start().awaitTermination()
        return partial(
            spark_batch, store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), writing.start
        )

    def close(self) -> None:
        """Ends Spark, if it was started."""
        if self._spark is not None:
            from tests.spark.conftest import end  # noqa: PLC0415 - needs PySpark

            end(self._spark)

    def _session(self) -> SparkSession:
        if self._spark is None:
            from queuey.spark.session import session  # noqa: PLC0415 - needs PySpark

            self._spark = session(master="local[2,4]", conf={"spark.local.dir": str(self._directory)})
        return self._spark


def spark_batch(store: Store, queue: Queue, start: Callable[[], StreamingQuery]) -> float:
    """Sends messages and returns how long Spark took over their batch (ms).

    Raises:
        Void: They were not one batch.
    """
    send(store, queue)
    query = start()
    query.awaitTermination()
    batches: list[dict[str, Any]] = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
    if [one["numInputRows"] for one in batches] != [BATCH]:
        raise Void(f"Spark had batches of {[one['numInputRows'] for one in batches]} rows")
    took: float = batches[0]["durationMs"]["triggerExecution"]
    return took
