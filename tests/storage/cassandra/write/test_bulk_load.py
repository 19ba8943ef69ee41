"""Tests of the level at which messages are loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Message, Queue
from queuey.storage.arrow_format import columns_of
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.cluster import Done, Encoded
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.write import bulk_load
from queuey.storage.deadlines import Deadline

NOW = ids.EPOCH_TICKS + 1_700_000_000 * ids.TICKS_PER_SECOND


@pytest.mark.parametrize(
    ("count", "seconds", "size", "level"),
    [
        (0, 0, 0, bucketing.LOAD_WIDTH),
        (200, 0.001, 100, bucketing.LOAD_WIDTH),
        (10_000, 0.001, 100, bucketing.DENSE_LOAD_WIDTH),
        (10_000, 900, 100, bucketing.LOAD_WIDTH),
        (4, 0.001, 4_000_000, bucketing.DENSE_LOAD_WIDTH),
        (4, 900, 4_000_000, bucketing.LOAD_WIDTH),
        (4, 90, 4_000_000, bucketing.DENSE_LOAD_WIDTH),
    ],
)
def test_places_do_not_get_too_full(count: int, seconds: float, size: int, level: int) -> None:
    """Messages go to narrow buckets if wide ones would get too many rows or bytes at their density."""
    step = round(seconds * ids.TICKS_PER_SECOND / max(1, count - 1))
    messages = [Message(NOW + number * step, 0, 1, NOW, bytes(size)) for number in range(count)]
    assert bulk_load._choose_width_class(columns_of(messages)) == level


@pytest.mark.parametrize(("size", "most"), [(1_000, 8), (200_000, 8), (300_000, 4), (900_000, 1), (4_000_000, 1)])
def test_long_bodies_do_not_crowd_a_connection(size: int, most: int) -> None:
    """The usual number of small batches is in flight, fewer with long bodies, and at least one."""
    weights = {weight for _, _, weight in bulk_load._divide_rows(np.full(20, size))}
    assert all(0 < weight <= bulk_load.MAX_IN_FLIGHT for weight in weights)
    assert bulk_load.MAX_IN_FLIGHT // max(weights) == most


class Silent:
    """A driver that answers only the first requests."""

    def __init__(self, answered: int, deadline: Deadline) -> None:
        self.calls = SimpleNamespace(deadline=deadline)
        self._answered = answered
        self.sent = 0

    def send(self, _request: Encoded, done: Done) -> None:
        self.sent += 1
        if self.sent <= self._answered:
            done([], None)


@pytest.mark.parametrize("answered", [0, 3])
def test_a_request_without_an_answer_ends_with_the_call(answered: int) -> None:
    """A load ends at the deadline of its call, if it waits for room or for the last answers."""
    deadline = Deadline(0.5)
    driver: Any = Silent(answered, deadline)
    row = CachedQueue(
        queue=Queue(application="acme", name="q", uid=1, qid=2), home_class=0, longest_ttl=60, read_at=0.0
    )
    level: Any = SimpleNamespace(writes="QUORUM")
    unused: Any = None
    loader = bulk_load.Loader(driver, unused, row, level, unused, unused)
    for count in (500, 5_000):
        messages = columns_of([Message(NOW + number, 0, 1, NOW + 10**9, "x") for number in range(count)])
        placed = loader.place(messages, NOW)
        with deadline.running():
            deadline.mark_sent()
            with pytest.raises(StoreUnavailable, match="took longer than") as ended:
                loader.send(placed, NOW, lambda ticks: ticks)
        assert ended.value.outcome == "unknown"
        assert answered < driver.sent < 20
        driver.sent = 0
