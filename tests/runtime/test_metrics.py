"""Counting requests in threads that start and end."""

from __future__ import annotations

import threading
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from queuey.runtime.metrics import LATENCY_BUCKETS, Metrics, Snapshot, make_exposition, make_snapshot


@given(times=st.lists(st.floats(0, 100), max_size=20))
def test_each_time_falls_into_one_bucket(times: list[float]) -> None:
    """A bucket holds the times up to and including its bound; longer times are in the last one."""
    metrics = Metrics()
    for seconds in times:
        metrics.count_request("r", 200, seconds)
    requests, _, _ = metrics.copy_totals()
    cells = requests.get(("r", 200), [0.0] * (len(LATENCY_BUCKETS) + 2))
    expected = [0.0] * (len(LATENCY_BUCKETS) + 1)
    for seconds in times:
        expected[bisect_left(LATENCY_BUCKETS, seconds)] += 1
    assert cells[1:] == expected
    assert cells[0] == pytest.approx(sum(times))


def test_threads_are_added_up_and_outlived() -> None:
    """The counts of all threads add up, also of those that have ended; no memory is kept per thread."""
    metrics = Metrics()

    def work() -> None:
        for _ in range(100):
            metrics.count_request("r", 200, 0.1)
            metrics.count_received(2)
            metrics.count_delivered(3)

    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(metrics._requests) == 1
    requests, received, delivered = metrics.copy_totals()
    assert (sum(requests["r", 200][1:]), received, delivered) == (2000, 4000, 6000)


def test_statistics_are_counters_or_gauges_by_their_names() -> None:
    """A store's number is a counter if its name ends in _total, else a gauge, under the service's prefix."""
    families = make_snapshot(Metrics(), {"store_commits_total": 3.0, "store_bytes": 7.0})
    text = make_exposition({"": families}).decode()
    assert "# TYPE queuey_store_commits_total counter\nqueuey_store_commits_total 3.0\n" in text
    assert "# TYPE queuey_store_bytes gauge\nqueuey_store_bytes 7.0\n" in text


def test_workers_side_by_side() -> None:
    """Each series of several workers names its own; a worker without an answer is reported as missing."""
    workers: dict[str, Snapshot | None] = {"1": None, "2": None, "3": None}
    for number, name in enumerate(("1", "3"), 1):
        metrics = Metrics()
        for _ in range(number):
            metrics.count_request("r", 200, 0.3)
        metrics.count_request("r", 503, 0.3)
        metrics.count_received(number)
        workers[name] = make_snapshot(metrics, {"store_bytes": 7.0} if number == 1 else {})
    families = list(text_string_to_metric_families(make_exposition(workers).decode()))
    assert len({family.name for family in families}) == len(families)
    values = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
    assert values["queuey_requests_total", "1", "200", "r"] == 1
    assert values["queuey_requests_total", "200", "3", "r"] == 2
    assert values["queuey_request_seconds_count", "3", "r"] == 3
    assert values["queuey_request_seconds_bucket", "0.25", "3", "r"] == 0
    assert values["queuey_request_seconds_bucket", "+Inf", "3", "r"] == 3
    assert values["queuey_messages_received_total", "3"] == 2
    assert values["queuey_store_bytes", "1"] == 7
    assert [values["queuey_worker_up", name] for name in workers] == [1, 0, 1]
