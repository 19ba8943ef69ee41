"""Tests whether reads meet writes, by copies and consistency levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.cluster.options import READ_LEVELS, WRITE_LEVELS
from queuey.storage.cassandra.statements.consistency_levels import find_meeting

ONE_CENTRE = {"a": 3}
TWO_CENTRES = {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("write", "read", "copies", "expected"),
    [
        ("QUORUM", "QUORUM", ONE_CENTRE, "everywhere"),
        ("ONE", "ONE", ONE_CENTRE, "never"),
        ("ONE", "QUORUM", ONE_CENTRE, "never"),
        ("ONE", "ALL", ONE_CENTRE, "everywhere"),
        ("ALL", "ONE", ONE_CENTRE, "everywhere"),
        ("TWO", "TWO", ONE_CENTRE, "everywhere"),
        ("ONE", "ONE", {"a": 1}, "everywhere"),
        ("ONE", "QUORUM", {"a": 2}, "everywhere"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", ONE_CENTRE, "everywhere"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", TWO_CENTRES, "locally"),
        ("LOCAL_QUORUM", "QUORUM", TWO_CENTRES, "never"),
        ("EACH_QUORUM", "LOCAL_QUORUM", TWO_CENTRES, "everywhere"),
        ("EACH_QUORUM", "LOCAL_ONE", TWO_CENTRES, "never"),
        ("EACH_QUORUM", "QUORUM", TWO_CENTRES, "everywhere"),
        ("QUORUM", "QUORUM", TWO_CENTRES, "everywhere"),
        ("QUORUM", "LOCAL_QUORUM", TWO_CENTRES, "never"),
        ("QUORUM", "QUORUM", {"a": 3, "b": 0}, "everywhere"),
    ],
)
def test_known_pairs(write: str, read: str, copies: dict[str, int], expected: str) -> None:
    """Known pairs of levels have the known result."""
    assert find_meeting(write, read, copies) == expected


@given(
    write=st.sampled_from(WRITE_LEVELS),
    read=st.sampled_from(READ_LEVELS),
    copies=st.dictionaries(st.sampled_from("abc"), st.integers(3, 4), min_size=1),
)
def test_asking_more_copies_meets_no_fewer_writes(write: str, read: str, copies: dict[str, int]) -> None:
    """A read of more copies meets whatever a smaller one meets, and so does a write to more copies."""
    order = ["never", "locally", "everywhere"]
    rank = order.index(find_meeting(write, read, copies))
    assert order.index(find_meeting(write, "ALL", copies)) >= rank
    assert order.index(find_meeting("ALL", read, copies)) >= rank
