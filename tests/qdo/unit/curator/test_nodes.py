"""The names and the bytes of a queue's nodes."""

from __future__ import annotations

import doctest
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.curator import nodes
from qdo.curator.nodes import (
    DELAY,
    IDS,
    MESSAGE_HEAD_BYTES,
    NODE_OVERHEAD_BYTES,
    PRIORITY,
    QUEUE,
    RECIPES,
    SIMPLE,
    RecipeNodes,
    decode,
    encode,
)
from qdo.errors import BadItem, InvalidArgument

sequences = some.integers(-(2**31), 2**31 - 1)
WRONG: Any = 1.5
priorities = some.integers(-(2**31), 2**31 - 1)


def make_node_name(prefix: str, sequence: int) -> str:
    """Returns the name that ZooKeeper creates: the number in ten characters or more, including the sign."""
    return f"{prefix}{sequence:010d}"


@pytest.mark.parametrize(
    ("recipe", "name", "found"),
    [
        (QUEUE, "queue-0000000000", {"prefix": "queue-", "sequence": 0}),
        (SIMPLE, "qn-0000000012", {"prefix": "qn-", "sequence": 12}),
        (PRIORITY, "queue-1000000050000000007", {"prefix": "queue-100000005", "sequence": 7, "priority": 5}),
        (PRIORITY, "queue-0FFFFFFFE-2147483648", {"prefix": "queue-0FFFFFFFE", "sequence": -(2**31), "priority": -2}),
        (DELAY, "queue-|1A1F7056FD1|0000000003", {"prefix": "queue-|1A1F7056FD1|", "epoch": 0x1A1F7056FD1}),
        (IDS, "queue-|a_b|0000000003", {"prefix": "queue-|a_b|", "sequence": 3, "id": "a_b"}),
        (IDS, "queue-||0000000003", {"id": ""}),
        (PRIORITY, "queue-0000000012", {"prefix": "queue-", "sequence": 12, "priority": None}),
        (DELAY, "queue-0000000012", {"prefix": "queue-", "sequence": 12, "epoch": 0}),
        (IDS, "queue-0000000012", {"prefix": "queue-", "sequence": 12, "id": None}),
        (QUEUE, "queue--000000005", {"sequence": -5}),
        (DELAY, "queue-|FFFFFFFFFFFFFFFF|0000000003", {"epoch": 0}),
    ],
)
def test_a_name_says(recipe: RecipeNodes, name: str, found: dict[str, Any]) -> None:
    """The fields of a name are read back, also where Curator left out priority, epoch or id."""
    child = recipe.parse(name)
    assert child is not None
    assert child.name == name
    assert {field: getattr(child, field) for field in found} == found


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "config",
        "queue-",
        "qn-",
        "queue-12",
        "queue-00000000x1",
        "queue-" + "\u0663" * 10,
        "lock-0000000001",
        "queue-|a|b|0000000001",
    ],
)
def test_other_names_are_none_of_the_queue(recipe: RecipeNodes, name: str) -> None:
    """A foreign node is never taken for a message."""
    assert recipe.parse(name) is None


@given(sequences, priorities, some.integers(1, 2**63 - 1), some.text("ab/|-_0é", min_size=1, max_size=20))
def test_every_name_is_read_as_it_was_made(sequence: int, priority: int, epoch: int, identifier: str) -> None:
    """A name returns its priority, epoch, id and sequence, and its prefix makes the same name again."""
    for recipe, prefix, field, value in (
        (QUEUE, QUEUE.prefix(), "priority", None),
        (SIMPLE, SIMPLE.prefix(), "id", None),
        (PRIORITY, PRIORITY.prefix(priority), "priority", priority),
        (DELAY, DELAY.prefix(epoch), "epoch", epoch),
        (IDS, IDS.prefix(identifier), "id", IDS.replace_separators(identifier)),
    ):
        child = recipe.parse(make_node_name(prefix, sequence))
        assert child is not None
        assert (child.prefix, child.sequence, getattr(child, field)) == (prefix, sequence, value)


@given(some.lists(some.tuples(priorities, some.integers(0, 2**31 - 1)), unique_by=lambda pair: pair[1]))
def test_priorities_are_in_the_order_of_curator(pairs: list[tuple[int, int]]) -> None:
    """Until ZooKeeper's counter overflows, names sort as text: by priority, then by age."""
    made = [make_node_name(PRIORITY.prefix(priority), sequence) for priority, sequence in pairs]
    in_order = PRIORITY.in_order(made)
    assert [child.name for child in in_order] == sorted(made)
    assert [(child.priority, child.sequence) for child in in_order] == sorted(pairs)


def test_delays_are_in_the_order_of_their_epochs() -> None:
    """The earliest instant comes first, whatever its number of digits, and the oldest of one instant."""
    late, early = make_node_name(DELAY.prefix(0x1A1F7056FD1), 1), make_node_name(DELAY.prefix(0x9), 2)
    made = [late, make_node_name(DELAY.prefix(0x1A1F7056FD1), 0), early, "queue-0000000009"]
    assert [child.sequence for child in DELAY.in_order(made)] == [9, 2, 0, 1]


