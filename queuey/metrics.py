"""Counters of requests and messages, cheap enough for every request, in Prometheus' text form."""

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

from queuey.messages import Queue

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
"""Upper bounds in seconds; the last is above the longest long poll."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Request = tuple[str, int]
"""Route and status."""


class Metrics:
    """Counters of this process. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Request, list[float]] = {}
        """For each kind of request: the seconds spent, the count of each bucket, and the count above all buckets."""
        self._received = self._delivered = 0
        self.heard: Callable[[Queue, int, int], None] | None = None
        """Called with a queue and the number of messages that it took in and gave out."""

    def observe(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            cells = self._requests.get((route, status))
            if cells is None:
                cells = self._requests[route, status] = [0.0] * (len(BUCKETS) + 2)
            cells[0] += seconds
            cells[bisect_left(BUCKETS, seconds) + 1] += 1

    def received(self, count: int, queue: Queue | None = None) -> None:
        with self._lock:
            self._received += count
        if self.heard is not None and queue is not None:
            self.heard(queue, count, 0)

    def delivered(self, count: int, queue: Queue | None = None) -> None:
        with self._lock:
            self._delivered += count
        if count and self.heard is not None and queue is not None:
            self.heard(queue, 0, count)

    def total(self) -> tuple[dict[Request, list[float]], int, int]:
        """Returns the cells of each kind of request, and the messages received and delivered."""
        with self._lock:
            requests = {request: cells.copy() for request, cells in self._requests.items()}
            return requests, self._received, self._delivered


class Snapshot(msgspec.Struct):
    """Counters of one process and figures of its store.

    Attributes:
        requests: Route, status and cells (see :class:`Metrics`) of each kind of request.
        received: Messages taken in.
        delivered: Messages given out.
        statistics: Of the store, claims and reads; names that end in ``_total`` are counters, others gauges.
    """

    requests: list[tuple[str, int, list[float]]]
    received: int
    delivered: int
    statistics: dict[str, float]


def snapshot(metrics: Metrics, statistics: dict[str, float]) -> Snapshot:
    requests, received, delivered = metrics.total()
    rows = [(route, status, cells) for (route, status), cells in sorted(requests.items())]
    return Snapshot(rows, received, delivered, statistics)


BACKLOG_STATES = ("waiting", "delayed", "claimed", "retrying", "failed", "dead")


class QueueBacklog(NamedTuple):
    """Work left in a queue.

    Attributes:
        counts: Messages, by state.
        age: Seconds since the oldest of them was stored; 0: there is none.
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


Workers = Mapping[str, Snapshot | None]
"""Snapshots by name of the worker, None for one that gave no answer. A single one has no name."""


class _Scrape(Collector):
    """Turns snapshots into Prometheus' families. Where there are several, each series names its worker.

    A sum would fall when a worker is replaced, by all that the old one had counted, and Prometheus would count the rest
    again as new.
    """

    def __init__(self, workers: Workers, backlogs: Iterable[QueueBacklog], lags: Iterable[GroupLag]) -> None:
        self._workers = workers
        self._backlogs = backlogs
        self._lags = lags
        self._found = [(((name,) if name else ()), found) for name, found in workers.items() if found is not None]
        self._labels = () if "" in workers else ("worker",)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        abouts = {"received": "Messages stored for producers.", "delivered": "Messages given to readers."}
        for name, about in abouts.items():
            counter = CounterMetricFamily(f"queuey_messages_{name}", about, labels=self._labels)
            for worker, found in self._found:
                counter.add_metric(worker, getattr(found, name))
            yield counter
        yield from self._statistics()
        yield from self._of_queues()
        yield from self._of_groups()
        if self._labels:
            up = GaugeMetricFamily("queuey_worker_up", "Whether the worker is in this scrape.", labels=self._labels)
            for name, one in self._workers.items():
                up.add_metric((name,), float(one is not None))
            yield up

    def _requests(self) -> Iterator[Metric]:
        named = ("route", "status", *self._labels)
        counter = CounterMetricFamily("queuey_requests", "Requests answered.", labels=named)
        latency = HistogramMetricFamily("queuey_request_seconds", "Time to answer.", labels=("route", *self._labels))
        for worker, found in self._found:
            routes: dict[str, list[float]] = {}
            for route, status, cells in found.requests:
                counter.add_metric((route, str(status), *worker), sum(cells[1:]))
                mine = routes.get(route)
                routes[route] = [a + b for a, b in zip(mine, cells, strict=True)] if mine else cells
            for route, cells in routes.items():
                so_far = itertools.accumulate(cells[1:])
                buckets = list(zip((*map(str, BUCKETS), "+Inf"), so_far, strict=True))
                latency.add_metric((route, *worker), buckets, cells[0])
        yield counter
        yield latency

    def _statistics(self) -> Iterator[Metric]:
        for name in sorted({name for _, found in self._found for name in found.statistics}):
            counts = name.endswith("_total")
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            about = f"Of {'the store' if name.startswith('store_') else name.partition('_')[0]}."
            family = kind(f"queuey_{name.removesuffix('_total')}", about, labels=self._labels)
            for worker, found in self._found:
                if name in found.statistics:
                    family.add_metric(worker, found.statistics[name])
            yield family

    def _of_queues(self) -> Iterator[Metric]:
        """Yields the backlogs, which are the same for every worker."""
        names = ("application", "queue")
        about = "Messages of queues that are shown. Failed ones are a part of those that wait."
        count = GaugeMetricFamily("queuey_backlog_messages", about, labels=(*names, "state"))
        about = "Time since the oldest message that is not done was stored."
        age = GaugeMetricFamily("queuey_backlog_oldest_seconds", about, labels=names)
        for one in self._backlogs:
            for state, number in one.counts.items():
                count.add_metric((one.application, one.queue, state), number)
            age.add_metric((one.application, one.queue), one.age)
        yield count
        yield age

    def _of_groups(self) -> Iterator[Metric]:
        """Yields the lags, which are the same for every worker."""
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


def exposition(workers: Workers, backlogs: Iterable[QueueBacklog] = (), lags: Iterable[GroupLag] = ()) -> bytes:
    return generate_latest(_Scrape(workers, backlogs, lags))
