"""Chooses the partitions of messages. Partitions are numbered from 1."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from queuey.model.errors import InvalidRequest

MAX_PARTITIONS = 200
MAX_RUNS = 4


def by_key(key: str, partitions: int) -> int:
    """Returns the partition of a message key: 1 to ``partitions``. It is the same on every node and never changes.

    It is the BLAKE2b-64 hash of the key's UTF-8 bytes modulo the number of partitions, plus 1. So a key keeps its
    partition until partitions are added.
    """
    return key_digest(key) % partitions + 1


def key_digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def spread(count: int, first: int, partitions: int) -> list[int]:
    """Returns the partitions for messages of one post that do not name a partition.

    The messages are divided into at most ``MAX_RUNS`` runs of equal length for consecutive partitions. So the workers
    of several partitions share a batch, and it is still written as a few batches of one partition each.

    Args:
        count: Number of messages.
        first: Partition of the first message, 1 to ``partitions``.
        partitions: Number of partitions.
    """
    runs = min(MAX_RUNS, partitions, count)
    chosen: list[int] = []
    for run in range(1, runs + 1):
        # This run ends at message ceil(run * count / runs).
        chosen += [(first + run - 2) % partitions + 1] * (-(-run * count // runs) - len(chosen))
    return chosen


def outside_text(partition: int, partitions: int) -> str:
    return f"{partition} is not a partition of this queue (1 to {partitions})"


def partition_error(partition: int, partitions: int) -> str | None:
    if partition < 1:
        return f"{partition} is less than minimum value 1"
    if partition > partitions:
        return f"{partition} is greater than maximum value {partitions}"
    return None


def check_partitions(numbers: Iterable[int], partitions: int) -> None:
    checked = {f"partitions.{number}": partition_error(number, partitions) for number in numbers}
    if errors := {field: error for field, error in checked.items() if error is not None}:
        raise InvalidRequest(errors)
