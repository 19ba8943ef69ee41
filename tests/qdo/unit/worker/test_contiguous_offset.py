"""Up to where everything is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from qdo.worker.dispatch.partition_work import ContiguousOffset


@given(some.integers(1, 30).flatmap(lambda count: some.permutations(range(count))))
def test_the_end_is_what_lies_before_the_first_unfinished_one(order: list[int]) -> None:
    """Whatever the order in which messages are done, the end never passes one that is not, and misses none that is."""
    prefix = ContiguousOffset()
    prefix.add(str(number) for number in range(len(order)))
    done: set[int] = set()
    for number in order:
        prefix.done(str(number))
        done.add(number)
        first = next((each for each in range(len(order)) if each not in done), len(order))
        assert prefix.end == (str(first - 1) if first else None)
        assert prefix.unfinished == len(order) - len(done)
        assert len(prefix) == len(order) - first


@given(some.lists(some.sampled_from(["done", "waiting", "held"]), max_size=20))
def test_gaps_are_what_keeps_finished_messages_from_being_recorded(states: list[str]) -> None:
    """Every unfinished message before a finished one counts, none behind the last of those or behind a held one."""
    prefix = ContiguousOffset()
    prefix.add(str(at) for at in range(len(states)))
    for at, state in enumerate(states):
        if state == "done":
            prefix.done(str(at))
    held = {str(at) for at, state in enumerate(states) if state == "held"}
    until = states.index("held") if held else len(states)
    last = max((at for at in range(until) if states[at] == "done"), default=0)
    expected = {str(at) for at in range(last) if states[at] == "waiting"}
    assert prefix.gaps(held) == expected
