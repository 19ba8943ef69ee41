"""What makes messages belong together."""

from __future__ import annotations

from typing import Any

import pytest

from qdo.errors import InvalidArgument
from qdo.worker.keys import key_by
from tests.qdo.unit.worker.dead_letter_samples import message


def test_a_header_is_a_key_whatever_its_case() -> None:
    """Names of headers are kept in lower case, so the name of the key is too; a missing one is None."""
    key = key_by("header:Customer")
    assert key(message(1, headers={"customer": "7"})) == "7"
    assert key(message(2)) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"order": {"customer": 7}}, 7),
        ('{"order": {"customer": "x"}}', "x"),
        (b'{"order": {"customer": "x"}}', "x"),
        ({"order": {"customer": None}}, None),
        ({"order": {}}, None),
        ({"order": 5}, None),
        ([1, 2], None),
        ("no JSON", None),
        (b"\xff\xfe", None),
        ("[" * 100_000, None),
    ],
    ids=["value", "text", "bytes", "null", "missing", "no object", "list", "no JSON", "no text", "too deep"],
)
def test_a_field_of_the_body_is_a_key(body: Any, expected: object) -> None:  # noqa: ANN401 - any JSON value
    """A JSON value and the text of one count alike; what has no such field has no key."""
    assert key_by("body:order.customer")(message(1, body)) == expected


def test_a_key_may_be_any_value() -> None:
    """Lists and objects are keys too: equal ones are the same key, others are not."""
    key = key_by("body:place")
    same = [key(message(1, {"place": [1, {"a": 2}]})), key(message(2, {"place": [1, {"a": 2}]}))]
    other = key(message(3, {"place": [1, {"a": 3}]}))
    assert len({*same, other}) == 2


@pytest.mark.parametrize("wrong", ["customer", "header:", "body:", "body:a..b", "cookie:x", ""])
def test_what_names_no_key_is_refused(wrong: str) -> None:
    """Only a header or a field of the body can be a key."""
    with pytest.raises(InvalidArgument):
        key_by(wrong)
