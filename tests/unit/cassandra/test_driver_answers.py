"""The driver package tells the end of a request once, whatever the driver below it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cassandra import OperationTimedOut

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import Driver


class Attempts:
    """A session and its future in one: it calls back for each attempt, as cassandra-driver does after a second one."""

    attempted_hosts = ("one", "two")
    _paging_state = None

    def __init__(self, ends: list[Any]) -> None:
        self._ends = ends

    def execute_async(self, _request: object, **_options: object) -> Attempts:
        """Makes the attempts."""
        return self

    def add_callbacks(self, good: Callable[[Any], None], bad: Callable[[BaseException], None]) -> None:
        """Tells how each of them ended."""
        for end in self._ends:
            if isinstance(end, BaseException):
                bad(end)
            else:
                good(end)


@pytest.mark.parametrize(
    ("ends", "rows", "outcome"),
    [
        ([["a"], ["b"]], ["a"], None),
        ([["a"], OperationTimedOut()], ["a"], None),
        ([OperationTimedOut(), ["a"]], None, "unknown"),
    ],
)
def test_the_first_end_counts(ends: list[Any], rows: list[str] | None, outcome: str | None) -> None:
    """Of two attempts that come to an end the first one is told, and the second is not."""
    told: list[tuple[Any, StoreUnavailable | None]] = []
    driver = object.__new__(Driver)
    driver._session, driver._usable = Attempts(ends), True
    driver._send(None, 1.0, lambda found, error: told.append((found, error)), reads=False)
    ((found, error),) = told
    assert found == rows
    assert (error and error.outcome) == outcome
