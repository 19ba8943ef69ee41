"""Which queues a subscription takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.errors import InvalidArgument
from qdo.partitions import subscribe


def test_names_and_patterns_add_up() -> None:
    """A name is taken as it is; a pattern is told apart by case."""
    wanted = subscribe(["a*c"], ["log-?", "Metrics.[ab]"])
    names = ["a*c", "abc", "log-1", "log-12", "LOG-1", "Metrics.a", "Metrics.c", "metrics.a"]
    assert [name for name in names if wanted.wants(name)] == ["a*c", "log-1", "Metrics.a"]


def test_patterns_leave_dead_letters_alone() -> None:
    """Otherwise a worker would handle its own failures for ever; whoever asks for them gets them."""
    assert not subscribe([], ["*"]).wants("orders.dead")
    assert subscribe([], ["*.dead"]).wants("orders.dead")
    assert subscribe(["orders.dead"], ["*"]).wants("orders.dead")


@given(
    st.lists(st.text(st.sampled_from("ab*?["), min_size=1, max_size=4), min_size=1, max_size=4),
    st.text(st.sampled_from("ab["), min_size=1, max_size=5),
)
def test_the_stretches_cover_all_that_matches(patterns: list[str], name: str) -> None:
    """Whatever a pattern takes lies in exactly one of the stretches of the listing that are gone through."""
    wanted = subscribe([], patterns)
    if wanted.wants(name):
        assert sum(name.startswith(text) for text in wanted.literal_prefixes()) == 1


@pytest.mark.parametrize(
    ("names", "patterns"), [([""], []), (["a/b"], []), (["_read"], []), ([], [""]), ("orders", [])]
)
def test_what_can_name_no_queue_is_refused(names: list[str], patterns: list[str]) -> None:
    """At once, rather than by never finding it."""
    with pytest.raises(InvalidArgument):
        subscribe(names, patterns)
