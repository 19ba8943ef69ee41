"""Rows of queues and keys: the columns of both stores, made of the fields of queues and of the scopes of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from queuey.messages import Backoff, Principal, Queue, QueueSpec, Scope

CHOSEN = QueueSpec.__struct_fields__
"""Columns that callers choose."""
_JSON = {
    "principals": msgspec.json.Decoder(tuple[Principal, ...]).decode,
    "backoff": msgspec.json.Decoder(Backoff).decode,
}
_decode_scope = msgspec.json.Decoder(Scope).decode
_encode = msgspec.json.Encoder().encode


def values(queue: Queue, columns: Iterable[str] = CHOSEN) -> list[Any]:
    """Returns what the row of a queue has in these columns: JSON, or the field itself."""
    fields = ((name, getattr(queue, name)) for name in columns)
    return [(_encode(value).decode() if value else None) if name in _JSON else value for name, value in fields]


def fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a queue's row by column; columns without a value are left out."""
    return {
        name: _JSON[name](value) if name in _JSON else value
        for name, value in row.items()
        if value is not None and value != ""
    }


def assignments() -> str:
    """Returns what an UPDATE sets, in the order of :func:`values`."""
    return ", ".join(f"{name} = ?" for name in CHOSEN)


def scope_text(scope: Scope | None) -> str | None:
    """Returns the scope of a key as the text that stores keep; None stays None."""
    return None if scope is None else _encode(scope).decode()


def scope_of(text: str | None) -> Scope | None:
    """Reads the result of :func:`scope_text`.

    Raises:
        msgspec.DecodeError: It is something else; a key with such a scope opens nothing.
    """
    return None if text is None else _decode_scope(text)
