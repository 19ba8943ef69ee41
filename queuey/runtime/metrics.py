"""Counters of requests and messages, and their exposition in Prometheus' text format."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from queuey.model.messages import Queue

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
"""Upper bounds of the latency buckets in seconds."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATISTIC_HELP: Mapping[str, str] = {
    "claims_acknowledged_total": "Messages acknowledged.",
    "claims_appends_refused_total": "Claim log entries that lost against another process and were decided again.",
    "claims_appends_total": "Entries appended to claim logs.",
    "claims_covers": "Bodies and copies of dedup queues in this worker's memory.",
    "claims_delivered_total": "Messages delivered by claims.",
    "claims_forwarded_total": "Claims and receipts that this worker forwarded to another worker.",
    "claims_memory_bytes": "Estimated memory of this worker for claims.",
    "claims_operations_total": "Requests whose entries were appended to claim logs.",
    "claims_outstanding": "Messages claimed or waiting for redelivery, in the partitions in this worker's memory.",
    "claims_redelivered_total": "Messages delivered again because a claim had expired or was released.",
    "claims_superseded_total": "Receipts whose claim was lost.",
    "claims_waiting": "Claims that wait for messages.",
    "groups_members": "Members of the groups that send heartbeats to this worker.",
    "groups_moved_given_back_total": "Partitions handed over after their owner had given them back.",
    "groups_moved_lost_total": "Partitions handed over after their owner's session had ended.",
    "groups_moved_new_total": "Partitions handed over that had no owner before.",
    "groups_plans_total": "Plans made by this worker: partitions were divided anew.",
    "groups_served": "Groups that send heartbeats to this worker.",
    "groups_sessions_over_total": "Sessions of members that this worker found to be over.",
    "groups_unassigned": "Partitions that no member of the groups served may read, or beyond the maximum.",
    "loop_longest_turn_seconds": "Longest recent turn of the event loop, during which no other request was served.",
    "moves_messages_total": "Messages moved by this worker.",
    "moves_running": "Moves in progress in this worker.",
    "names_refused_total": "Changes of named messages refused because too many waited.",
    "names_waiting": "Callers that wait for others to change a named message.",
    "posts_repeated_total": "Posts that failed or came late, were undone and repeated.",
    "reads_waiting": "Reads that wait for messages, idle streams included.",
    "schedules_failed_total": "Ticks of schedules that failed.",
    "schedules_published_total": "Ticks of schedules that this worker published.",
    "schedules_skipped_total": "Ticks of schedules that this worker skipped.",
    "schedules_unknown_total": "Ticks of schedules whose result is unknown.",
    "store_batches_total": "Requests to Cassandra with new messages.",
    "store_clock_behind_seconds": "How far the highest message id is ahead of the clock.",
    "store_commits_total": "Commits of SQLite's database.",
    "store_late_writes_total": "Requests with messages that Cassandra answered after the write deadline.",
    "store_log_pages": "Pages of 4 KiB in the write-ahead log at the last checkpoint.",
    "store_longest_commit_seconds": "Longest commit since the start, with the wait for other processes.",
    "store_messages_appended_total": "New messages stored.",
    "store_messages_swept_total": "Expired messages removed.",
    "store_operations_total": "Writes stored by commits.",
    "store_pending_messages": "Messages that wait to be sent to Cassandra.",
    "store_queues_reaped_total": "Purged and deleted queues whose messages were removed.",
    "store_reachable": "1 while Cassandra answers and the schema is right.",
    "store_requests_total": "Requests sent to Cassandra.",
    "store_skew_error_seconds": "Error of the measured clock skew.",
    "store_skew_limit_seconds": "Max clock skew, error included.",
    "store_skew_refusing": "1 while the process refuses requests because of its clock.",
    "store_skew_seconds": "How far this process's clock is ahead of the median of the Cassandra nodes.",
    "store_transactions_doubted_total": "Lightweight transactions repeated because their answer was lost.",
    "store_undo_writes_abandoned_total": "Deletes of undone messages given up because too many were pending.",
    "store_undo_writes_pending": "Deletes of undone messages that are still retried.",
    "store_undo_writes_total": "Messages undone: Cassandra confirmed the delete.",
    "store_undo_writes_unknown_total": "Messages whose producer got the outcome unknown.",
    "streams_open": "Streams that this worker serves.",
}
"""Help text of each statistic of the use cases and of both stores."""

