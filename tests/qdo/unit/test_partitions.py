"""The queues that a subscription matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.errors import InvalidArgument
from qdo.partitions import subscribe


def test_names_and_patterns_add_up() -> None:
    """Names are literal; patterns are case-sensitive."""
    subscription = subscribe(["a*c"], ["log-?", "Metrics.[ab]"])
    names = ["a*c", "abc", "log-1", "log-12", "LOG-1", "Metrics.a", "Metrics.c", "metrics.a"]
    assert [name for name in names if subscription.matches_name(name)] == ["a*c", "log-1", "Metrics.a"]


def test_patterns_leave_dead_letters_alone() -> None:
    """Patterns leave out queues of dead letters, which a worker would feed forever, unless they name ``.dead``."""
    assert not subscribe([], ["*"]).matches_name("orders.dead")
    assert subscribe([], ["*.dead"]).matches_name("orders.dead")
    assert subscribe(["orders.dead"], ["*"]).matches_name("orders.dead")


@given(
    st.lists(st.text(st.sampled_from("ab*?["), min_size=1, max_size=4), min_size=1, max_size=4),
    st.text(st.sampled_from("ab["), min_size=1, max_size=5),
)
def test_the_stretches_cover_all_that_matches(patterns: list[str], name: str) -> None:
    """Each name that a pattern matches lies in exactly one of the listed ranges."""
    subscription = subscribe([], patterns)
    if subscription.matches_name(name):
        assert sum(name.startswith(text) for text in subscription.literal_prefixes()) == 1


@pytest.mark.parametrize(
    ("names", "patterns"), [([""], []), (["a/b"], []), (["_read"], []), ([], [""]), ("orders", [])]
)
def test_what_can_name_no_queue_is_refused(names: list[str], patterns: list[str]) -> None:
    """An invalid pattern is refused at once."""
    with pytest.raises(InvalidArgument):
        subscribe(names, patterns)
