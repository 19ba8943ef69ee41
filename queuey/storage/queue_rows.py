"""Rows of queues: the columns of both stores, made of the fields of :class:`~queuey.messages.Queue`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from queuey.messages import Backoff, Principal, Queue, QueueSpec

CHOSEN = QueueSpec.__struct_fields__
"""Columns that callers choose."""
_JSON = {
    "principals": msgspec.json.Decoder(tuple[Principal, ...]).decode,
    "backoff": msgspec.json.Decoder(Backoff).decode,
}
_encode = msgspec.json.Encoder().encode


def values(queue: Queue, columns: Iterable[str] = CHOSEN) -> list[Any]:
    """Returns what a row has in these columns: JSON, or the field itself."""
    fields = ((name, getattr(queue, name)) for name in columns)
    return [(_encode(value).decode() if value else None) if name in _JSON else value for name, value in fields]


def fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row by column; columns without a value are left out."""
    return {
        name: _JSON[name](value) if name in _JSON else value
        for name, value in row.items()
        if value is not None and value != ""
    }


def assignments() -> str:
    """Returns what an UPDATE sets, in the order of :func:`values`."""
    return ", ".join(f"{name} = ?" for name in CHOSEN)