Request = tuple[str, int]
"""Route and status of a request."""


class Metrics:
    """Counters of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Request, list[float]] = {}
        """For each route and status: total seconds, the count of each bucket, and the count above all buckets."""
        self._received = self._delivered = 0
        self.listeners: tuple[Callable[[Queue, int, int], None], ...] = ()

    def add_listener(self, listener: Callable[[Queue, int, int], None]) -> None:
        self.listeners += (listener,)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            cells = self._requests.get((route, status))
            if cells is None:
                cells = self._requests[route, status] = [0.0] * (len(LATENCY_BUCKETS) + 2)
            cells[0] += seconds
            cells[bisect_left(LATENCY_BUCKETS, seconds) + 1] += 1

    def count_received(self, count: int, queue: Queue | None = None) -> None:
        with self._lock:
            self._received += count
        if queue is not None:
            for listener in self.listeners:
                listener(queue, count, 0)

    def count_delivered(self, count: int, queue: Queue | None = None) -> None:
        with self._lock:
            self._delivered += count
        if count and queue is not None:
            for listener in self.listeners:
                listener(queue, 0, count)

    def copy_totals(self) -> tuple[dict[Request, list[float]], int, int]:
        with self._lock:
            requests = {request: cells.copy() for request, cells in self._requests.items()}
            return requests, self._received, self._delivered


class Snapshot(msgspec.Struct):
    """Counters of one process and statistics of its store.

    Attributes:
        requests: Route, status and cells (see :class:`Metrics`).
        received: Number of messages stored for producers.
        delivered: Number of messages returned to readers.
        statistics: Statistics of the store, claims and reads. Names that end in ``_total`` are counters, others gauges.
    """

    requests: list[tuple[str, int, list[float]]]
    received: int
    delivered: int
    statistics: dict[str, float]


def make_snapshot(metrics: Metrics, statistics: dict[str, float]) -> Snapshot:
    requests, received, delivered = metrics.copy_totals()
    rows = [(route, status, cells) for (route, status), cells in sorted(requests.items())]
    return Snapshot(rows, received, delivered, statistics)


BACKLOG_STATES = ("waiting", "delayed", "claimed", "retrying", "failed", "dead")


class QueueBacklog(NamedTuple):
    """The backlog of a queue.

    Attributes:
        counts: Number of messages by state.
        age: Seconds since the oldest of these messages was stored; 0 without messages.
    """

    application: str
    queue: str
    counts: Mapping[str, int]
    age: float


class GroupLag(NamedTuple):
    """The messages of a queue that a consumer group has not committed.

    Attributes:
        messages: Number of messages after the offsets.
        age: Seconds since the oldest of them was stored; 0 without messages.
        owned: Number of partitions that have an owner, or None if the group's members do not meet at the service.
    """

    application: str
    queue: str
    group: str
    messages: int
    age: float
    owned: int | None = None


WorkerSnapshots = Mapping[str, Snapshot | None]
"""Snapshots by name of the worker; None for a worker that did not answer. The name is blank if there is one worker."""


class _Scrape(Collector):
    """Converts snapshots to metric families. With several workers each series has the label ``worker``.

    The counters are not summed: a sum would drop when a worker is replaced, and Prometheus would take the drop for a
    reset and count the remaining value again.
    """

    def __init__(self, workers: WorkerSnapshots, backlogs: Iterable[QueueBacklog], lags: Iterable[GroupLag]) -> None:
        self._workers = workers
        self._backlogs = backlogs
        self._lags = lags
        self._answered = [(((name,) if name else ()), counts) for name, counts in workers.items() if counts is not None]
        self._labels = () if "" in workers else ("worker",)

    def collect(self) -> Iterator[Metric]:
        yield from self._make_request_metrics()
        abouts = {"received": "Messages stored for producers.", "delivered": "Messages given to readers."}
        for name, about in abouts.items():
            counter = CounterMetricFamily(f"queuey_messages_{name}", about, labels=self._labels)
            for worker, counts in self._answered:
                counter.add_metric(worker, getattr(counts, name))
            yield counter
        yield from self._make_store_metrics()
        yield from self._make_backlog_metrics()
        yield from self._make_lag_metrics()
        if self._labels:
            up = GaugeMetricFamily("queuey_worker_up", "Whether the worker is in this scrape.", labels=self._labels)
            for name, answer in self._workers.items():
                up.add_metric((name,), float(answer is not None))
            yield up

    def _make_request_metrics(self) -> Iterator[Metric]:
        named = ("route", "status", *self._labels)
        counter = CounterMetricFamily("queuey_requests", "Requests answered.", labels=named)
        latency = HistogramMetricFamily("queuey_request_seconds", "Time to answer.", labels=("route", *self._labels))
        for worker, counts in self._answered:
            routes: dict[str, list[float]] = {}
            for route, status, cells in counts.requests:
                counter.add_metric((route, str(status), *worker), sum(cells[1:]))
                before = routes.get(route)
                routes[route] = [a + b for a, b in zip(before, cells, strict=True)] if before else cells
            for route, cells in routes.items():
                cumulative = itertools.accumulate(cells[1:])
                buckets = list(zip((*map(str, LATENCY_BUCKETS), "+Inf"), cumulative, strict=True))
                latency.add_metric((route, *worker), buckets, cells[0])
        yield counter
        yield latency

    def _make_store_metrics(self) -> Iterator[Metric]:
        for name in sorted({name for _, counts in self._answered for name in counts.statistics}):
            is_counter = name.endswith("_total")
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            # Another worker may be of a later version.
            family = kind(f"queuey_{name.removesuffix('_total')}", STATISTIC_HELP.get(name, ""), labels=self._labels)
            for worker, counts in self._answered:
                if name in counts.statistics:
                    family.add_metric(worker, counts.statistics[name])
            yield family

    def _make_backlog_metrics(self) -> Iterator[Metric]:
        names = ("application", "queue")
        about = "Messages of queues that are shown. The failed ones are included in the waiting ones."
        count = GaugeMetricFamily("queuey_backlog_messages", about, labels=(*names, "state"))
        about = "Time since the oldest message that is not done was stored."
        age = GaugeMetricFamily("queuey_backlog_oldest_seconds", about, labels=names)
        for backlog in self._backlogs:
            for state, number in backlog.counts.items():
                count.add_metric((backlog.application, backlog.queue, state), number)
            age.add_metric((backlog.application, backlog.queue), backlog.age)
        yield count
        yield age

    def _make_lag_metrics(self) -> Iterator[Metric]:
        names = ("application", "queue", "group")
        about = "Messages after the offsets of a consumer group."
        count = GaugeMetricFamily("queuey_group_lag_messages", about, labels=names)
        about = "Time since the oldest of these messages was stored; 0 without messages."
        age = GaugeMetricFamily("queuey_group_lag_seconds", about, labels=names)
        about = "Partitions that a member owns; only of groups whose members meet at the service."
        owned = GaugeMetricFamily("queuey_group_owned_partitions", about, labels=names)
        for lag in self._lags:
            count.add_metric(lag[:3], lag.messages)
            age.add_metric(lag[:3], lag.age)
            if lag.owned is not None:
                owned.add_metric(lag[:3], lag.owned)
        yield count
        yield age
        yield owned


def make_exposition(
    workers: WorkerSnapshots, backlogs: Iterable[QueueBacklog] = (), lags: Iterable[GroupLag] = ()
) -> bytes:
    return generate_latest(_Scrape(workers, backlogs, lags))
