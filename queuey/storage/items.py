"""Checks of messages that every store makes before it stores them."""

from __future__ import annotations

from collections.abc import Sequence

from queuey.errors import InvalidRequest
from queuey.messages import MAX_TTL, NewMessage, Queue, Record
from queuey.storage.contracts.records import MAX_RECORD


def checked(queue: Queue, items: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """Returns new messages if all of them can be stored, so that none spoils a group for others.

    Raises:
        InvalidRequest: A delay, a partition or a text is not valid.
    """
    for item in items:
        if item.delay and not 0 <= item.delay <= MAX_TTL:
            raise InvalidRequest({"delay": f"{item.delay} is not between 0 and {MAX_TTL} seconds"})
        if not 0 < item.partition <= queue.partitions:
            raise _no_partition(queue, item.partition)
        if not item.body.isascii():
            check_text(item.body)
    return items


def check_partition(queue: Queue, partition: int) -> None:
    if not 0 < partition <= queue.partitions:
        raise _no_partition(queue, partition)


def _no_partition(queue: Queue, partition: int) -> InvalidRequest:
    return InvalidRequest({"partition": f"{partition} is not a partition of this queue (1 to {queue.partitions})"})


def check_text(body: str | bytes) -> None:
    """Refuses text that has no UTF-8 form."""
    if isinstance(body, str) and not body.isascii():
        try:
            body.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest({"body": "is not valid Unicode text"}) from error


def check_length(name: str, body: bytes, longest: int) -> None:
    """Refuses an empty value, and one of more than ``longest`` bytes."""
    if not 0 < len(body) <= longest:
        raise InvalidRequest({name: f"has {len(body)} bytes, and may have 1 to {longest}"})


def check_record(record: Record) -> None:
    check_length("value", record.value, MAX_RECORD)
