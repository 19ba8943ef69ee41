"""What a worker's metrics show."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from qdo.worker.failure import RunResult
from qdo.worker.metrics import WorkerMetrics
from tests.qdo.unit.worker.dead_letter_samples import FIRST


def test_counts_and_seconds_are_shown_by_queue() -> None:
    """A run's messages, its quick ones as one sum and its slow ones one by one, are all in the histogram."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics.ran("orders", RunResult(12, None, 10, 0.001, (0.02, 0.3)))
    metrics.count("failed", "orders")
    metrics.note("commits")
    metrics.moved("assigned", 3)
    metrics.lag = {FIRST: 7}
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'qdo_messages_handled_total{queue="orders"} 12.0',
        'qdo_messages_failed_total{queue="orders"} 1.0',
        'qdo_handler_seconds_bucket{le="0.0005",queue="orders"} 10.0',
        'qdo_handler_seconds_bucket{le="0.025",queue="orders"} 11.0',
        'qdo_handler_seconds_bucket{le="+Inf",queue="orders"} 12.0',
        'qdo_handler_seconds_sum{queue="orders"} 0.321',
        "qdo_commits_total 1.0",
        "qdo_rebalances_total 1.0",
        'qdo_rebalanced_partitions_total{how="assigned"} 3.0',
        'qdo_lag_messages{partition="1",queue="orders"} 7.0',
    ):
        assert line in lines
