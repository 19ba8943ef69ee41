"""The metrics of a running worker."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from qdo.settings import Retry
from queuey.client import Message
from tests.qdo.worker.conftest import Workers, quick, until


async def test_the_metrics_tell_what_was_done(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """Counts, seconds and lag add up; partitions that are revoked together are one line of log."""
    queue = await workers.system.queue(partitions=2)
    for number in (1, 2):
        await workers.system.send(queue, 3, number)
    registry = CollectorRegistry()
    failing = {"1:1": 1, "2:2": 9}

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        if failing.get(message.body, 0):
            failing[message.body] -= 1
            raise ValueError

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"queue": queue.name, **labels})

    caplog.set_level(logging.INFO)
    settings = quick(retry=Retry(attempts=2, base=0, cap=0), lag_seconds=0.1)
    worker = await workers.make(handle, queue, settings=settings, registry=registry)
    async with workers.serving(worker):
        await until(lambda: value("qdo_messages_handled_total") == 5)
        await until(lambda: value("qdo_lag_messages", partition="1") == 0)
        await until(lambda: value("qdo_lag_messages", partition="2") == 0)
        assert value("qdo_messages_failed_total") == 3
        assert value("qdo_messages_retried_total") == 2
        assert value("qdo_messages_dead_total") == 1
        assert value("qdo_handler_seconds_count") == 5
        assert registry.get_sample_value("qdo_messages_in_flight") == 0
        assert registry.get_sample_value("qdo_partitions_owned") == 2
        assert (registry.get_sample_value("qdo_commits_total") or 0) >= 2
        assert registry.get_sample_value("qdo_rebalanced_partitions_total", {"how": "assigned"}) == 2
        worker.consumer.rejoin()
        await until(lambda: f"2 partitions revoked: {queue.name}/1, {queue.name}/2" in caplog.messages)
    assert registry.get_sample_value("qdo_commits_total") is None
