"""The files and calls that operations cross: how they are counted, and that they do not grow."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.call_counts import record
from bench.call_counts.code_lines import count_code_lines
from bench.call_counts.operations import count_all
from bench.call_counts.profiler import Count, Profiler, make_count
from bench.harness import Void
from bench.started.processes import ROOT
from queuey import ids

RECORDED = {"a": Count(2, 10), "b": Count(5, 50)}
SOURCE = '''"""A module."""

LIMIT = 1  # a comment
"""Text below a constant."""

# a comment
TEXT = """two
lines"""


def add(
    one: int,
) -> int:
    """Adds."""
    return one + LIMIT
'''


WALKS = {
    ("walk-post.md", ""): "POST",
    ("walk-read.md", ""): "GET",
    ("walk-claim.md", ""): "claim",
    ("walk-group.md", ""): "fetch to commit",
    ("walk-post.md", "queuey/storage/cassandra/"): "Cassandra append",
    ("walk-read.md", "queuey/storage/cassandra/"): "Cassandra read",
}
"""Operations by the page that walks through them; the second table of a page is about files below a folder."""
ROW = re.compile(r"(?m)^\|[^|\n]*\| `([\w/.]+\.py)` \| (.*) \|$")


def rows_of_walk(page: str, folder: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns (path, functions) of the table on Cassandra if a folder is given, otherwise of the one before it."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    first, _, second = text.partition("## On Cassandra")
    return [
        (folder + file, re.findall(r"`(?:(\w+)\.)?(\w+)`", functions))
        for file, functions in ROW.findall(second if folder else first)
    ]


def strays(calls: Mapping[str, Counter[str]]) -> list[str]:
    """Returns the errors in the walks: files that an operation does not cross, and files that are missing."""
    problems = []
    for (page, folder), operation in WALKS.items():
        named = {file for file, _ in rows_of_walk(page, folder)}
        crossed = {file for file in calls[operation] if file.startswith(folder)}
        if named != crossed:
            problems.append(f"{page}: missing {sorted(crossed - named)}, not crossed {sorted(named - crossed)}")
    return problems


@pytest.mark.parametrize(("page", "folder"), WALKS)
def test_a_walk_names_functions_that_exist(page: str, folder: str) -> None:
    """Each function of a walk is defined in the file beside it."""
    rows = rows_of_walk(page, folder)
    assert rows
    for file, functions in rows:
        source = (ROOT / file).read_text("utf-8")
        for owner, function in functions:
            assert f"def {function}(" in source or f"def {function}[" in source, f"{page}: {function} in {file}"
            assert not owner or f"class {owner}" in source, f"{page}: {owner} in {file}"


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


@pytest.mark.parametrize(
    ("measured", "problems"),
    [
        ({}, []),
        ({"a": Count(1, 9)}, []),
        ({"a": Count(3, 9)}, ["a crosses 3 files by 9 calls; recorded: 2 and 10"]),
        ({"a": Count(1, 11)}, ["a crosses 1 files by 11 calls; recorded: 2 and 10"]),
        ({"c": Count(1, 1)}, ["c has no record"]),
    ],
)
def test_more_files_or_calls_are_reported(measured: dict[str, Count], problems: list[str]) -> None:
    """An operation that exceeds either figure is reported, and so is one without a record."""
    assert record.find_exceeded(RECORDED | measured, RECORDED) == problems


def test_the_record_is_only_lowered(tmp_path: Path) -> None:
    """The lower figure of each operation is written, never a higher one."""
    path = tmp_path / "record.json"
    path.write_text(
        f'{{"python": "{record.PYTHON}", "operations": {{"a": {{"files": 2, "calls": 10}}}}}}', encoding="utf-8"
    )
    record.lower_record({"a": Count(1, 11)}, path)
    assert record.read_record(path) == {"a": Count(1, 10)}


def test_another_python_does_not_lower_the_record(tmp_path: Path) -> None:
    """A later Python counts fewer calls of the same code, so it must not write the record."""
    path = tmp_path / "record.json"
    text = '{"python": "2.7", "operations": {"a": {"files": 2, "calls": 10}}}'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Void, match=r"Python 2\.7"):
        record.lower_record({"a": Count(1, 1)}, path)
    assert path.read_text(encoding="utf-8") == text


@pytest.fixture
def profiler() -> Iterator[Profiler]:
    """Installs a profiler, and restores the previous one after the test."""
    before = sys.getprofile()
    counter = Profiler()
    counter.install()
    yield counter
    counter.remove()
    sys.setprofile(before)


def test_calls_are_counted_in_every_thread_and_only_while_counting(profiler: Profiler) -> None:
    """Functions of the product count in every thread; calls before and after do not count."""

    def call() -> None:
        ids.to_hex((1, 2))

    call()
    profiler.begin()
    call()
    once = profiler.end()
    call()
    assert set(once) == {"queuey/ids.py"}
    profiler.begin()
    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert profiler.end() == once + once


def test_each_resumption_of_a_generator_counts(profiler: Profiler) -> None:
    """A generator counts once for each time that it goes on."""
    path = str(ROOT / "queuey" / "invented.py")
    names: dict[str, object] = {}
    exec(compile("def steps():\n    yield 1\n    yield 2\n", path, "exec"), names)
    profiler.begin()
    assert list(names["steps"]()) == [1, 2]  # type: ignore[operator]
    assert profiler.end() == {"queuey/invented.py": 3}


def test_code_lines_leave_out_docstrings_comments_and_blank_lines() -> None:
    """A string that is not a docstring counts with each of its lines."""
    assert count_code_lines(SOURCE) == 8
