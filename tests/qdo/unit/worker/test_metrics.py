"""The metrics of a worker."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from qdo.worker.failure import RunResult
from qdo.worker.metrics import MAX_TASK_LABELS, OTHER_TASKS, WorkerMetrics


def test_tasks_of_a_run_are_counted_apart() -> None:
    """Each task counts its messages and the times of its slow ones; quick ones share the rest of the time."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    ran = RunResult(2, None, 1, 0.0005, (0.02,), (1,)).combine(RunResult(2, None, 1, 0.0005, (0.3,), (1,)))
    metrics.record_run("q", ran, ["a", "a", "b", "b"])
    metrics.record_run("q", RunResult(1, None, 0, 0.0, (0.02,), (0,)), ["a"])
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'qdo_messages_handled_total{queue="q",task="a"} 3.0',
        'qdo_messages_handled_total{queue="q",task="b"} 2.0',
        'qdo_handler_seconds_sum{queue="q",task="a"} 0.0405',
        'qdo_handler_seconds_sum{queue="q",task="b"} 0.3005',
        'qdo_handler_seconds_bucket{le="+Inf",queue="q",task="b"} 2.0',
    ):
        assert line in lines


def test_names_of_tasks_are_bounded() -> None:
    """The number of task names in metrics is bounded, even if a program creates tasks while it runs."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    for number in range(2 * MAX_TASK_LABELS):
        metrics.count("failed", "q", f"task {number}")
    lines = [line for line in generate_latest(registry).decode().splitlines() if "failed_total{" in line]
    assert len(lines) == MAX_TASK_LABELS + 1
    assert f'qdo_messages_failed_total{{queue="q",task="{OTHER_TASKS}"}} {MAX_TASK_LABELS}.0' in lines
