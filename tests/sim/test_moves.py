"""A move between queues: every history of two processes that may stop anywhere, and of events meanwhile."""

from __future__ import annotations

import pytest

from tests.sim.moves import Event, Kind, Mutation, explore


@pytest.mark.parametrize("event", [None, "cancel", "purge", "acknowledge", "release"])
@pytest.mark.parametrize("kind", ["plain", "dedup"])
def test_every_history(kind: Kind, event: Event | None) -> None:
    """With two processes and a crash between any steps, each message is in one of the queues, once and in order.

    In a dedup queue, one of two equal messages is.
    """
    states, wrong = explore(processes=2, crashes=1, event=event, kind=kind)
    assert wrong == []
    assert states > 300


@pytest.mark.slow
@pytest.mark.parametrize("event", [None, "cancel", "purge", "acknowledge", "release"])
@pytest.mark.parametrize("kind", ["plain", "dedup"])
def test_every_history_of_three(kind: Kind, event: Event | None) -> None:
    """The same holds with three processes and two crashes."""
    states, wrong = explore(processes=3, crashes=2, event=event, kind=kind)
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
def test_without_a_mechanism(taken: Mutation, event: Event | None) -> None:
    """Without any one of its mechanisms some history ends badly."""
    _, wrong = explore(processes=2, crashes=1, event=event, mutation=taken)
    assert wrong


def test_a_copy_of_what_is_gone() -> None:
    """If a message was delivered before its post failed, its copy is moved."""
    _, wrong = explore(processes=1, crashes=0, event=None, kind="dedup", lost=True)
    assert wrong == []


def test_without_covers() -> None:
    """If a move does not end the copies of what it takes from a dedup queue, both of two equal messages arrive."""
    _, wrong = explore(processes=1, crashes=0, event=None, kind="dedup", mutation="no covers")
    assert wrong
