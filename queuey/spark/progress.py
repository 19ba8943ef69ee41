"""Progress of streaming queries as Prometheus metrics.

A Python source cannot add to Spark's own metrics. So a listener reads the lag of a stream over queues from the progress
of its query, and the counts of a write to queues from the store.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from queuey.model.errors import QueueyError
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions, store_options
from queuey.spark.sink import write_reports
from queuey.spark.sink.exactly_once import WriteCounts

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

MAX_ENDED = 100
"""Max ended queries that keep their metrics: a short run ends before a scrape."""


class ProgressMetrics(StreamingQueryListener):
    """Exports rows read and written by the streaming queries of a session, and their lag.

    ::

        from prometheus_client import CollectorRegistry, generate_latest
        from queuey.spark.progress import ProgressMetrics

        registry = CollectorRegistry()
        spark.streams.addListener(ProgressMetrics(registry=registry))
        print(generate_latest(registry).decode())

    Every metric has the label ``query``: the query's name, else its id. The last hundred ended queries keep theirs.

    ===================================  ==========================================================================
    ``queuey_stream_read_rows_total``    rows of finished micro-batches
    ``queuey_stream_written_rows_total`` rows written to the sink, of any kind
    ``queuey_stream_moved_rows_total``   rows written to queues at later ids than the first reserved ones
    ``queuey_stream_lag_messages``       messages between the last micro-batch and the horizon, possibly estimated
    ``queuey_stream_lag_seconds``        age of the oldest of these messages
    ===================================  ==========================================================================

    Args:
        options: Options of the store to which the queries write. Without them, moved rows are not counted.
        registry: The registry for the metrics.

    Raises:
        OptionError: The options are not valid.
    """

    def __init__(self, options: Mapping[str, str] | None = None, *, registry: CollectorRegistry = REGISTRY) -> None:
        self._store: StoreOptions | None = None if options is None else store_options(options)
        self._moved_before: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._ended: deque[str] = deque()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"queuey_stream_{name}_rows", text, ["query"], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"queuey_stream_lag_{name}", text, ["query"], registry=registry)

        self._rows_read = counter("read", "Rows of finished micro-batches.")
        self._rows_written = counter("written", "Rows that the sink has taken.")
        self._rows_moved = counter("moved", "Rows written at later ids than those reserved first.")
        self._lag_messages = gauge("messages", "Messages between the last micro-batch and the horizon.")
        self._lag_seconds = gauge("seconds", "Age of the oldest message that is left.")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = str(progress.id)
        name = self._names[query] = progress.name or query
        self._rows_read.labels(name).inc(progress.numInputRows)
        # It is -1 for sinks that do not count.
        self._rows_written.labels(name).inc(max(progress.sink.numOutputRows, 0))
        lags = [lag for source in progress.sources if (lag := parse_reported_lag(source.latestOffset)) is not None]
        if lags:
            self._lag_messages.labels(name).set(sum(lag["messages"] for lag in lags))
            self._lag_seconds.labels(name).set(max(lag["seconds"] for lag in lags))
        if self._store is not None:
            moved = self._count_moved(self._store, query)
            self._rows_moved.labels(name).inc(max(0, moved - self._moved_before.get(query, 0)))
            self._moved_before[query] = moved

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keeps the metrics of the ended query; if there are too many, drops those of the one that ended first."""
        query = str(event.id)
        if query in self._ended:
            self._ended.remove(query)
        self._ended.append(query)
        if len(self._ended) > MAX_ENDED:
            self._drop_query(self._ended.popleft())

    def _drop_query(self, query: str) -> None:
        self._moved_before.pop(query, None)
        name = self._names.pop(query, None)
        if name is None or name in self._names.values():
            return
        for metric in (self._rows_read, self._rows_written, self._rows_moved, self._lag_messages, self._lag_seconds):
            metric.remove(name)

    def _count_moved(self, options: StoreOptions, query: str) -> int:
        try:
            store = open_stores.opened(options)
            report = write_reports.stream_report(store, open_stores.application(store, options), query)
        except QueueyError as error:
            log.warning("the counts of query %s could not be read: %s", query, error)
            return self._moved_before.get(query, 0)
        return (WriteCounts() if report is None else report.total).moved


def parse_reported_lag(latest: str | None) -> dict[str, Any] | None:
    try:
        offset = json.loads(latest or "")
    except ValueError:
        return None
    lag = offset.get("lag") if isinstance(offset, dict) else None
    return lag if isinstance(lag, dict) and {"messages", "seconds"} <= lag.keys() else None
