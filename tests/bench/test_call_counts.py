"""The files and calls that operations cross: how they are counted, and that they do not grow."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.call_counts import record
from bench.call_counts.operations import count_all
from bench.call_counts.profiler import Profiler, make_count
from queuey.model import ids
from tests.docs.test_walks import WALKS, rows_of_walk


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
