"""The files and calls that operations cross: how they are counted, and that they do not grow."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.call_counts import record
from bench.call_counts.code_lines import count_code_lines
from bench.call_counts.operations import count_all
from bench.call_counts.profiler import Count, Profiler, make_count
from bench.harness import Void
from queuey.model import ids
from tests.docs.test_walks import WALKS, rows_of_walk

RECORDED = {"a": Count(2, 10), "b": Count(5, 50)}
SOURCE = '''"""A module."""

LIMIT = 1  # a comment
"""Text below a constant."""

# a comment
TEXT = """two
lines"""
'''


def strays(calls: Mapping[str, Counter[str]]) -> list[str]:
    """Returns the errors in the walks: files that an operation does not cross, and files that are missing."""
    problems = []
    for (page, folder), operation in WALKS.items():
        named = {file for file, _ in rows_of_walk(page, folder)}
        crossed = {file for file in calls[operation] if file.startswith(folder)}
        if named != crossed:
            problems.append(f"{page}: missing {sorted(crossed - named)}, not crossed {sorted(named - crossed)}")
    return problems


def test_no_operation_crosses_more_files_or_calls_than_recorded(tmp_path: Path) -> None:
    """Each stays within ``record.json`` and its walk; work in the background may need further tries."""
    problems: list[str] = []
    for attempt in range(5):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        calls = count_all(directory)
        measured = {name: make_count(found) for name, found in calls.items()}
        problems = record.find_exceeded(measured, record.read_record()) + strays(calls)
        if not problems:
            break
    assert not problems, "\n".join(
        [*problems, "Which files: make measure, or python -m bench.call_counts --by-file OPERATION"]
    )
    if record.lower_counts(measured, record.read_record()) != record.read_record():
        sys.stdout.write(record.HOW_TO_LOWER)


def test_the_record_is_only_lowered(tmp_path: Path) -> None:
    """Higher figures, and those without a record, are reported; the lower figure of each operation is written.

    A later Python counts fewer calls of the same code, so it writes no record.
    """
    assert record.find_exceeded(RECORDED | {"a": Count(1, 9)}, RECORDED) == []
    assert record.find_exceeded({"a": Count(3, 9), "b": Count(5, 51), "c": Count(1, 1)}, RECORDED) == [
        "c has no record",
        "a crosses 3 files by 9 calls; recorded: 2 and 10",
        "b crosses 5 files by 51 calls; recorded: 5 and 50",
    ]
    path = tmp_path / "record.json"
    text = '{"python": "PYTHON", "operations": {"a": {"files": 2, "calls": 10}}}'
    path.write_text(text.replace("PYTHON", record.PYTHON), encoding="utf-8")
    record.lower_record({"a": Count(1, 11)}, path)
    assert record.read_record(path) == {"a": Count(1, 10)}
    path.write_text(text.replace("PYTHON", "2.7"), encoding="utf-8")
    with pytest.raises(Void, match=r"Python 2\.7"):
        record.lower_record({"a": Count(1, 1)}, path)


def test_calls_are_counted_in_every_thread_and_only_while_counting() -> None:
    """Functions of the product count in every thread; calls before and after do not count."""
    before, profiler = sys.getprofile(), Profiler()
    profiler.install()
    try:
        ids.to_hex((1, 2))
        profiler.begin()
        thread = threading.Thread(target=ids.to_hex, args=((1, 2),))
        thread.start()
        thread.join(10)
        once = profiler.end()
        ids.to_hex((1, 2))
        profiler.begin()
        ids.to_hex((1, 2))
        assert profiler.end() == once
        assert set(once) == {"queuey/model/ids.py"}
    finally:
        profiler.remove()
        sys.setprofile(before)


def test_code_lines_leave_out_docstrings_comments_and_blank_lines() -> None:
    """A string that is not a docstring counts with each of its lines."""
    assert count_code_lines(SOURCE) == 4
