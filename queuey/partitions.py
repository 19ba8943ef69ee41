"""The choice of a message's partition. Partitions are numbered from 1."""

from __future__ import annotations

from hashlib import blake2b

MAX_PARTITIONS = 200
MOST_RUNS = 4


def by_key(key: str, partitions: int) -> int:
    """Returns the partition of a message key: 1 to ``partitions``, the same on every node and for ever.

    The hash is BLAKE2b-64 of the key's UTF-8 bytes, modulo the count; so a key keeps its partition until partitions
    are added.
    """
    return key_digest(key) % partitions + 1


def key_digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def spread(count: int, first: int, partitions: int) -> list[int]:
    """Returns the partitions of messages that are posted together and leave the choice.

    They go in at most ``MOST_RUNS`` runs of equal length to consecutive partitions: workers of several partitions share
    a batch, which is still written as a few batches of one partition each.

    Args:
        count: How many they are.
        first: The partition of the first, 1 to ``partitions``.
        partitions: How many there are.
    """
    runs = min(MOST_RUNS, partitions, count)
    chosen: list[int] = []
    for run in range(1, runs + 1):
        # The run has the messages up to the first one whose share is that of the next run.
        chosen += [(first + run - 2) % partitions + 1] * (-(-run * count // runs) - len(chosen))
    return chosen
