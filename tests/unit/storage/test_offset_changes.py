"""Changes of one call, decided together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.ids import Position
from queuey.messages import Offset, OffsetChange
from queuey.storage.offset_changes import decide

PLACES = st.sampled_from([(ids.EPOCH_TICKS + n, 0) for n in range(3)])
CHANGES = st.lists(st.builds(OffsetChange, st.integers(1, 3), PLACES, st.none() | PLACES, st.booleans()), max_size=6)


@given(st.dictionaries(st.integers(1, 3), PLACES), CHANGES)
def test_decided_one_after_another(recorded: dict[int, Position], changes: list[OffsetChange]) -> None:
    """A call decides as if each of its changes were a call of its own; what is not changed stays, with its age."""
    present = {number: Offset(number, position, 1.0) for number, position in recorded.items()}
    together = decide(present, changes, 2.0)
    offsets, applied = present, []
    for change in changes:
        decision = decide(offsets, [change], 2.0)
        offsets = decision.offsets
        applied += decision.applied
    assert together == (offsets, applied)
    assert {number: offset.updated for number, offset in offsets.items()} == {
        number: 2.0 if number in applied else 1.0 for number in offsets
    }
