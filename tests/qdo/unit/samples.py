"""Messages and partitions for tests without a service."""

from __future__ import annotations

from collections.abc import Mapping

from qdo.partitions import Partition, Queue
from queuey.client import Message
from queuey.model import ids

QUEUE = Queue("queuey.example.org:5000", "acme", "orders")
ONE, TWO, THREE = (Partition(QUEUE, number) for number in (1, 2, 3))


def message_id(number: int) -> str:
    """Returns an id; a higher number is a later one."""
    return ids.to_hex((ids.EPOCH_TICKS + 1000 * number, 1))


def message(
    number: int, partition: int = 1, body: object = "body", headers: Mapping[str, str] | None = None
) -> Message:
    return Message(message_id(number), f"{number}.0000000", partition, body, headers=headers or {})


def messages(first: int, last: int, partition: int = 1) -> list[Message]:
    """Returns messages with ascending numbers, both ends included."""
    return [message(number, partition) for number in range(first, last + 1)]
