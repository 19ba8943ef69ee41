"""What errors of one kind have in common, and which letters are meant. tests/qdo/unit has the format itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from queuey.deadletters import Cause, DeadLetter, DeadLetterFilter, dead_letter_from, dead_letter_of, shape_of
from queuey.ids import seconds_to_ticks
from queuey.messages import Message, Meta

LATE = Cause(attempts=5, error="acme.errors.Late", text="", at=1_000.0)


@pytest.mark.parametrize(
    ("one", "other", "shape"),
    [
        ("order 17 is unknown", "order 4,218 is unknown", "order <n> is unknown"),
        ("no user 'ann'", "no user 'bob o\"b'", "no user '…'"),
        ('key "a b" twice', 'key "" twice', 'key "…" twice'),
        ("took -1.5e+3 s", "took 12:30:59.5 s", "took <n> s"),
        ("row 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "row 6FA459EAEE8A3CA4894EDB77E160355E", "row <id>"),
        ("at 0x7f00deadbeef\n  in f", "at 0X1 in f", "at <id> in f"),
        ("10.0.0.1:8080 refused", "192.168.1.20:443 refused", "<n> refused"),
    ],
)
def test_errors_of_one_kind_look_the_same(one: str, other: str, shape: str) -> None:
    """Texts that differ only in numbers, ids, quoted strings or spaces have one shape."""
    assert shape_of(one) == shape_of(other) == shape


@pytest.mark.parametrize("text", ["decode utf8 failed", "don't, can't, won't", "added beefcafe", "sha256 differs"])
def test_words_stay(text: str) -> None:
    """Digits within a word, apostrophes and words of hex letters are no ids, numbers or quotations."""
    assert shape_of(text) == text


@given(some.text(max_size=60))
def test_a_shape_is_its_own_shape(text: str) -> None:
    """Classes do not depend on whether a text was shaped before, and have no line breaks."""
    once = shape_of(text)
    assert shape_of(once) == once
    assert "\n" not in once


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ({}, True),
        ({"error": "Late"}, True),
        ({"error": "acme.*"}, True),
        ({"error": "Lat"}, False),
        ({"since": 1_000.0, "until": 1_000.0}, True),
        ({"since": 1_000.5}, False),
        ({"until": 999.5}, False),
        ({"error": "Late", "until": 999.5}, False),
        ({"queues": ("other",)}, False),
        ({"queues": ("other",), "patterns": ("ord*",)}, True),
    ],
)
def test_every_condition_must_hold(wanted: dict[str, Any], meant: bool) -> None:  # noqa: FBT001 - a table
    """The class may be named bare or with its module, as a pattern; instants are inclusive."""
    one = dead_letter_of(STORED, "orders", LATE, most_headers=16, most_header_bytes=8192)
    read = _read(one)
    assert read is not None
    assert DeadLetterFilter(**{"queues": ("orders",), **wanted}).takes(read) is meant


@pytest.mark.parametrize("wrong", [{}, {"queues": ("orders",), "limit": 0}], ids=["no queue", "limit"])
def test_filters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Dead letters of all queues are asked for by a pattern, never by leaving it out."""
    with pytest.raises(ValueError, match=r"name the queue|limit is at least 1"):
        DeadLetterFilter(**wrong)


STORED = Message(140_000_000_000_000_000, 7, 2, 1, "é", Meta("text/plain", (("a", "1"), ("b", "2"))))


def _read(one: Message) -> DeadLetter | None:
    meta = one.meta or Meta()
    return dead_letter_from(
        dict(meta.headers), one.body, lies=("orders.dead", one.partition, one.id), content_type=meta.content_type
    )


@pytest.mark.parametrize(
    "meta", [None, STORED.meta, Meta("application/json", (), json=True), Meta("text/zoë", (("under_score", "ü"),))]
)
def test_a_stored_message_becomes_one(meta: Meta | None) -> None:
    """Body, type and headers come back as they were; id and partition stay, and it lives from its end on."""
    message = structs.replace(STORED, meta=meta)
    one = dead_letter_of(message, "orders", LATE, ttl=60, most_headers=16, most_header_bytes=8192)
    assert (one.position, one.partition, one.body) == (message.position, 2, "é")
    assert one.expires == seconds_to_ticks(LATE.at + 60)
    assert not (one.meta or Meta()).json
    read, before = _read(one), meta or Meta()
    assert read is not None
    assert (read.queue, read.partition, read.id, read.cause) == ("orders", 2, message.id, LATE)
    assert (read.content_type, tuple(read.headers.items()), read.json) == (
        before.content_type,
        before.headers,
        before.json,
    )


@pytest.mark.parametrize(("most", "size", "kept"), [(8, 8192, 2), (9, 120, 0), (2, 10, 0)])
def test_headers_give_way_where_there_is_no_room(most: int, size: int, kept: int) -> None:
    """Headers of its own are packed into one, then left out, until what is stored with it has room."""
    read = _read(dead_letter_of(STORED, "orders", LATE, most_headers=most, most_header_bytes=size))
    assert read is not None
    assert (len(read.headers), read.lost) == (kept, 2 - kept)
