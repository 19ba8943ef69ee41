"""What errors of one kind have in common, and which letters are meant. tests/qdo/unit has the format itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from queuey.deadletters import Cause, DeadLetterChoice, shape_of

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
    ("choice", "meant"),
    [
        (DeadLetterChoice(), True),
        (DeadLetterChoice(error="Late"), True),
        (DeadLetterChoice(error="acme.*"), True),
        (DeadLetterChoice(error="Lat"), False),
        (DeadLetterChoice(since=1_000.0, until=1_000.0), True),
        (DeadLetterChoice(since=1_000.5), False),
        (DeadLetterChoice(until=999.5), False),
        (DeadLetterChoice(error="Late", until=999.5), False),
    ],
)
def test_every_condition_must_hold(choice: DeadLetterChoice, meant: bool) -> None:  # noqa: FBT001 - a table
    """The class may be named bare or with its module, as a pattern; instants are inclusive."""
    assert choice.takes(LATE) is meant
