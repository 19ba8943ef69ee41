"""Changes bundled into transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.coordination import tree
from qdo.coordination.changes import yield_attempts
from qdo.coordination.tree import Change, Check, Create, Delete, SetData
from qdo.errors import CoordinationLost

DATA = st.integers(0, 200_000).map(bytes)
OPERATIONS = st.one_of(
    st.builds(Create, st.just("/a"), DATA),
    st.builds(SetData, st.just("/b"), DATA, st.just(3)),
    st.just(Delete("/c")),
    st.just(Check("/d")),
)
CHANGES = st.lists(st.lists(OPERATIONS, min_size=1, max_size=3).map(tuple), max_size=400)


@given(CHANGES)
def test_bundles_stay_small(wanted: list[Change]) -> None:
    """A bundle of several changes stays within the servers' limits, in operations and in bytes."""
    for part in tree.split_into_bundles(wanted):
        bundle = wanted[part]
        if len(bundle) > 1:
            assert len(tree.join_changes(bundle)) <= tree.MAX_OPERATIONS
            assert tree.estimate_bytes(tree.join_changes(bundle)) <= tree.MAX_BUNDLE_BYTES


def test_small_changes_go_together() -> None:
    """A thousand claims take 16 transactions."""
    taking: Change = (
        Create("/groups/g/owners/h/a/q/1", b"m", ephemeral=True),
        SetData("/groups/g/offsets/h/a/q/1", b"", 1),
    )
    assert len(list(tree.split_into_bundles([taking] * 1000))) == 16


def test_trying_again_ends() -> None:
    """A write that other writers beat in every round fails in the end."""
    tries = yield_attempts("it", max_attempts=3)
    assert [next(tries) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CoordinationLost, match="too many concurrent changes of it"):
        next(tries)
