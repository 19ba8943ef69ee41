"""The bytes of a queue's node."""

from __future__ import annotations

import doctest
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.curator import items
from qdo.curator.items import HEAD, OVERHEAD, decode, encode
from qdo.errors import BadItem

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
    """One node holds the version, each message behind its opcode and length, and the end."""
    assert encode(messages) == bytes.fromhex(data)
    assert decode(bytes.fromhex(data)) == messages


@given(some.lists(some.binary(max_size=300), max_size=20))
def test_what_was_encoded_is_decoded(messages: list[bytes]) -> None:
    """Messages come back as they were, and the size of a node is known before it is made."""
    data = encode(messages)
    assert decode(data) == messages
    assert len(data) == OVERHEAD + sum(HEAD + len(message) for message in messages)


def test_what_follows_the_end_does_not_count() -> None:
    """Curator stops reading at the end as well."""
    assert decode(GOOD + b"\x07rest") == [b"one", b"two"]


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
    """The error says what is wrong and at which byte, and keeps the bytes."""
    with pytest.raises(BadItem, match=says) as caught:
        decode(data)
    assert caught.value.data == data


@given(some.binary(max_size=60) | some.binary(max_size=60).map(struct.pack(">i", items.VERSION).__add__))
def test_any_bytes_are_messages_or_a_clear_error(data: bytes) -> None:
    """Nothing but the one error comes of bytes that somebody else wrote; what is accepted begins with its encoding."""
    try:
        messages = decode(data)
    except BadItem:
        return
    assert data.startswith(encode(messages))


def test_the_examples_are_true() -> None:
    """The docstrings' examples print what they show."""
    assert doctest.testmod(items).failed == 0
