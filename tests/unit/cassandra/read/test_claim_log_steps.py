"""The steps in which a claim log is read from Cassandra, without a server."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator
from types import coroutine
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import LogEntry, LogPage
from queuey.storage.cassandra.driver import Request, Rows
from queuey.storage.cassandra.store.claim_logs import _ENTRIES, _HEAD, _SNAPSHOT, AppendsInFlight, _read

KEY = (7, 1)


class Asking:
    """Stands for the driver: what is asked is answered from outside."""

    @coroutine
    def ask_all(self, some: list[Request]) -> Generator[Any, Any, list[Rows]]:
        """Asks."""
        answers: list[Rows] = yield some
        return answers


def play(first: int, *answers: list[Rows]) -> tuple[LogPage | None, list[list[str]]]:
    """Reads with these answers; returns the page, None if more is asked for, and which statements each step had."""
    names = {_ENTRIES: "entries", _HEAD: "head", _SNAPSHOT: "snapshot"}
    driver: Any = Asking()
    steps, asked = _read(driver, KEY, first, "ONE"), []
    calls = steps.send(None)
    for answer in answers:
        asked.append([f"{names[call.statement]} {call.values[2:]}" for call in calls])
        try:
            calls = steps.send(answer)
        except StopIteration as ended:
            return ended.value, asked
    return None, asked


def entry(number: int, last: int = 9) -> tuple[int, int, bytes]:
    """A row of an entry."""
    return last, number, b"%d" % number


def test_what_is_there_takes_one_step() -> None:
    """Whoever follows a log asks for its entries and nothing else."""
    page, asked = play(8, [[entry(8), entry(9)]])
    assert page == LogPage(9, [LogEntry(8, b"8"), LogEntry(9, b"9")])
    assert asked == [["entries (8,)"]]


def test_an_entry_that_came_between_two_steps() -> None:
    """A reader that has come further than the snapshot does not need it for an entry that was only just appended."""
    page, asked = play(10, [[]], [[(10, 5, -1)]], [[entry(10, 10)]])
    assert page == LogPage(10, [LogEntry(10, b"10")])
    assert asked == [["entries (10,)"], ["head ()"], ["entries (10,)"]]


@pytest.mark.parametrize("back", [[4], [2, 4], [2, 4, 5]])
def test_entries_that_came_back(back: list[int]) -> None:
    """Truncated entries that a repair brings back, with gaps between, are not taken for the log."""
    rows = [entry(number) for number in (*back, 7, 8, 9)]
    page, asked = play(2, [rows], [[(9, 6, -1)]], [[(b"six",)], rows[-3:]])
    assert page == LogPage(9, [LogEntry(n, b"%d" % n) for n in (7, 8, 9)], LogEntry(6, b"six"))
    assert asked == [["entries (2,)"], ["head ()"], ["snapshot (6,)", "entries (7,)"]]


def test_snapshot_replaced_meanwhile() -> None:
    """If the snapshot is gone that the log has named a moment ago, the log is asked for its present one."""
    gone: list[list[Rows]] = [[[(9, 6, -1)]], [[], [entry(7)]]]
    page, _ = play(1, *gone, [[(12, 11, -1)]], [[(b"eleven",)], [entry(12, 12)]])
    assert page == LogPage(12, [LogEntry(12, b"12")], LogEntry(11, b"eleven"))
    with pytest.raises(StoreUnavailable, match="replaced faster"):
        play(1, *gone * 5)


class Noted:
    """Notes how an append has ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[object, Exception | None]] = []

    def __call__(self, applied: object, error: Exception | None) -> None:
        """Called at its end."""
        self.ends.append((applied, error))


def test_an_append_ends_once() -> None:
    """Its first end counts, also when the store is closed meanwhile; one that has not ended by then is in doubt."""
    appends, ended, left = AppendsInFlight(), Noted(), Noted()
    tell, late = appends.begin(ended), appends.begin(left)
    tell("first", None)
    appends.close(0.0)
    tell("second", None)
    late("late", None)
    assert ended.ends == [("first", None)]
    [(applied, error)] = left.ends
    assert applied is None
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == "unknown"


def test_an_append_leaves_nothing_to_the_collector() -> None:
    """What waits for it is freed at once: a claim with its messages."""
    appends, noted = AppendsInFlight(), Noted()
    freed = weakref.ref(noted)
    gc.disable()
    try:
        tell = appends.begin(noted)
        tell("first", None)
        del noted, tell
        assert freed() is None
    finally:
        gc.enable()
