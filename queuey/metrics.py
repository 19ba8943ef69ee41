"""Counters of requests and messages, cheap enough for every request, in Prometheus' text form.

Each thread counts into cells of its own, without locks; a scrape adds them up. When a thread ends, its counts are
folded into those of the past, so that servers which start and stop threads neither lose counts nor leak cells.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
"""Upper bounds in seconds; the last reaches past the longest long poll."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Request = tuple[str, int]
"""Route and status."""


class _Counts:
    """Counts of one thread, or of all ended ones. Only its own thread writes to it."""

    __slots__ = ("delivered", "received", "requests")

    def __init__(self) -> None:
        self.requests: dict[Request, list[float]] = {}
        """Per request the seconds spent, then how many fell into each bucket, then how many into none."""
        self.received = 0
        self.delivered = 0

    def add(self, other: _Counts) -> None:
        """Adds another's counts to these."""
        self.received += other.received
        self.delivered += other.delivered
        for request, cells in other.requests.copy().items():
            mine = self.requests.get(request)
            self.requests[request] = [a + b for a, b in zip(mine, cells, strict=True)] if mine else list(cells)


class _Life:
    """Dies with the thread whose local storage holds it."""

    __slots__ = ("__weakref__",)


class Metrics:
    """What this process has served."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._past = _Counts()
        self._present: list[tuple[weakref.ref[_Life], _Counts]] = []

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        try:
            requests = self._local.counts.requests
        except AttributeError:
            requests = self._join().requests
        cells = requests.get((route, status))
        if cells is None:
            cells = requests[route, status] = [0.0] * (len(BUCKETS) + 2)
        cells[0] += seconds
        cells[bisect_left(BUCKETS, seconds) + 1] += 1

    def received(self, count: int) -> None:
        """Counts messages taken in."""
        try:
            self._local.counts.received += count
        except AttributeError:
            self._join().received += count

    def delivered(self, count: int) -> None:
        """Counts messages given out."""
        try:
            self._local.counts.delivered += count
        except AttributeError:
            self._join().delivered += count

    def total(self) -> tuple[dict[Request, list[float]], int, int]:
        """Returns the cells per request, and the messages received and delivered, over all threads."""
        with self._lock:
            self._fold()
            total = _Counts()
            total.add(self._past)
            for _, counts in self._present:
                total.add(counts)
        return total.requests, total.received, total.delivered

    def _join(self) -> _Counts:
        life, counts = _Life(), _Counts()
        with self._lock:
            self._fold()
            self._present.append((weakref.ref(life), counts))
        self._local.life, self._local.counts = life, counts
        return counts

    def _fold(self) -> None:
        ended = [counts for life, counts in self._present if life() is None]
        if ended:
            self._present = [(life, counts) for life, counts in self._present if life() is not None]
            for counts in ended:
                self._past.add(counts)


def _requests(requests: dict[Request, list[float]]) -> Iterator[Metric]:
    counter = CounterMetricFamily("queuey_requests", "Requests answered.", labels=("route", "status"))
    routes: dict[str, list[float]] = {}
    for (route, status), cells in sorted(requests.items()):
        counter.add_metric((route, str(status)), sum(cells[1:]))
        mine = routes.get(route)
        routes[route] = [a + b for a, b in zip(mine, cells, strict=True)] if mine else list(cells)
    yield counter
    latency = HistogramMetricFamily("queuey_request_seconds", "Time to answer.", labels=("route",))
    for route, cells in routes.items():
        so_far, buckets = 0.0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), cells[1:], strict=True):
            so_far += count
            buckets.append((bound, so_far))
        latency.add_metric((route,), buckets, cells[0])
    yield latency


def _statistics(numbers: dict[str, float]) -> Iterator[Metric]:
    for name, value in sorted(numbers.items()):
        if name.endswith("_total"):
            yield CounterMetricFamily(f"queuey_{name.removesuffix('_total')}", "Of the store.", value=value)
        else:
            yield GaugeMetricFamily(f"queuey_{name}", "Of the store.", value=value)


class _Scrape(Collector):
    """Turns the counts into Prometheus' families when asked."""

    def __init__(self, metrics: Metrics, statistics: Callable[[], dict[str, float]]) -> None:
        self._metrics = metrics
        self._statistics = statistics

    def describe(self) -> Iterable[Metric]:
        """Says nothing beforehand: the families depend on what was served."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yields every family."""
        requests, received, delivered = self._metrics.total()
        yield from _requests(requests)
        yield CounterMetricFamily("queuey_messages_received", "Messages stored for producers.", value=received)
        yield CounterMetricFamily("queuey_messages_delivered", "Messages given to readers.", value=delivered)
        yield from _statistics(self._statistics())


def exposition(metrics: Metrics, statistics: Callable[[], dict[str, float]]) -> Callable[[], bytes]:
    """Returns a function that writes everything in Prometheus' text form.

    Args:
        metrics: This process's counts.
        statistics: Gives the store's numbers; names that end in ``_total`` are counters, others gauges.
    """
    registry = CollectorRegistry()
    registry.register(_Scrape(metrics, statistics))
    return lambda: generate_latest(registry)
