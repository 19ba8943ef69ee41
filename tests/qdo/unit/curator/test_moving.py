"""Conversion of a message by a fill."""

from __future__ import annotations

from typing import Any

import pytest

from qdo.curator.fill import encode_body, make_prefix
from qdo.errors import InvalidArgument
from queuey.client import Message


def message(body: Any = "x", **headers: str) -> Message:  # noqa: ANN401 - any body
    """Returns a message with headers, whose names have underscores here."""
    return Message("0" * 32, "1.0", 1, body, headers={name.replace("_", "-"): text for name, text in headers.items()})


@pytest.mark.parametrize(
    ("body", "data"), [("Grüße", "Grüße".encode()), (b"\xff", b"\xff"), ({"a": [1, None]}, b'{"a":[1,null]}')]
)
def test_bodies_become_bytes(body: Any, data: bytes) -> None:  # noqa: ANN401 - any body
    """Text becomes UTF-8, bytes stay, JSON takes its shortest form."""
    assert encode_body(message(body)) == data


@pytest.mark.parametrize(
    ("recipe", "one", "prefix"),
    [
        ("queue", message(), "queue-"),
        ("simple", message(), "qn-"),
        ("priority", message(), "queue-100000007"),
        ("priority", message(curator_priority="-1"), "queue-0FFFFFFFF"),
        ("delay", message(), "queue-|000005DC|"),
        ("id", message(curator_id="a/b"), "queue-|a_b|"),
        ("id", message(), f"queue-|{'0' * 32}|"),
    ],
)
def test_names_say_what_headers_say(recipe: str, one: Message, prefix: str) -> None:
    """A drain's headers become names again; without them the names have defaults."""
    assert make_prefix(recipe, one, priority=7, now=1.5) == prefix


@pytest.mark.parametrize(
    ("recipe", "one"),
    [
        ("priority", message(curator_priority="high")),
        ("priority", message(curator_priority="5000000000")),
        ("id", message(curator_id="\x01")),
    ],
)
def test_headers_that_cannot_be_are_refused(recipe: str, one: Message) -> None:
    """The error names the value."""
    with pytest.raises(InvalidArgument):
        make_prefix(recipe, one, priority=0, now=1.5)
