"""Keys of messages: a header, or a field of a JSON body."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from qdo.errors import InvalidArgument
from queuey.client import Message

Key = Callable[[Message], Hashable]


def key_by(text: str) -> Key:
    """Returns a function that returns a message's key; messages without one share the key None.

    Args:
        text: ``header:<name>``, or ``body:<field>`` with dots between the names of nested fields. A body that is the
            text of a JSON value counts as that value.

    Raises:
        InvalidArgument: It is neither.
    """
    kind, _, name = text.partition(":")
    if kind == "header" and name:
        lower = name.lower()
        return lambda message: message.headers.get(lower)
    if kind == "body" and all(name.split(".")):
        names = name.split(".")
        return lambda message: _field(message.body, names)
    raise InvalidArgument(f"a key is header:<name> or body:<field>, not {text!r}")


def _field(body: Any, names: list[str]) -> Hashable:  # noqa: ANN401 - any JSON value
    if isinstance(body, str | bytes):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    for name in names:
        if not isinstance(body, dict):
            return None
        body = body.get(name)
    return msgspec.json.encode(body) if isinstance(body, dict | list) else body
