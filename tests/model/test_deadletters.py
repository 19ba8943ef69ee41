"""Shapes of errors, and filters of dead letters. tests/qdo/unit covers the format itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from queuey.model.deadletters import (
    Cause,
    DeadLetter,
    DeadLetterFilter,
    convert_for_move,
    dead_letter_of,
    decode_stored_dead_letter,
    generalize_error_text,
)
from queuey.model.ids import seconds_to_ticks
from queuey.model.messages import Message, Meta

LATE = Cause(attempts=5, error="acme.errors.Late", text="", at=1_000.0)


@pytest.mark.parametrize(
    ("one", "other", "shape"),
    [
        ("order 17 is unknown", "order 4,218 is unknown", "order … is unknown"),
        ("no user 'ann'", "no user 'bob o\"b'", "no user '…'"),
        ('key "a b" twice', 'key "" twice', 'key "…" twice'),
        ("took -1.5e+3 s", "took 12:30:59.5 s", "took … s"),
        ("row 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "row 6FA459EAEE8A3CA4894EDB77E160355E", "row …"),
        ("at 0x7f00deadbeef\n  in f", "at 0X1 in f", "at … in f"),
        ("10.0.0.1:8080 refused", "192.168.1.20:443 refused", "… refused"),
    ],
)
def test_errors_of_one_kind_look_the_same(one: str, other: str, shape: str) -> None:
    """Texts that differ only in numbers, ids, quoted strings or spaces have one shape."""
    assert generalize_error_text(one) == generalize_error_text(other) == shape


@pytest.mark.parametrize("text", ["decode utf8 failed", "don't, can't, won't", "added beefcafe", "sha256 differs"])
def test_words_stay(text: str) -> None:
    """Digits within a word, apostrophes and words of hex letters are not ids, numbers or quotations."""
    assert generalize_error_text(text) == text


@given(some.text(max_size=60))
def test_a_shape_is_its_own_shape(text: str) -> None:
    """The shape of a shape is itself, and has no line breaks."""
    once = generalize_error_text(text)
    assert generalize_error_text(once) == once
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
    """The class may be named alone or with its module, as a pattern; instants are inclusive."""
    letter = dead_letter_of(STORED, "orders", LATE)
    read = _read(letter)
    assert read is not None
    assert DeadLetterFilter(**{"queues": ("orders",), **wanted}).matches_letter(read) is meant


@pytest.mark.parametrize("wrong", [{}, {"queues": ("orders",), "limit": 0}], ids=["no queue", "limit"])
def test_filters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Filters need a pattern for dead letters of all queues; an empty filter is refused."""
    with pytest.raises(ValueError, match=r"name the queue|limit is at least 1"):
        DeadLetterFilter(**wrong)


STORED = Message(140_000_000_000_000_000, 7, 2, 1, "é", Meta("text/plain", (("a", "1"), ("b", "2"))))


def _read(one: Message) -> DeadLetter | None:
    return decode_stored_dead_letter(one, "orders.dead")


@pytest.mark.parametrize(
    "meta", [None, STORED.meta, Meta("application/json", (), json=True), Meta("text/zoë", (("under_score", "ü"),))]
)
def test_a_stored_message_becomes_one(meta: Meta | None) -> None:
    """Body, type and headers are unchanged; id and partition stay, and it lives from its end on."""
    message = structs.replace(STORED, meta=meta)
    letter = dead_letter_of(message, "orders", LATE, ttl=60)
    assert (letter.position, letter.partition, letter.body) == (message.position, 2, "é")
    assert letter.expires == seconds_to_ticks(LATE.at + 60)
    assert (letter.meta or Meta()).json == (meta or Meta()).json
    read, before = _read(letter), meta or Meta()
    assert read is not None
    assert (read.queue, read.partition, read.id, read.cause) == ("orders", 2, message.id, LATE)
    assert (read.content_type, tuple(read.headers.items()), read.json) == (
        before.content_type,
        before.headers,
        before.json,
    )


def test_a_letter_moved_to_its_queue_is_the_message_again() -> None:
    """A JSON value keeps its form and its key in a letter, and in the message that it becomes in its own queue."""
    meta = Meta("application/json", (("colour", "red"),), json=True, key="k")
    letter = dead_letter_of(structs.replace(STORED, body="[1]", meta=meta), "orders", LATE)
    assert convert_for_move("orders", letter).meta == meta
    assert convert_for_move("graveyard", letter) is letter
