"""Compares a :class:`~queuey.messages.QueueSpec` with a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from queuey.errors import InvalidRequest
from queuey.messages import Queue, QueueSpec

_DEFAULTS = {
    field.name: field.default for field in msgspec.structs.fields(Queue) if field.name in QueueSpec.__struct_fields__
}


def given(spec: QueueSpec) -> dict[str, Any]:
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
