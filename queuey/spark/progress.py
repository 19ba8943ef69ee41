"""Progress of streaming queries as metrics for Prometheus.

A source in Python can add nothing to the metrics of Spark, so a listener takes what a stream over queues reports of
itself from the progress of its query, and what a write to queues notes from the store.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from queuey.errors import QueueyError
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
    """Counts what the streaming queries of a session read and write, and says how far behind they are.

    ::

        from prometheus_client import CollectorRegistry, generate_latest
        from queuey.spark.progress import ProgressMetrics

        registry = CollectorRegistry()
        spark.streams.addListener(ProgressMetrics(registry=registry))
        print(generate_latest(registry).decode())

    Every metric has the label ``query``: the query's name, else its id. Of ended queries the last hundred stay.

    ===================================  ==========================================================================
    ``queuey_stream_read_rows_total``    rows of finished micro-batches
    ``queuey_stream_written_rows_total`` rows that the sink has taken, whatever sink it is
    ``queuey_stream_moved_rows_total``   rows written to queues at later ids than those reserved first
    ``queuey_stream_lag_messages``       messages between the last micro-batch and the horizon, perhaps estimated
    ``queuey_stream_lag_seconds``        age of the oldest of them
    ===================================  ==========================================================================

    Args:
        options: Which store the queries write to, as for a write; without ``moved`` rows are not counted.
        registry: Where the metrics are.

    Raises:
        OptionError: The options cannot be used.
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

        self._read = counter("read", "Rows of finished micro-batches.")
        self._written = counter("written", "Rows that the sink has taken.")
        self._moved = counter("moved", "Rows written at later ids than those reserved first.")
        self._messages = gauge("messages", "Messages between the last micro-batch and the horizon.")
        self._seconds = gauge("seconds", "Age of the oldest message that is left.")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = str(progress.id)
        name = self._names[query] = progress.name or query
        self._read.labels(name).inc(progress.numInputRows)
        # Spark says -1 of sinks that do not count.
        self._written.labels(name).inc(max(progress.sink.numOutputRows, 0))
        lags = [lag for source in progress.sources if (lag := reported_lag(source.latestOffset)) is not None]
        if lags:
            self._messages.labels(name).set(sum(lag["messages"] for lag in lags))
            self._seconds.labels(name).set(max(lag["seconds"] for lag in lags))
        if self._store is not None:
            moved = self._moved_rows(self._store, query)
            self._moved.labels(name).inc(max(0, moved - self._moved_before.get(query, 0)))
            self._moved_before[query] = moved

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Drops the figures of the query that ended longest ago."""
        query = str(event.id)
        if query in self._ended:
            self._ended.remove(query)
        self._ended.append(query)
        if len(self._ended) > MAX_ENDED:
            self._forget(self._ended.popleft())

    def _forget(self, query: str) -> None:
        self._moved_before.pop(query, None)
        name = self._names.pop(query, None)
        if name is None or name in self._names.values():
            return
        for metric in (self._read, self._written, self._moved, self._messages, self._seconds):
            metric.remove(name)

    def _moved_rows(self, options: StoreOptions, query: str) -> int:
        try:
            store = open_stores.opened(options)
            found = write_reports.stream_report(store, open_stores.application(store, options), query)
        except QueueyError as error:
            log.warning("what query %s has written could not be read: %s", query, error)
            return self._moved_before.get(query, 0)
        return (WriteCounts() if found is None else found.total).moved


def reported_lag(latest: str | None) -> dict[str, Any] | None:
    """Returns what a source says of its lag in its latest offset; None: it is no stream over queues."""
    try:
        found = json.loads(latest or "")
    except ValueError:
        return None
    lag = found.get("lag") if isinstance(found, dict) else None
    return lag if isinstance(lag, dict) and {"messages", "seconds"} <= lag.keys() else None
