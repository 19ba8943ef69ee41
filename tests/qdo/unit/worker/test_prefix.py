"""Up to where everything is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from qdo.worker.prefix import Prefix


@given(some.integers(1, 30).flatmap(lambda count: some.permutations(range(count))))
def test_the_end_is_what_lies_before_the_first_unfinished_one(order: list[int]) -> None:
    """Whatever the order in which messages are done, the end never passes one that is not, and misses none that is."""
    prefix = Prefix()
    prefix.add(str(number) for number in range(len(order)))
    done: set[int] = set()
    for number in order:
        prefix.done(str(number))
        done.add(number)
        first = next((each for each in range(len(order)) if each not in done), len(order))
        assert prefix.end == (str(first - 1) if first else None)
        assert prefix.unfinished == len(order) - len(done)
        assert len(prefix) == len(order) - first
