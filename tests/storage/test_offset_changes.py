"""Tests of several offset changes in one call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.groups import OwnedOffset
from queuey.model.ids import Position
from queuey.model.messages import OffsetChange
from queuey.storage.offset_changes import decide

PLACES = st.sampled_from([(ids.EPOCH_TICKS + n, 0) for n in range(3)])
CHANGES = st.lists(
    st.builds(OffsetChange, st.integers(1, 3), PLACES, st.none() | PLACES, st.booleans(), st.booleans()), max_size=6
)


@given(st.dictionaries(st.integers(1, 3), PLACES), CHANGES)
def test_decided_one_after_another(recorded: dict[int, Position], changes: list[OffsetChange]) -> None:
    """A call decides as if each change was its own call; unchanged offsets stay, with their age."""
    present = {number: OwnedOffset(number, position, 1.0) for number, position in recorded.items()}
    together = decide(present, changes, 2.0)
    rows, applied, kept = present, [], []
    for change in changes:
        decision = decide(rows, [change], 2.0)
        rows = decision.rows
        applied += decision.applied
        kept += decision.kept
    assert together == (rows, applied, kept, [], {*applied})
    assert {number: row.updated for number, row in rows.items()} == {
        number: 2.0 if number in applied else 1.0 for number in rows
    }


@given(st.permutations([(ids.EPOCH_TICKS + n, 0) for n in range(4)]))
def test_forward(order: list[Position]) -> None:
    """Forward changes end at the highest position, in any order."""
    changes = [OffsetChange(1, position, forward=True) for position in order]
    decision = decide({}, changes, 1.0)
    assert decision.rows[1].position == max(order)
    assert len(decision.applied) + len(decision.kept) == len(order)
