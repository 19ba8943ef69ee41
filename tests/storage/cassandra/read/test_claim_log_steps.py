"""Tests of the steps in which a claim log is read."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import LogEntry, LogPage
from queuey.storage.cassandra.cluster import Rows
from queuey.storage.cassandra.tables import claim_logs
from tests.storage.cassandra.read.answered import ASKING, run_with_answers

NAMES = {"number >= ?": "entries", "number = -1": "head", "number = ?": "snapshot"}
"""Which rows a request asks for, by its condition."""


def play(first: int, *answers: Rows) -> tuple[LogPage | None, list[str]]:
    reads: list[str] = []

    def answer(request: Any) -> Rows:  # noqa: ANN401 - a request
        [name] = [name for condition, name in NAMES.items() if condition in request.statement.cql]
        reads.append(f"{name} {request.values[2:]}")
        return answers[len(reads) - 1]

    return run_with_answers(claim_logs._read_page(ASKING, (7, 1), first, "ONE"), answer), reads


def entry(number: int, last: int = 9) -> tuple[int, int, bytes]:
    return last, number, b"%d" % number


@pytest.mark.parametrize("back", [[4], [2, 4], [2, 4, 5]])
def test_entries_that_came_back(back: list[int]) -> None:
    """Truncated entries that a repair brings back, with gaps between them, are not part of the log."""
    rows = [entry(number) for number in (*back, 7, 8, 9)]
    page, requests = play(2, rows, [(9, 6, -1)], [(b"six",)], rows[-3:])
    assert page == LogPage(9, [LogEntry(n, b"%d" % n) for n in (7, 8, 9)], LogEntry(6, b"six"))
    assert requests == ["entries (2,)", "head ()", "snapshot (6,)", "entries (7,)"]


def test_snapshot_replaced_meanwhile() -> None:
    """If the snapshot that the log named is gone, the log is asked for its present one."""
    gone: list[Rows] = [[(9, 6, -1)], [], [entry(7)]]
    page, _ = play(1, *gone, [(12, 11, -1)], [(b"eleven",)], [entry(12, 12)])
    assert page == LogPage(12, [LogEntry(12, b"12")], LogEntry(11, b"eleven"))
    with pytest.raises(StoreUnavailable, match="replaced faster"):
        play(1, *gone * 5)
