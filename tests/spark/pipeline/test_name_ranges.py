"""Walks over queues in ranges, each in a task of its own, and offsets from files; here without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import QueueNotFound
from queuey.pipeline import name_ranges, offset_files
from queuey.spark.errors import OptionError
from queuey.spark.options import Pattern, Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.kept import Kept

NAMES = st.sets(st.text("ab0é\U0001f600~", min_size=1, max_size=6), max_size=40)


def list_names(kept: Kept, parts: list[name_ranges.NameRange]) -> list[str]:
    return [
        queue.name
        for part in parts
        for page in name_ranges.list_queues(kept.store_options, part, page=3)
        for queue in page
    ]


@given(NAMES, NAMES, st.integers(1, 7))
@settings(max_examples=20)
def test_every_queue_is_in_one_range(embedded: Kept, names: set[str], later: set[str], size: int) -> None:
    """Ranges contain every queue once, in order, also queues created after the ranges were cut."""
    store = embedded.store
    for queue in bridge.run(store.catalogue.list_queues(APP)):
        bridge.run(store.catalogue.delete_queue(queue))
    for name in names:
        embedded.queue(name)
    parts = name_ranges.divide_names(embedded.store_options, None, size, page=3)
    assert list_names(embedded, parts) == sorted(names)
    assert len(parts) <= 1 + len(names) // min(size, 3)
    for name in later:
        embedded.queue(name)
    assert list_names(embedded, parts) == sorted(names | later)


def test_a_pattern_takes_whole_names(embedded: Kept) -> None:
    """A pattern selects in every range, and must match the whole name."""
    for name in ("logs", "logs-1", "logs-2", "xlogs-1"):
        embedded.queue(name)
    assert list_names(embedded, name_ranges.divide_names(embedded.store_options, Pattern("logs-."), 1)) == [
        "logs-1",
        "logs-2",
    ]


def test_queues_by_name(embedded: Kept) -> None:
    """Named queues are looked up; a missing one is an error before any task begins."""
    for name in ("a", "b", "c"):
        embedded.queue(name)
    chosen = Subscribe(("c", "a"))
    name_ranges.check_selection(embedded.store_options, chosen)
    assert sorted(list_names(embedded, name_ranges.divide_names(embedded.store_options, chosen))) == ["a", "c"]
    with pytest.raises(QueueNotFound):
        name_ranges.check_selection(embedded.store_options, Subscribe(("a", "absent")))
    with pytest.raises(OptionError, match="regular expression"):
        name_ranges.check_selection(embedded.store_options, Pattern("("))


ONE, TWO = (ids.to_hex((ids.EPOCH_TICKS + tick, 5)) for tick in (1, 2))


def line(queue: str, partition: int, offset: str | None, app: str = "acme", host: str = "main") -> str:
    place = {"host": host, "app": app, "queue": queue, "partition": partition}
    return json.dumps({**place, "offset": offset, "recorded": 1.5, "member": None})


def test_lines_of_qdo() -> None:
    """Offsets are read by queue and partition; a missing offset means the beginning; other applications are ignored."""
    lines = [line("q", 1, ONE), "", line("q", 2, None), line("r", 1, TWO), line("r", 9, ONE, app="other")]
    assert offset_files.parse_lines(lines, "acme", "f") == {
        "q": {1: ids.parse_position(ONE), 2: ids.FIRST},
        "r": {1: ids.parse_position(TWO)},
    }


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "line 1"),
        ([line("q", 1, ONE), line("q", 2, "no id")], "line 2"),
        (['{"queue":"q"}'], "line 1"),
        ([line("q", 1, ONE), line("q", 1, TWO)], "two offsets"),
        ([line("q", 1, ONE), line("q", 2, ONE, host="other")], "two hosts"),
    ],
)
def test_what_is_no_such_file_is_refused(lines: list[str], words: str) -> None:
    """An invalid line, or one that contradicts another, is named."""
    with pytest.raises(OptionError, match=words):
        offset_files.parse_lines(lines, "acme", "f")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An unreadable file gives one clear error."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(OptionError, match="cannot be read"):
            offset_files.read(path, "acme")
