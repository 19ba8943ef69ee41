"""Progress reports of streams and streaming writes, and their metrics."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage
from queuey.spark.options import write_options
from queuey.spark.progress import MAX_ENDED, ProgressMetrics
from queuey.spark.sink import write_reports
from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.spark_writer import QueueyStreamWriter, TaskCommit
from queuey.spark.sink.write_reports import StreamCounts
from queuey.spark.sink.write_task import RateLimit
from queuey.spark.source.stream_reader import REQUEST_INTERVAL, StreamLag
from queuey.storage import Entry, Ledger
from queuey.storage.sqlite import SqliteStore
from tests.backends import APP, Clock
from tests.interposed_store import InterposedStore
from tests.pages import examples
from tests.replacing import replace
from tests.spark.kept import Kept

QUERY = "a4f1"


def batch(number: int, *, lag: Any = None, query: int = 1, name: str | None = "copy") -> Any:  # noqa: ANN401 - an event of Spark
    latest = json.dumps({"v": 1, "queues": {}, "lag": lag})
    sources = [SimpleNamespace(latestOffset=latest), SimpleNamespace(latestOffset=None)]
    progress = SimpleNamespace(
        id=UUID(int=query),
        name=name,
        batchId=number,
        numInputRows=3,
        sources=sources,
        sink=SimpleNamespace(numOutputRows=2),
    )
    return SimpleNamespace(progress=progress)


def make_end_event(query: int = 1) -> Any:  # noqa: ANN401 - an event of Spark
    return SimpleNamespace(id=UUID(int=query))


def test_a_commit_notes_its_query(embedded: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """The commit of a micro-batch notes the rows of its tasks; a store that is away is only logged."""
    embedded.queue()
    options = write_options({**embedded.options, "queue": "orders"}, streaming=True)
    writer = QueueyStreamWriter(options, StructType([StructField("value", StringType())]), overwrite=False)
    counts = WriteCounts(rows=2, written=2), WriteCounts(rows=1)
    done: list[WriterCommitMessage | None] = [None, *(TaskCommit(one, query=QUERY) for one in counts)]
    writer.commit(done, 7)
    noted = write_reports.stream_report(embedded.store, APP, QUERY)
    assert noted is not None
    assert (noted.batch, noted.total) == (7, WriteCounts(rows=3, written=2))

    def away(*_: object) -> None:
        raise StoreUnavailable("it is away")

    with replace(write_reports.record_batch, away), caplog.at_level(logging.WARNING):
        writer.commit(done, 8)
    assert "The counts of micro-batch 8 could not be recorded" in caplog.text


def test_metrics_of_a_query(embedded: Kept) -> None:
    """Rows add up over micro-batches, lag is the latest, and moved rows are those noted by the sink."""
    registry = CollectorRegistry()
    listener = ProgressMetrics({**embedded.options, "application": APP}, registry=registry)

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"queuey_stream_{name}", {"query": "copy"})

    query = str(UUID(int=1))
    write_reports.record_batch(embedded.store.ledger, APP, query, 0, WriteCounts(rows=2, written=2, moved=2))
    listener.onQueryProgress(batch(0, lag={"messages": 9, "exact": True, "seconds": 4.5}))
    assert [value("lag_messages"), value("lag_seconds"), value("moved_rows_total")] == [9, 4.5, 2]
    write_reports.record_batch(embedded.store.ledger, APP, query, 1, WriteCounts(rows=2, moved=1))
    listener.onQueryProgress(batch(1, lag={"messages": 0, "exact": True, "seconds": 0.0}))
    listener.onQueryProgress(batch(2))
    assert [value("read_rows_total"), value("written_rows_total"), value("moved_rows_total")] == [9, 6, 3]
    assert value("lag_messages") == 0


def test_metrics_of_queries_that_ended_are_forgotten_in_time() -> None:
    """Metrics of running queries and of the last hundred are kept, however many run one after the other."""
    registry = CollectorRegistry()
    listener = ProgressMetrics(registry=registry)
    listener.onQueryProgress(batch(0, query=1, name="lasting"))
    for query in range(2, MAX_ENDED + 4):
        listener.onQueryProgress(batch(0, query=query, name=None))
        listener.onQueryTerminated(make_end_event(query))
        listener.onQueryTerminated(make_end_event(query))
    [rows] = [one for one in registry.collect() if one.name == "queuey_stream_read_rows"]
    named = {sample.labels["query"] for sample in rows.samples if sample.name.endswith("_total")}
    assert named == {"lasting", *(str(UUID(int=query)) for query in range(4, MAX_ENDED + 4))}


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the listener shows its metrics."""
    [example] = examples(ProgressMetrics)
    exec(example.text, {"spark": SimpleNamespace(streams=SimpleNamespace(addListener=lambda listener: None))})
    assert "# TYPE queuey_stream_lag_messages gauge" in capsys.readouterr().out


def test_lag_is_asked_for_now_and_then(embedded: Kept) -> None:
    """The store is asked for a lag every ten seconds at most; a lag of zero is known without it."""
    queue = embedded.queue(partitions=2)
    sent = embedded.fill(queue, 10)
    now = [100.0]
    lag = StreamLag(lambda: now[0])
    assert lag.measure(embedded.store, {}) == {"messages": 0, "exact": True, "seconds": 0.0}
    beginning = min(one.position for one in sent if one.partition == 1)
    starts = {queue: {1: beginning}}
    lags = lag.measure(embedded.store, starts)
    assert (lags["messages"], lags["exact"]) == (5, True)
    embedded.post(queue, [NewMessage("more", 1, 60)])
    assert lag.measure(embedded.store, starts) == lags
    now[0] += REQUEST_INTERVAL
    assert lag.measure(embedded.store, starts)["messages"] == 6
    assert lag.measure(embedded.store, {})["messages"] == 0
    assert lag.measure(embedded.store, starts)["messages"] == 6


ONE, TWO = WriteCounts(written=1), WriteCounts(written=2)
MONTHS = 100 * 86_400.0


@pytest.mark.parametrize("pause", [0.0, MONTHS])
def test_an_entry_that_expires_meanwhile(store: SqliteStore, clock: Clock, pause: float) -> None:
    """A report, a micro-batch's counts and a turn are noted even if the former entry expires between two steps.

    A micro-batch counts once, at its first commit.
    """
    between = InterposedStore(store)

    async def change(work: str, piece: int, decide: Callable[[bytes | None], Entry | None]) -> bytes | None:
        pauses = [pause]

        def decide_late(value: bytes | None) -> Entry | None:
            if pauses:
                clock.advance(pauses.pop())
                store.sweep()
            return decide(value)

        return await store.ledger.change(work, piece, decide_late)

    between.instead(Ledger.change, change)
    for number, counts in enumerate((ONE, TWO)):
        write_reports.record_run(between.store.ledger, APP, "run", counts)
        assert write_reports.report(store, APP, "run") == counts
        write_reports.record_batch(between.store.ledger, APP, "query", number, counts)
        total = counts if pause else WriteCounts(written=sum(range(number + 2)))
        assert write_reports.stream_report(store, APP, "query") == StreamCounts(number, counts, total)
        write_reports.record_batch(store.ledger, APP, "query", 0, WriteCounts(skipped=5))
        assert write_reports.stream_report(store, APP, "query") == StreamCounts(number, counts, total)
        RateLimit(between.store.ledger, "turns", 10, sleep=lambda _: None).reserve_time(1)
