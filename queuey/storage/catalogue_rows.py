"""Rows of queues and keys, for every store: their columns, and the fields that a ``QueueSpec`` sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from queuey.errors import InvalidRequest
from queuey.messages import Backoff, Principal, Queue, QueueSpec, Scope

CHOSEN = QueueSpec.__struct_fields__
"""Columns that callers choose."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Queue) if field.name in CHOSEN}
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


def given(spec: QueueSpec) -> dict[str, Any]:
    """Returns the fields that a caller has chosen."""
    return {name: value for name, value in msgspec.structs.asdict(spec).items() if value is not None}


def of_new(spec: QueueSpec) -> dict[str, Any]:
    """Returns the fields of a new queue.

    Raises:
        InvalidRequest: Its limits of claims do not fit the rest.
    """
    fields = given(spec)
    wanted = _DEFAULTS | fields
    if wanted["max_claimed_per_key"] and wanted["kind"] != "plain":
        text = f"Only a plain queue can have it, and this one is to be of the kind {wanted['kind']}. Leave one out."
        raise InvalidRequest({"max_claimed_per_key": text})
    _check_shares(wanted)
    return fields


def _check_shares(fields: Mapping[str, Any]) -> None:
    most, partitions = fields["max_claimed"], fields["partitions"]
    if 0 < most < partitions:
        text = f"{most} cannot be divided among {partitions} partitions. Give at least {partitions}, or 0 for no limit."
        raise InvalidRequest({"max_claimed": text})


def differing(queue: Queue, spec: QueueSpec) -> list[str]:
    """Returns the names of the given fields that a queue has other values of."""
    return [name for name, value in given(spec).items() if getattr(queue, name) != value]


def changed(queue: Queue, changes: QueueSpec, clear: Iterable[str]) -> dict[str, Any]:
    """Returns the fields that an update sets: those given, and the defaults of those to be cleared.

    Raises:
        InvalidRequest: It would lower the number of partitions, or change the queue's kind, or the partitions of a
            queue that is not plain or has a limit of claims by key, or add or remove that limit (code
            ``InvalidUpdate``); or a partition would have no share of ``max_claimed``.
    """
    fields = {name: _DEFAULTS[name] for name in clear if name in _DEFAULTS} | given(changes)
    if fields.get("kind", queue.kind) != queue.kind:
        text = f"Queue {queue.name!r} is {queue.kind}, which never changes. Create another queue."
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    if queue.kind != "plain" and fields.get("partitions", queue.partitions) != queue.partitions:
        text = f"Queue {queue.name!r} is of the kind {queue.kind}: its {queue.partitions} partitions never change"
        raise InvalidRequest({"InvalidUpdate": f"{text}. Create another queue."}, code="InvalidUpdate")
    by_key = fields.get("max_claimed_per_key", queue.max_claimed_per_key)
    if bool(by_key) != bool(queue.max_claimed_per_key):
        text = f"Queue {queue.name!r} has max_claimed_per_key {queue.max_claimed_per_key}: it can become"
        text = f"{text} {'another number, not 0' if queue.max_claimed_per_key else 'no other number'}"
        raise InvalidRequest({"InvalidUpdate": f"{text}. Create another queue."}, code="InvalidUpdate")
    if by_key and fields.get("partitions", queue.partitions) != queue.partitions:
        text = f"Queue {queue.name!r} has max_claimed_per_key: its {queue.partitions} partitions never change"
        raise InvalidRequest({"InvalidUpdate": f"{text}. Create another queue."}, code="InvalidUpdate")
    if fields.get("partitions", queue.partitions) < queue.partitions:
        text = f"Queue {queue.name!r} has {queue.partitions} partitions, more than {fields['partitions']}"
        text = f"Partitions can only be increased. {text}."
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    _check_shares({"max_claimed": queue.max_claimed, "partitions": queue.partitions} | fields)
    return fields


def scope_text(scope: Scope | None) -> str | None:
    """Returns the scope of a key as the text that stores keep; None stays None."""
    return None if scope is None else _encode(scope).decode()


def scope_of(text: str | None) -> Scope | None:
    """Reads the result of :func:`scope_text`.

    Raises:
        msgspec.DecodeError: It is something else; a key with such a scope opens nothing.
    """
    return None if text is None else _decode_scope(text)
