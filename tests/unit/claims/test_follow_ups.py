"""Tests of the open deletions and dead letters that a process remembers."""

from __future__ import annotations

from queuey.claims.entries import Entry
from queuey.claims.state import State
from queuey.service.claims.follow_ups import FollowUps


def test_what_another_process_has_done_is_forgotten() -> None:
    """While another process deletes what it acknowledges, the memory of this one does not grow."""
    state, follow_ups = State(), FollowUps()
    for number in range(1, 1000):
        # Each entry says that the deletions of the one before are done, so one is always open.
        state.apply(number, Entry(finals=[(number, 0)], delete=True, deleted=number - 1))
        assert follow_ups.find_due_deletions(state, 0, float(number)) == []
        assert follow_ups.find_due_letters(state, [], float(number), 9) == {}
    assert list(state.pending_deletes) == [999]
    assert len(follow_ups.open) < 10
