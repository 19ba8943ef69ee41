"""The Prometheus metrics of a worker.

Counts are kept as plain numbers of the worker's loop and turned into families when they are scraped: handling a message
costs nothing for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from qdo.partitions import Partition
from qdo.worker.executors.in_process import QUICK
from qdo.worker.failure import RunResult

BUCKETS = (QUICK, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds."""

MAX_TASKS = 200
OTHER_TASKS = "(others)"
"""Max names of tasks in labels, and what stands for all others: a program may make tasks while it runs."""
_LABELS = ("queue", "task")

_BY_TASK = {
    "handled": "Messages handled.",
    "failed": "Attempts that failed.",
    "retried": "Failed attempts that another one follows.",
    "dead": "Messages that became dead letters.",
    "skipped": "Messages that failed at last and were passed over.",
    "overdue": "Messages whose claim was over before they were handled, so that others may handle them too.",
}
_PLAIN = {
    "commits": "Records of progress.",
    "commit_failures": "Records of progress that failed, and were or will be tried again.",
    "dead_letter_failures": "Dead letters that could not be stored, and were or will be tried again.",
    "rebalances": "Times that partitions came or went.",
    "hook_failures": "Hooks that raised.",
}


class WorkerMetrics(Collector):
    """Counts of one worker; only its loop writes them.

    Attributes:
        in_flight: Messages that are being handled.
        oldest: Age of the oldest message in flight in seconds, at the last check.
        lag: Messages that are not committed, by partition, at the last measurement.
        owned: Partitions owned at the last check.
        refused: Seconds for which the service has refused the worker's credential, at the last check.
        unseen: If the worker leads its group: queues that no member which wants them may see.
    """

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _BY_TASK}
        """By queue and task."""
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
            registry.register(self)

    def close(self) -> None:
        if self._registry is not None:
            self._registry.unregister(self)

    def ran(self, queue: str, ran: RunResult, task: str = "") -> None:
        key = queue, self._shown(task) if task else ""
        cells = self._cells[key]
        cells[0] += ran.seconds + sum(ran.slow)
        cells[1] += ran.quick
        for seconds in ran.slow:
            cells[bisect_left(BUCKETS, seconds) + 1] += 1
        self._counts["handled"][key] += ran.handled

    def count(self, name: str, queue: str, task: str = "") -> None:
        self._counts[name][queue, self._shown(task) if task else ""] += 1

    def _shown(self, task: str) -> str:
        if task not in self._tasks and len(self._tasks) >= MAX_TASKS:
            return OTHER_TASKS
        self._tasks.add(task)
        return task

    def note(self, name: str) -> None:
        self._plain[name] += 1

    def moved(self, kind: str, partitions: int) -> None:
        self._rebalances[kind] += partitions
        self.note("rebalances")

    def describe(self) -> Iterable[Metric]:
        """No families beforehand: they depend on what was done."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, text in _BY_TASK.items():
            family = CounterMetricFamily(f"qdo_messages_{name}", text, labels=_LABELS)
            for key, number in sorted(self._counts[name].copy().items()):
                family.add_metric(_labels(key), number)
            yield family
        yield self._seconds()
        for name, text in _PLAIN.items():
            yield CounterMetricFamily(f"qdo_{name}", text, value=self._plain[name])
        moves = CounterMetricFamily("qdo_rebalanced_partitions", "Partitions that came or went.", labels=("how",))
        for how in ("assigned", "revoked", "lost"):
            moves.add_metric((how,), self._rebalances[how])
        yield moves
        yield GaugeMetricFamily("qdo_messages_in_flight", "Messages in hand.", value=self.in_flight)
        text = "Age of the message in hand that was begun first."
        yield GaugeMetricFamily("qdo_message_in_flight_age_seconds", text, value=self.oldest)
        yield GaugeMetricFamily("qdo_partitions_owned", "Partitions owned.", value=self.owned)
        text = "Time for which the service has refused the worker's credential."
        yield GaugeMetricFamily("qdo_refused_seconds", text, value=self.refused)
        text = "Queues that no member of the group which wants them may see, known to its leader."
        yield GaugeMetricFamily("qdo_unseen_queues", text, value=self.unseen)
        lag = GaugeMetricFamily("qdo_lag_messages", "Messages not yet committed.", labels=("queue", "partition"))
        for partition, number in sorted(self.lag.items()):
            lag.add_metric((partition.queue.name, str(partition.number)), number)
        yield lag

    def _seconds(self) -> Metric:
        family = HistogramMetricFamily(
            "qdo_handler_seconds", "Time in the handler of messages that were handled.", labels=_LABELS
        )
        for key, cells in sorted(self._cells.copy().items()):
            so_far, buckets = 0.0, []
            for bound, number in zip((*map(str, BUCKETS), "+Inf"), cells[1:], strict=True):
                so_far += number
                buckets.append((bound, so_far))
            family.add_metric(_labels(key), buckets, cells[0])
        return family


def _labels(key: tuple[str, str]) -> tuple[str, ...]:
    """Returns the values of labels; messages that call none of the worker's tasks have no label for it."""
    return key if key[1] else key[:1]