def test_names_after_the_end_of_the_count_are_the_youngest() -> None:
    """The order continues when ZooKeeper's 32-bit counter becomes negative."""
    counted = [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1, -1]
    made = [make_node_name(QUEUE.prefix(), number) for number in reversed(counted)]
    assert [child.sequence for child in QUEUE.in_order([*made, "foreign"])] == counted


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PRIORITY.prefix(2**31), "from -2147483648 to 2147483647, not 2147483648"),
        (lambda: PRIORITY.prefix(-(2**31) - 1), "not -2147483649"),
        (lambda: DELAY.prefix(0), "ms since 1970 from 1"),
        (lambda: DELAY.prefix(2**63), "not 9223372036854775808"),
        (lambda: PRIORITY.prefix(WRONG), "a priority is a whole number .* not 1.5"),
        (lambda: DELAY.prefix(WRONG), "an instant is a whole number .* not 1.5"),
        (lambda: IDS.prefix(""), "1 to 1024 characters, not ''"),
        (lambda: IDS.prefix("x" * 1025), "not 'xxx"),
        (lambda: IDS.prefix(WRONG), "not '1.5'"),
        (lambda: IDS.prefix("a\0b"), "ZooKeeper allows no '.x00' in a name"),
        (lambda: IDS.prefix("a\ue000"), "ZooKeeper allows no"),
        (lambda: IDS.prefix("a😀"), "ZooKeeper allows no '😀' in a name"),
    ],
)
def test_what_names_cannot_hold_is_refused(make: Any, says: str) -> None:  # noqa: ANN401 - a lambda
    """The error names the value and what is allowed."""
    with pytest.raises(InvalidArgument, match=says):
        make()


GOOD = encode([b"one", b"two"])


@pytest.mark.parametrize(
    ("messages", "data"),
    [
        ([b"m0"], "00010001 01 00000002 6d30 02"),
        ([b""], "00010001 01 00000000 02"),
        ([b"a", b"", b"bc"], "00010001 01 00000001 61 01 00000000 01 00000002 6263 02"),
        ([], "00010001 02"),
    ],
)
def test_the_bytes_are_those_that_curator_writes(messages: list[bytes], data: str) -> None:
    """A node holds the version, each message behind its opcode and length, and an end marker."""
    assert encode(messages) == bytes.fromhex(data)
    assert decode(bytes.fromhex(data)) == messages


@given(some.lists(some.binary(max_size=300), max_size=20))
def test_what_was_encoded_is_decoded(messages: list[bytes]) -> None:
    """Messages are read back unchanged, and the size of a node is computed before it is made."""
    data = encode(messages)
    assert decode(data) == messages
    assert len(data) == NODE_OVERHEAD_BYTES + sum(MESSAGE_HEAD_BYTES + len(message) for message in messages)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes are too few"),
        (b"\x00\x01\x00", "3 bytes are too few"),
        (b"\x00\x01\x00\x02\x02", "version 0x00010002 at byte 0 is not 0x00010001"),
        (b"\xff\xff\xff\xff\x02", "version 0xFFFFFFFF at byte 0"),
        (b"\x00\x01\x00\x01", "ends at byte 4 without the opcode 0x02"),
        (b"\x00\x01\x00\x01\x03", "opcode 0x03 at byte 4 is neither 0x01 nor 0x02"),
        (b"\x00\x01\x00\x01\x01\x00\x00", "ends in the length of the message at byte 4"),
        (b"\x00\x01\x00\x01\x01\x00\x00\x00\x05abc\x02", "the message at byte 9 has 4 of its 5 bytes"),
        (b"\x00\x01\x00\x01\x01\xff\xff\xff\xff\x02", "the message at byte 9 has a length of -1"),
        (GOOD[:-1], "ends at byte 20 without the opcode 0x02"),
        (b"plain text", "version 0x706C6169 at byte 0"),
    ],
)
def test_what_curator_does_not_write_is_refused(data: bytes, says: str) -> None:
    """The error names the reason and the byte, and keeps the bytes."""
    with pytest.raises(BadItem, match=says) as caught:
        decode(data)
    assert caught.value.data == data


@given(some.binary(max_size=60) | some.binary(max_size=60).map(struct.pack(">i", nodes.VERSION).__add__))
def test_any_bytes_are_messages_or_a_clear_error(data: bytes) -> None:
    """Arbitrary bytes raise only this error; accepted ones begin with their own encoding."""
    try:
        messages = decode(data)
    except BadItem:
        return
    assert data.startswith(encode(messages))


def test_the_examples_are_true() -> None:
    """The docstrings' examples print what they show."""
    assert doctest.testmod(nodes).failed == 0
