"""Walks over queues in ranges, each in a task of its own; here without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey.model.errors import QueueNotFound
from queuey.pipeline import name_ranges
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
