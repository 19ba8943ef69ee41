"""The steps in which a claim log is read."""

from __future__ import annotations

from queuey.messages import LogEntry, LogPage
from queuey.storage.cassandra.claim_logs import _ENTRIES, _HEAD, _SNAPSHOT, _reading
from queuey.storage.cassandra.driver import Rows, Statement

KEY = (1, 1)


def read(first: int, *answers: list[Rows]) -> tuple[list[list[Statement]], LogPage]:
    """What is asked one step after the other, given these answers; and the page."""
    steps, asked = _reading(KEY, first), []
    calls = next(steps)
    for answer in answers:
        asked.append([statement for statement, _ in calls])
        try:
            calls = steps.send(answer)
        except StopIteration as ended:
            page: LogPage = ended.value
            return asked, page
    raise AssertionError(f"{calls} is asked as well")


def test_an_entry_that_came_between_two_steps() -> None:
    """A reader that has come further than the snapshot does not need it for an entry that was only just appended."""
    found = read(10, [[]], [[(10, 5, -1)]], [[(10, 10, b"ten")]])
    assert found == ([[_ENTRIES], [_HEAD], [_ENTRIES]], LogPage(10, [LogEntry(10, b"ten")]))


def test_a_reader_that_has_fallen_behind() -> None:
    """Where the snapshot is newer, the page begins with it."""
    asked, page = read(3, [[(10, 9, b"nine"), (10, 10, b"ten")]], [[(10, 8, -1)]], [[(b"all",)], [(10, 9, b"nine")]])
    assert asked == [[_ENTRIES], [_HEAD], [_SNAPSHOT, _ENTRIES]]
    assert page == LogPage(10, [LogEntry(9, b"nine")], LogEntry(8, b"all"))
