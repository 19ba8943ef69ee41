"""Pools of partitions, on which an assignment is computed: a pool has all partitions that the same members may have.

The partitions of a pool are interchangeable, so balancing works with counts. If all members subscribe to the same
queues, there is a single pool. At the end each member's count is turned into partitions of the pool.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar


class _Sortable(Hashable, Protocol):
    def __lt__(self, other: Self, /) -> bool: ...


M = TypeVar("M", bound=_Sortable)
"""A member."""
Q = TypeVar("Q", bound=_Sortable)
"""A queue."""
_NOBODY, _RESERVED = -1, -2


@dataclass(slots=True)
class Pool(Generic[Q]):
    """Partitions that the same members may have. Members are numbers: indices in the sorted list of their ids.

    Attributes:
        members: The members that may have partitions of the pool, in order.
        kept: Partitions that each member had before, in order.
        free: Partitions that no member had before, in order.
        before: Number of partitions that each member had before, if any.
        now: Number of partitions that each member is to have.
    """

    members: list[int]
    kept: dict[int, list[tuple[Q, int]]] = field(default_factory=dict)
    free: list[tuple[Q, int]] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)
    now: dict[int, int] = field(default_factory=dict)

    def has_gained(self, member: int) -> bool:
        return self.now.get(member, 0) > self.before.get(member, 0)

    def has_lost(self, member: int) -> bool:
        return self.now.get(member, 0) < self.before.get(member, 0)


@dataclass(slots=True)
class PoolShares(Generic[Q]):
    """The pools of a group, and the number of partitions of each member in all pools.

    Attributes:
        pools: The pools, in the order of their first queues.
        loads: Number of partitions of each member.
        pools_of: For each member, the numbers of the pools that it may have partitions of.
    """

    pools: list[Pool[Q]]
    loads: list[int]
    pools_of: list[list[int]]

    def move(self, pool_number: int, giver: int, taker: int) -> None:
        """Moves a partition of a pool to another member, in the counts only: which one moves is chosen later."""
        now = self.pools[pool_number].now
        now[giver] -= 1
        now[taker] = now.get(taker, 0) + 1
        self.loads[giver] -= 1
        self.loads[taker] += 1


def make_pools(
    names: list[M],
    members: Mapping[M, Mapping[Q, int]],
    previous: Iterable[tuple[tuple[Q, int], M]],
    reserved: Container[M],
) -> PoolShares[Q]:
    """Groups the partitions into pools.

    Each member starts with the partitions that it had before; reserved partitions are left out.
    """
    counts, followers = _find_followers(names, members)
    queues = sorted(counts)
    owners = _find_previous_owners(names, counts, previous, reserved)
    pools: dict[tuple[int, ...], Pool[Q]] = {}
    for queue in queues:
        pool = pools.get(followers[queue].key)
        if pool is None:
            pool = pools[followers[queue].key] = Pool(sorted(followers[queue].members))
        _add_partitions(pool, queue, owners[queue])
    pools_of: list[list[int]] = [[] for _ in names]
    loads = [0] * len(names)
    for number, pool in enumerate(pools.values()):
        pool.before = {member: len(kept) for member, kept in pool.kept.items()}
        pool.now = dict(pool.before)
        for member in pool.members:
            pools_of[member].append(number)
        for member, count in pool.now.items():
            loads[member] += count
    return PoolShares(list(pools.values()), loads, pools_of)


@dataclass(slots=True)
class _Followers:
    """The members that subscribe to a queue.

    Attributes:
        key: Numbers of the sets of members with equal subscriptions. Queues with the same subscribers have equal keys.
        members: The members, set by set.
    """

    key: tuple[int, ...] = ()
    members: list[int] = field(default_factory=list)


def _find_followers(names: list[M], members: Mapping[M, Mapping[Q, int]]) -> tuple[dict[Q, int], dict[Q, _Followers]]:
    """Returns the number of partitions and the subscribers of each queue.

    For speed, members with equal subscriptions are handled as one; mappings that are the same object are not compared.
    """
    alike: dict[frozenset[Q], list[int]] = {}
    peers_by_id: dict[int, list[int]] = {}
    counts: dict[Q, int] = {}
    for number, name in enumerate(names):
        subscription = members[name]
        if (peers := peers_by_id.get(id(subscription))) is None:
            peers = peers_by_id[id(subscription)] = alike.setdefault(frozenset(subscription), [])
            for queue, count in subscription.items():
                if counts.get(queue, -1) < count:
                    counts[queue] = count
        peers.append(number)
    sets_of: dict[Q, list[int]] = {}
    for number, subscribed in enumerate(alike):
        for queue in subscribed:
            sets_of.setdefault(queue, []).append(number)
    return counts, _group_followers(sets_of, list(alike.values()))


def _group_followers(sets_of: dict[Q, list[int]], alike: list[list[int]]) -> dict[Q, _Followers]:
    by_key: dict[tuple[int, ...], _Followers] = {}
    followers = {}
    for queue, numbers in sets_of.items():
        key = tuple(numbers)
        if key not in by_key:
            by_key[key] = _Followers(key, [member for number in numbers for member in alike[number]])
        followers[queue] = by_key[key]
    return followers


def _find_previous_owners(
    names: list[M], counts: Mapping[Q, int], previous: Iterable[tuple[tuple[Q, int], M]], reserved: Container[M]
) -> dict[Q, list[tuple[int, tuple[Q, int] | None]]]:
    """Returns for each queue a list of the partitions' previous owners.

    An item has the member's number, ``_NOBODY`` or ``_RESERVED``, and the partition if it was in ``previous``.
    """
    numbers = {name: number for number, name in enumerate(names)}
    owners: dict[Q, list[tuple[int, tuple[Q, int] | None]]]
    owners = {queue: [(_NOBODY, None)] * count for queue, count in counts.items()}
    for partition, name in previous:
        queue, number = partition
        of_queue = owners.get(queue)
        if of_queue is None or number > len(of_queue):
            continue
        owner = numbers.get(name, _NOBODY)
        if owner == _NOBODY and name in reserved:
            owner = _RESERVED
        of_queue[number - 1] = (owner, partition)
    return owners


def _add_partitions(pool: Pool[Q], queue: Q, owners: list[tuple[int, tuple[Q, int] | None]]) -> None:
    allowed = set(pool.members)
    for number, (owner, pair) in enumerate(owners, 1):
        if owner == _RESERVED:
            continue
        partition = pair or (queue, number)
        if owner in allowed:
            pool.kept.setdefault(owner, []).append(partition)
        else:
            pool.free.append(partition)


def choose_partitions(pool: Pool[Q], names: list[M]) -> Iterator[tuple[tuple[Q, int], M]]:
    """Chooses the member for each partition of a pool.

    Each member keeps partitions that it had, up to its new count. The others are assigned round robin, so that adjacent
    partitions of a queue go to different members.
    """
    spare = list(pool.free)
    for member, kept in pool.kept.items():
        name, keep = names[member], pool.now.get(member, 0)
        ranked = kept if keep >= len(kept) else _interleave_queues(kept)
        spare += ranked[keep:]
        for partition in ranked[:keep]:
            yield partition, name
    spare.sort()
    gainers = [member for member in sorted(pool.now) if pool.has_gained(member)]
    wants = [(member, pool.now[member] - pool.before.get(member, 0)) for member in gainers]
    index = 0
    while wants:
        for member, _ in wants:
            yield spare[index], names[member]
            index += 1
        wants = [(member, count - 1) for member, count in wants if count > 1]


def _interleave_queues(partitions: list[tuple[Q, int]]) -> list[tuple[Q, int]]:
    """Sorts a member's partitions: the first of each queue, then the second of each, and so on."""
    seen: dict[Q, int] = {}
    ranked = []
    for partition in partitions:
        rank = seen[partition[0]] = seen.get(partition[0], 0) + 1
        ranked.append((rank, partition))
    return [partition for _, partition in sorted(ranked)]
