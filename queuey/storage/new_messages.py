"""Validation of new messages and records, used by every store."""

from __future__ import annotations

from collections.abc import Sequence

from queuey.model.errors import InvalidRequest
from queuey.model.messages import MAX_TTL, NewMessage, Queue, Record, body_bytes
from queuey.model.partitions import outside_text
from queuey.storage.contracts.records import MAX_RECORD_BYTES


def check_and_weigh(queue: Queue, items: Sequence[NewMessage]) -> int:
    """Checks new messages before they are written together with others. Returns the bytes of their bodies.

    Raises:
        InvalidRequest: A delay, a partition or a body is not valid.
    """
    weight = 0
    for item in items:
        if item.delay and not 0 <= item.delay <= MAX_TTL:
            raise InvalidRequest({"delay": f"{item.delay} is not between 0 and {MAX_TTL} seconds"})
        if not 0 < item.partition <= queue.partitions:
            raise _make_partition_error(queue, item.partition)
        body = item.body
        weight += len(body) if body.isascii() else _encoded_bytes(body)
    return weight


def check_partition(queue: Queue, partition: int) -> None:
    if not 0 < partition <= queue.partitions:
        raise _make_partition_error(queue, partition)


def _make_partition_error(queue: Queue, partition: int) -> InvalidRequest:
    return InvalidRequest({"partition": outside_text(partition, queue.partitions)})


def check_text(body: str | bytes) -> None:
    if not body.isascii():
        _encoded_bytes(body)


def _encoded_bytes(body: str | bytes) -> int:
    try:
        return body_bytes(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest({"body": "is not valid Unicode text"}) from error


def check_length(name: str, body: bytes, max_bytes: int) -> None:
    if not 0 < len(body) <= max_bytes:
        raise InvalidRequest({name: f"has {len(body)} bytes; 1 to {max_bytes} are allowed"})


def check_record(record: Record, kept: float | None) -> None:
    if kept is None:
        check_length("value", record.value, MAX_RECORD_BYTES)
