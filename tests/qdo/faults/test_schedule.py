"""Schedules of faults are what they should be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.qdo.faults.schedule import EVERYBODY, LEAST, WEIGHTS, draw

SLOTS = ["w1", "w2", "w3", "w4"]
APART = ["w2", "w3"]
SECONDS = 120.0


@given(seed=st.integers(0, 1 << 16))
def test_schedules(seed: int) -> None:
    """A schedule is as long as asked for, is the same for a seed, and always leaves somebody to work."""
    events = draw(seed, SECONDS, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert events == draw(seed, SECONDS, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert SECONDS - 10 < events[-1].at <= SECONDS
    there = set(SLOTS[:LEAST])
    for event in events:
        if event.kind == "join":
            assert event.target not in there
            there.add(event.target)
        elif event.kind in {"kill", "leave"}:
            there.remove(event.target)
        assert len(there) >= LEAST
        assert event.target in (APART if event.kind == "silence" else [*SLOTS, EVERYBODY])
    breaks = [event for event in events if event.target == EVERYBODY and event.seconds]
    assert all(after.at > before.at + before.seconds for before, after in pairwise(breaks))
