"""Rows of queues and keys in every store: their columns, and the fields that a ``QueueSpec`` sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

import msgspec

from queuey.model.errors import InvalidRequest
from queuey.model.kinds import check_changes, check_options
from queuey.model.messages import Backoff, Principal, Queue, QueueSpec, Scope, is_readable

SPEC_COLUMNS = QueueSpec.__struct_fields__
"""Columns that callers set."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Queue) if field.name in SPEC_COLUMNS}
_JSON = {
    "principals": msgspec.json.Decoder(tuple[Principal, ...]).decode,
    "backoff": msgspec.json.Decoder(Backoff).decode,
}
_SHARED = frozenset(["application", "type", "consistency", "dead_letter", "on_ack", "on_expiry", "kind", "claims"])
"""Columns whose few values many rows have."""
_decode_scope = msgspec.json.Decoder(Scope).decode
_encode = msgspec.json.Encoder().encode


def require_readable(field: str, name: str) -> None:
    """Checks the name of a new application, or the note of a new key.

    Raises:
        InvalidRequest: The name has characters that do not show, or begins or ends with a space.
    """
    if not is_readable(name):
        raise InvalidRequest({field: f"{name!r} has characters that do not show, or begins or ends with a space"})


def encode_values(queue: Queue, columns: Iterable[str] = SPEC_COLUMNS) -> list[Any]:
    fields = ((name, getattr(queue, name)) for name in columns)
    return [(_encode(value).decode() if value else None) if name in _JSON else value for name, value in fields]


def decode_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes the values of a row. Null and blank values are left out; equal values of :data:`_SHARED` are one."""
    return {
        name: intern(value) if name in _SHARED else _JSON[name](value) if name in _JSON else value
        for name, value in row.items()
        if value is not None and value != ""
    }


def make_assignments() -> str:
    return ", ".join(f"{name} = ?" for name in SPEC_COLUMNS)


def find_set_fields(spec: QueueSpec) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(spec).items() if value is not None}


def new_queue_fields(spec: QueueSpec) -> dict[str, Any]:
    """Returns the fields set for a new queue.

    Raises:
        InvalidRequest: The claim limits do not fit the kind or the number of partitions.
    """
    fields = find_set_fields(spec)
    check_options(_DEFAULTS | fields)
    return fields


def find_differing(queue: Queue, spec: QueueSpec) -> list[str]:
    """Returns the names of fields that a spec sets to another value than the queue has."""
    return [name for name, value in find_set_fields(spec).items() if getattr(queue, name) != value]


def find_changed(queue: Queue, changes: QueueSpec, clear: Iterable[str]) -> dict[str, Any]:
    """Returns the fields that an update sets: the fields of ``changes``, and the defaults of cleared fields.

    Raises:
        InvalidRequest: See :meth:`~queuey.storage.Catalogue.update_queue`.
    """
    fields = {name: _DEFAULTS[name] for name in clear if name in _DEFAULTS} | find_set_fields(changes)
    check_changes(queue, fields)
    if fields.get("partitions", queue.partitions) < queue.partitions:
        text = f"Queue {queue.name!r} has {queue.partitions} partitions, more than {fields['partitions']}"
        text = f"Partitions can only be increased. {text}."
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    return fields


def encode_scope(scope: Scope | None) -> str | None:
    return None if scope is None else _encode(scope).decode()


def decode_scope(text: str | None) -> Scope | None:
    """Decodes a scope from the result of :func:`encode_scope`.

    Raises:
        msgspec.DecodeError: The text is not a valid scope; a key with it must not be accepted.
    """
    return None if text is None else _decode_scope(text)
