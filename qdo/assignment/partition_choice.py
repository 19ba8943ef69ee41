"""Dealing: from how many partitions of each pool a member is to have, to which ones."""

from __future__ import annotations

from collections.abc import Iterator

from qdo.assignment.partition_pools import Pool
from qdo.partitions import Partition, Queue


def choose_partitions(pool: Pool, names: list[str]) -> Iterator[tuple[Partition, str]]:
    """Chooses the member for each partition of a pool.

    Each member keeps partitions that it had, up to its number. The rest are dealt like cards, so that neighbours of
    one queue go to different members.
    """
    spare = list(pool.free)
    for member, kept in pool.kept.items():
        name, keep = names[member], pool.now.get(member, 0)
        ranked = kept if keep >= len(kept) else _from_most_queues(kept)
        spare += ranked[keep:]
        for partition in ranked[:keep]:
            yield partition, name
    spare.sort()
    gainers = [member for member in sorted(pool.now) if pool.gained(member)]
    wants = [(member, pool.now[member] - pool.before.get(member, 0)) for member in gainers]
    at = 0
    while wants:
        for member, _ in wants:
            yield spare[at], names[member]
            at += 1
        wants = [(member, count - 1) for member, count in wants if count > 1]


def _from_most_queues(partitions: list[Partition]) -> list[Partition]:
    """Returns partitions in such an order that the last are from queues of which there are several."""
    seen: dict[Queue, int] = {}
    ranked = []
    for partition in partitions:
        rank = seen[partition.queue] = seen.get(partition.queue, 0) + 1
        ranked.append((rank, partition))
    return [partition for _, partition in sorted(ranked)]
