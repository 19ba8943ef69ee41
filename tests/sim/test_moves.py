"""A move between queues: every history of two processes that may stop anywhere, and of what happens meanwhile."""

from __future__ import annotations

import pytest

from tests.sim.moves import Event, Taken, explore


@pytest.mark.parametrize("event", [None, "cancel", "purge", "acknowledge", "release"])
def test_every_history(event: Event | None) -> None:
    """Two processes, a crash between any steps: each message is in one of the queues, once, in its order."""
    states, wrong = explore(processes=2, crashes=1, event=event)
    assert wrong == []
    assert states > 300


@pytest.mark.slow
@pytest.mark.parametrize("event", [None, "cancel", "purge", "acknowledge", "release"])
def test_every_history_of_three(event: Event | None) -> None:
    """The same with three processes and two crashes."""
    states, wrong = explore(processes=3, crashes=2, event=event)
    assert wrong == []
    assert states > 3000


@pytest.mark.parametrize(
    ("taken", "event"),
    [
        ("no key", None),
        ("deleted first", None),
        ("taken unasked", None),
        ("two chunks", None),
        ("no end", "release"),
        ("not returned", "purge"),
    ],
)
def test_without_a_mechanism(taken: Taken, event: Event | None) -> None:
    """Without any of its mechanisms some history ends badly."""
    _, wrong = explore(processes=2, crashes=1, event=event, taken=taken)
    assert wrong
