"""Stored records of members, assignments and offsets: read back exactly, small, and never guessed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.errors import CoordinationIncompatible
from qdo.group.discovery import MAX_REPORTED_QUEUES
from qdo.group.records import (
    Member,
    Visibility,
    decode_member,
    decode_offset,
    encode_member,
    pack_partitions,
    unpack_partitions,
)
from qdo.group.zookeeper.stored_assignments import ASSIGNMENTS, MemberAssignment
from qdo.group.zookeeper.tree import MAX_NODE_BYTES
from qdo.partitions import Partition, Queue

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
queues = st.builds(Queue, texts, texts, texts)
partitions = st.builds(Partition, queues, st.integers(1, 2**31))


@pytest.mark.parametrize("decode", [decode_member, decode_offset])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"qdo", "cannot be read"),
        (b"qdo9={}", "newer"),
        (b"qdo0={}", "cannot be read"),
    ],
)
def test_what_is_not_understood_is_refused(decode: Callable[[bytes], object], data: bytes, why: str) -> None:
    """Damage and newer formats raise different errors; neither is guessed at."""
    with pytest.raises(CoordinationIncompatible, match=why):
        decode(data)


@pytest.mark.parametrize(("decode", "form"), [(decode_member, b"3"), (decode_offset, b"1")])
@pytest.mark.parametrize("rest", [b"", b"={}", b"=[", b"~[", b"?{}"])
def test_what_is_damaged_is_refused(decode: Callable[[bytes], object], form: bytes, rest: bytes) -> None:
    """Each kind of record has a format of its own."""
    with pytest.raises(CoordinationIncompatible, match="cannot be read"):
        decode(b"qdo" + form + rest)


@given(st.frozensets(partitions, max_size=50))
def test_shares_come_back(share: frozenset[Partition]) -> None:
    """Partitions are read back unchanged and in order."""
    assert list(unpack_partitions(pack_partitions(share))) == sorted(share)


@pytest.mark.parametrize("number", [0, -1])
def test_impossible_partitions_are_damage(number: int) -> None:
    """An assignment of a partition below 1 is refused as damaged."""
    shares = list(pack_partitions([Partition(Queue("s", "a", "q"), number)]))
    damaged = ASSIGNMENTS.encode(MemberAssignment(1, "m", shares, []))
    with pytest.raises(CoordinationIncompatible, match="cannot be read"):
        ASSIGNMENTS.decode(damaged)


def test_the_largest_sight_fits_into_a_node() -> None:
    """The sizes hold for the longest and least compressible names."""
    draw = random.Random(7)
    names = ("".join(chr(draw.randrange(0x10000, 0x110000)) for _ in range(50)) for _ in range(MAX_REPORTED_QUEUES))
    data = encode_member(Member("a", sight=Visibility(("x" * 100,) * 20, dict.fromkeys(names, 200))))
    assert len(data) < MAX_NODE_BYTES
