"""Prometheus's data of a service of two processes on SQLite, of one on Cassandra, and of a Qdo worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from qdo.partitions import Partition
from qdo.worker.failure import RunResult
from qdo.worker.metrics import WorkerMetrics
from queuey.app.service import Service
from queuey.runtime.metrics import BACKLOG_STATES, Metrics, QueueBacklog, Snapshot, make_exposition, make_snapshot
from queuey.storage import Store, bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.sqlite import open_store

SCRAPES = 12
"""Number of scrapes, one every 15 s."""
BACKLOGS = [QueueBacklog("queuey", "jobs", dict.fromkeys(BACKLOG_STATES, 3), 60.0)]
UNREACHABLE_STORE = "cassandra://127.0.0.1:1/queuey"
"""A node that is down; the store has its metrics all the same."""
STATUSES = (200, 201, 409, 429, 500, 503)

Series = list[dict[str, str]]


def series(scrapes: Sequence[bytes], **labels: str) -> list[dict[str, str]]:
    """Returns the series of one instance, one value a scrape; ``_`` where a series was missing.

    Args:
        scrapes: Expositions, the oldest first.
        labels: Labels that Prometheus adds to each series, as ``job`` and ``instance``.
    """
    points: dict[str, list[str]] = {}
    for number, text in enumerate(scrapes):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                inside = ", ".join(f'{name}="{value}"' for name, value in sorted((labels | sample.labels).items()))
                values = points.setdefault(f"{sample.name}{{{inside}}}", [])
                values += ["_"] * (number - len(values)) + [repr(sample.value)]
    return [{"series": name, "values": " ".join(values)} for name, values in points.items()]


def _count_and_snapshot(metrics: Metrics, statistics: dict[str, float], number: int) -> Snapshot:
    """Counts more requests, and returns a snapshot of the process with counters that have grown."""
    for route in ("v1.queue", "v1.read", "ops.metrics"):
        for status in STATUSES:
            metrics.count_request(route, status, 0.003 * number)
    metrics.count_received(5)
    metrics.count_delivered(7)
    grown = {name: value + number * name.endswith("_total") for name, value in statistics.items()}
    return make_snapshot(metrics, grown)


def _service_scrapes(store: Store, workers: tuple[str, ...]) -> list[bytes]:
    statistics = bridge.run(Service(store).statistics())
    processes = {name: Metrics() for name in workers}
    return [
        make_exposition(
            {name: _count_and_snapshot(metrics, statistics, number) for name, metrics in processes.items()}, BACKLOGS
        )
        for number in range(SCRAPES)
    ]


def _worker_scrapes() -> list[bytes]:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    partitions = [
        Partition.parse(f"0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/{name}")
        for name in ("orders/1", "orders/2", "mail/1")
    ]
    metrics.lag = {partition: number for number, partition in enumerate(partitions)}
    scrapes = []
    for _ in range(SCRAPES):
        for queue in ("orders", "mail"):
            metrics.record_run(queue, RunResult(3, quick=1, seconds=0.0001, slow=(0.02, 0.4)))
            for name in ("failed", "retried", "dead", "skipped"):
                metrics.count(name, queue)
        for name in ("commits", "commit_failures", "dead_letter_failures", "hook_failures"):
            metrics.increment(name)
        metrics.record_ownership_change("assigned", 2)
        scrapes.append(generate_latest(registry))
    return scrapes


def record(directory: Path) -> Series:
    """Returns all series in promtool's format.

    Args:
        directory: Directory of the store on SQLite.
    """
    with closing(open_store(directory)) as sqlite:
        recorded = series(_service_scrapes(sqlite, ("1", "2")), job="queuey", instance="web-1:5000")
    options = CassandraOptions(reap_interval=None, heartbeat=60.0)
    with closing(CassandraStore(UNREACHABLE_STORE, options, SteadyClock())) as cassandra:
        recorded += series(_service_scrapes(cassandra, ("",)), job="queuey", instance="web-2:5000")
    recorded += series(_worker_scrapes(), job="qdo", instance="worker-1:9400")
    up = (("queuey", "web-1:5000"), ("queuey", "web-2:5000"), ("qdo", "worker-1:9400"))
    return recorded + [
        {"series": f'up{{instance="{instance}", job="{job}"}}', "values": f"1x{SCRAPES}"} for job, instance in up
    ]
