"""What a :class:`~queuey.messages.QueueSpec` asks for, compared with a queue as it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from queuey.errors import InvalidRequest
from queuey.messages import Queue, QueueSpec

_DEFAULTS = {
    field.name: field.default for field in msgspec.structs.fields(Queue) if field.name in QueueSpec.__struct_fields__
}


def given(spec: QueueSpec) -> dict[str, Any]:
    """Returns the fields that a spec gives."""
    return {name: value for name, value in msgspec.structs.asdict(spec).items() if value is not None}


def differing(queue: Queue, spec: QueueSpec) -> list[str]:
    """Returns the names of the given fields that a queue has other values of."""
    return [name for name, value in given(spec).items() if getattr(queue, name) != value]


def changed(queue: Queue, changes: QueueSpec, clear: Iterable[str]) -> dict[str, Any]:
    """Returns the fields that an update sets: those given, and the defaults of those to be cleared.

    Raises:
        InvalidRequest: It would lower the number of partitions, or change the queue's kind or the partitions of a
            queue that is not plain (code ``InvalidUpdate``).
    """
    fields = {name: _DEFAULTS[name] for name in clear if name in _DEFAULTS} | given(changes)
    if fields.get("kind", queue.kind) != queue.kind:
        text = f"Queue {queue.name!r} is {queue.kind}, which never changes. Create another queue."
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    if queue.kind != "plain" and fields.get("partitions", queue.partitions) != queue.partitions:
        text = f"Queue {queue.name!r} is of the kind {queue.kind}: its {queue.partitions} partitions never change"
        raise InvalidRequest({"InvalidUpdate": f"{text}. Create another queue."}, code="InvalidUpdate")
    if fields.get("partitions", queue.partitions) < queue.partitions:
        text = f"Queue {queue.name!r} has {queue.partitions} partitions, more than {fields['partitions']}"
        text = f"Partitions can only be increased. {text}."
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    return fields
