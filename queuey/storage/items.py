"""What every store refuses of messages before it takes them."""

from __future__ import annotations

from collections.abc import Sequence

from queuey.errors import InvalidRequest
from queuey.messages import MAX_TTL, NewMessage, Queue, Record
from queuey.storage.contracts.records import MAX_RECORD


def checked(queue: Queue, items: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """Returns new messages if all of them can be stored, before one could spoil a group for others.

    Raises:
        InvalidRequest: A delay, a partition or a text cannot be.
    """
    for item in items:
        if item.delay and not 0 <= item.delay <= MAX_TTL:
            raise InvalidRequest({"delay": f"{item.delay} is not between 0 and {MAX_TTL} seconds"})
        check_partition(queue, item.partition)
        check_text(item.body)
    return items


def check_partition(queue: Queue, partition: int) -> None:
    """Makes sure that a queue has a partition.

    Raises:
        InvalidRequest: It does not.
    """
    if not 0 < partition <= queue.partitions:
        raise InvalidRequest({"partition": f"{partition} is not a partition of this queue (1 to {queue.partitions})"})


def check_text(body: str | bytes) -> None:
    """Makes sure that text has a UTF-8 form.

    Raises:
        InvalidRequest: It does not.
    """
    if isinstance(body, str) and not body.isascii():
        try:
            body.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest({"body": "is not valid Unicode text"}) from error


def check_length(name: str, body: bytes, longest: int) -> None:
    """Makes sure that something is not empty and not longer than a number of bytes.

    Raises:
        InvalidRequest: It is.
    """
    if not 0 < len(body) <= longest:
        raise InvalidRequest({name: f"has {len(body)} bytes, and may have 1 to {longest}"})


def check_record(record: Record) -> None:
    """Makes sure that a record's value can be stored.

    Raises:
        InvalidRequest: It cannot.
    """
    check_length("value", record.value, MAX_RECORD)
