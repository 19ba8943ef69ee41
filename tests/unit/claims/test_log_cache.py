"""The cache of logs is bounded by weight, and keeps those in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from queuey.service.claims.log_cache import Key, LogCache
from queuey.service.claims.partition_log import PartitionLog
from queuey.service.claims.requests import Request


class FakeLog:
    """A log with the weight that the test sets."""

    def __init__(self, key: Key, after: Callable[[Any], None]) -> None:
        self.key, self.after = key, after
        self.weight, self.idle, self.last_conflict = 0, True, -1.0
        self.requests: list[Request] = []

    def add(self, *requests: Request) -> None:
        self.requests += requests


class Shelf:
    """A cache of such logs."""

    def __init__(self, bound: int) -> None:
        self.made: list[FakeLog] = []
        self.cache = LogCache(cast("Callable[[Key, Callable[[PartitionLog], None]], PartitionLog]", self._make), bound)

    def _make(self, key: Key, after: Callable[[Any], None]) -> FakeLog:
        self.made.append(FakeLog(key, after))
        return self.made[-1]

    def use(self, number: int, weight: int) -> None:
        """Uses a log, which has this weight afterwards."""
        self.cache.add((number, 1))
        log = next(log for log in reversed(self.made) if log.key == (number, 1))
        log.weight = weight
        log.after(log)


def test_the_weight_is_bounded() -> None:
    """However many queues have claims, the weight of their logs stays below the bound."""
    shelf = Shelf(1000)
    for number in range(5000):
        shelf.use(number, 100)
        assert shelf.cache.weight <= 1000
    assert len(shelf.cache) == 10


def test_what_was_used_last_stays() -> None:
    """The log that was not used for the longest time is dropped first, and made again when it is used."""
    shelf = Shelf(300)
    for number in (1, 2, 3, 1, 4):
        shelf.use(number, 100)
    assert len(shelf.made) == 4
    shelf.use(1, 100)
    assert len(shelf.made) == 4
    shelf.use(2, 100)
    assert len(shelf.made) == 5


def test_logs_in_use_stay() -> None:
    """A log with waiting requests is not dropped, though it is heavier than the bound."""
    shelf = Shelf(300)
    shelf.use(1, 100)
    shelf.made[0].idle = False
    for number in (2, 3, 4, 5):
        shelf.use(number, 150)
    shelf.use(1, 900)
    assert len(shelf.cache) == 1
    assert len(shelf.made) == 5
