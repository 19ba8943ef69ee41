"""Posts with one idempotency key: every history of two of them, whatever fails and wherever they stop."""

from __future__ import annotations

import pytest

from tests.sim.post_keys import Mutation, explore


def test_every_history() -> None:
    """With two posts at once, a fault and a crash, the messages are stored once, and no reader misses them."""
    states, wrong = explore(posts=2, faults=1, crashes=1)
    assert wrong == []
    assert states > 10_000


@pytest.mark.slow
def test_every_history_with_more_faults() -> None:
    """The same holds with two faults and two crashes."""
    states, wrong = explore(posts=2, faults=2, crashes=2)
    assert wrong == []
    assert states > 50_000


@pytest.mark.parametrize(
    "taken", ["no pending row", "removed unasked", "confirmed by others", "not removed", "late is in time"]
)
def test_without_a_mechanism(taken: Mutation) -> None:
    """Without any one of the mechanisms some history ends badly."""
    _, wrong = explore(posts=2, faults=1, crashes=1, mutation=taken)
    assert wrong
