"""The Prometheus metrics of a worker.

The worker's loop updates plain numbers, which become metric families only when scraped. So metrics cost almost nothing
per message, and a worker without a registry does without prometheus-client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from qdo.partitions import Partition
from qdo.worker.executors.in_process import MAX_QUICK_SECONDS
from qdo.worker.failure import RunResult

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry

BUCKETS = (
    MAX_QUICK_SECONDS,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper bounds of the histogram's buckets, in seconds."""

MAX_TASK_LABELS = 200
OTHER_TASKS = "(others)"
"""Max task names in labels, and the label of all other tasks: a program may define tasks at run time."""
_LABELS = ("queue", "task")

_COUNTERS_BY_TASK = {
    "handled": "Messages handled.",
    "failed": "Attempts that failed.",
    "retried": "Failed attempts that are retried.",
    "dead": "Messages that became dead letters.",
    "skipped": "Messages that were skipped after their last attempt failed.",
    "overdue": "Messages whose claims expired before they were handled, so that other workers may handle them too.",
}
_COUNTERS = {
    "commits": "Commits of offsets.",
    "commit_failures": "Commits of offsets that failed and are retried.",
    "dead_letter_failures": "Failed attempts to store a dead letter, which are retried.",
    "rebalances": "Times that partitions were assigned, revoked or lost.",
    "hook_failures": "Calls of hooks that raised an error.",
}


class WorkerMetrics:
    """The metrics of one worker. Only the worker's loop updates them.

    Attributes:
        in_flight: Number of messages being handled, one per run.
        oldest: Age of the oldest message in flight at the last check, in seconds.
        lag: Uncommitted messages of each partition at the last measurement.
        owned: Number of owned partitions at the last check.
        refused: Seconds for which the service has refused the worker's credential, at the last check.
        unseen: Number of queues that none of their subscribers may see. 0 unless the worker leads its group.
    """

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _COUNTERS_BY_TASK}
        """Counts by queue and task, for each metric."""
        self._tasks: set[str] = set()
        self._plain: Counter[str] = Counter()
        self._rebalances: Counter[str] = Counter()
        self._cells: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (len(BUCKETS) + 2))
        self.in_flight = 0
        self.owned = self.unseen = 0
        self.oldest = self.refused = 0.0
        self.lag: Mapping[Partition, int] = {}
        self._registry = registry
        if registry is not None:
            registry.register(cast("Collector", self))

    def close(self) -> None:
        if self._registry is not None:
            self._registry.unregister(cast("Collector", self))

    def record_run(self, queue: str, ran: RunResult, tasks: Sequence[str] | None = None) -> None:
        """Counts the handled messages of a run. ``tasks`` are their task names, or None if messages call no tasks."""
        for task, task_result in [("", ran)] if tasks is None else ran.split_by_task(tasks).items():
            key = queue, self._find_task_label(task) if task else ""
            cells = self._cells[key]
            cells[0] += task_result.seconds + sum(task_result.slow)
            cells[1] += task_result.quick
            for seconds in task_result.slow:
                cells[bisect_left(BUCKETS, seconds) + 1] += 1
            self._counts["handled"][key] += task_result.handled

    def count(self, name: str, queue: str, task: str = "") -> None:
        self._counts[name][queue, self._find_task_label(task) if task else ""] += 1

    def _find_task_label(self, task: str) -> str:
        """Returns the task, or :data:`OTHER_TASKS` if there are :data:`MAX_TASK_LABELS` others already."""
        if task not in self._tasks and len(self._tasks) >= MAX_TASK_LABELS:
            return OTHER_TASKS
        self._tasks.add(task)
        return task

    def increment(self, name: str) -> None:
        self._plain[name] += 1

    def record_ownership_change(self, kind: str, partitions: int) -> None:
        self._rebalances[kind] += partitions
        self.increment("rebalances")

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an extra

        for name, text in _COUNTERS_BY_TASK.items():
            family = CounterMetricFamily(f"qdo_messages_{name}", text, labels=_LABELS)
            for key, count in sorted(self._counts[name].copy().items()):
                family.add_metric(_labels(key), count)
            yield family
        yield self._make_histogram()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"qdo_{name}", text, value=self._plain[name])
        moves = CounterMetricFamily("qdo_rebalanced_partitions", "Partitions that moved.", labels=("how",))
        for how in ("assigned", "revoked", "lost"):
            moves.add_metric((how,), self._rebalances[how])
        yield moves
        yield GaugeMetricFamily("qdo_messages_in_flight", "Messages being handled.", value=self.in_flight)
        text = "Age of the oldest message being handled."
        yield GaugeMetricFamily("qdo_message_in_flight_age_seconds", text, value=self.oldest)
        yield GaugeMetricFamily("qdo_partitions_owned", "Partitions owned.", value=self.owned)
        text = "Time for which the service has refused the worker's credential."
        yield GaugeMetricFamily("qdo_refused_seconds", text, value=self.refused)
        text = "Queues that none of their subscribers in the group may see, as known to its leader."
        yield GaugeMetricFamily("qdo_unseen_queues", text, value=self.unseen)
        lag = GaugeMetricFamily("qdo_lag_messages", "Messages not yet committed.", labels=("queue", "partition"))
        for partition, count in sorted(self.lag.items()):
            lag.add_metric((partition.queue.name, str(partition.number)), count)
        yield lag

    def _make_histogram(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 - an extra

        family = HistogramMetricFamily(
            "qdo_handler_seconds", "Time that handled messages spent in the handler.", labels=_LABELS
        )
        for key, cells in sorted(self._cells.copy().items()):
            cumulative, buckets = 0.0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), cells[1:], strict=True):
                cumulative += count
                buckets.append((bound, cumulative))
            family.add_metric(_labels(key), buckets, cells[0])
        return family


def _labels(key: tuple[str, str]) -> tuple[str, ...]:
    return key if key[1] else key[:1]
