"""Assigns partitions to members: a pure function of the members, their queues, and the previous assignment.

An assignment is

* balanced: if two members' partition counts differ by two or more, no move of a partition reduces the difference, and
  no chain of moves does (one partition moves from the first member to the second, another from the second to the
  third). If all members subscribe to the same queues, the counts differ by at most one;
* sticky: no partition moves in a balanced assignment. If all members subscribe to the same queues, no other assignment
  that is as balanced moves fewer partitions;
* deterministic: it does not depend on the process or on the order of members and partitions.

Members and queues may be any values that can be hashed and sorted. A partition is a pair: its queue, and its number
from 1 on.

The assignment is computed on pools: a pool has all partitions that the same members may have. They are interchangeable,
so :func:`balance` works with counts; if all members subscribe to the same queues, there is a single pool. At the end
each member's count is turned into partitions of the pool.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar


class _Sortable(Hashable, Protocol):
    def __lt__(self, other: Self, /) -> bool: ...


M = TypeVar("M", bound=_Sortable)
Q = TypeVar("Q", bound=_Sortable)
_NOBODY, _RESERVED = -1, -2
_MAX_PASSES = 30
"""Max passes over all pools in the first step; the chains even out what remains."""


def assign(
    members: Mapping[M, Mapping[Q, int]], previous: Iterable[tuple[tuple[Q, int], M]], *, reserved: Container[M] = ()
) -> dict[tuple[Q, int], M]:
    """Returns the owner that each partition is to have.

    Args:
        members: The queues of each member, with the number of partitions that the member sees.
        previous: The previous assignment, as pairs. Its members and partitions may no longer exist.
        reserved: Absent owners that keep their partitions. These partitions are neither returned nor balanced.
    """
    names = sorted(members)
    shares = make_pools(names, members, previous, reserved)
    balance(shares)
    return dict(pair for pool in shares.pools for pair in choose_partitions(pool, names))


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


def balance(shares: PoolShares[Any]) -> None:
    """Chooses how many partitions of each pool a member is to have: changes ``Pool.now`` and the loads.

    There are two steps. First each pool is spread evenly over the members that may have it (water filling). With one
    pool this is all; with several, it does nearly all of the work. Then chains even out the rest: a member gives a
    partition of one pool to a second member, which gives a partition of another pool to a third.

    A distribution is optimal if neither a single move nor a chain of moves can bring a partition from a member to
    another with at least two fewer (Harvey, Ladner, Lovász and Tamir, "Semi-matchings for bipartite graphs and load
    balancing", 2006).
    """
    order = sorted(shares.pools, key=lambda pool: (len(pool.members), pool.members))
    for pool in order:
        _hand_out_free(pool, shares.loads)
    for _ in range(_MAX_PASSES):
        uneven = [pool for pool in order if _is_uneven(pool, shares.loads)]
        if not uneven:
            break
        for pool in uneven:
            _balance_pool(pool, shares.loads)
    if len(shares.pools) > 1:
        _Chains(shares).settle()


def _hand_out_free(pool: Pool[Any], loads: list[int]) -> None:
    """Gives a pool's free partitions to the members with the fewest partitions in all pools. No partition moves."""
    if not pool.free:
        return
    height, rest = fill([loads[member] for member in pool.members], len(pool.free))
    for member in pool.members:
        more = height - loads[member]
        if more >= 0 and rest:
            more += 1
            rest -= 1
        if more > 0:
            pool.now[member] = pool.now.get(member, 0) + more
            loads[member] += more


def _is_uneven(pool: Pool[Any], loads: list[int]) -> bool:
    """Returns whether a member with partitions of the pool has at least two more than another member, in all pools."""
    highest = max((loads[member] for member, count in pool.now.items() if count), default=0)
    return highest - min(loads[member] for member in pool.members) > 1


def _balance_pool(pool: Pool[Any], loads: list[int]) -> None:
    """Spreads a pool evenly. Members that had more before get the rest first, so that fewer partitions move."""
    others = {member: loads[member] - pool.now.get(member, 0) for member in pool.members}
    height, rest = fill(list(others.values()), sum(pool.now.values()))
    counts = {member: max(0, height - below) for member, below in others.items()}
    candidates = [member for member, below in others.items() if below <= height]
    # Members that had more before, then members that have more now, get one more: those partitions need not move.
    candidates.sort(
        key=lambda member: (
            pool.before.get(member, 0) <= counts[member],
            pool.now.get(member, 0) <= counts[member],
            member,
        )
    )
    for member in candidates[:rest]:
        counts[member] += 1
    for member, count in counts.items():
        loads[member] = others[member] + count
    pool.now = {member: count for member, count in counts.items() if count}


def fill(floors: list[int], amount: int) -> tuple[int, int]:
    """Distributes ``amount`` units over ``floors`` so that the lowest floors are filled first (water filling).

    Returns:
        The height to which all lower floors are filled, and how many floors up to that height get one more unit.
    """
    floors = sorted(floors)
    below = 0
    for count, floor in enumerate(floors, 1):
        below += floor
        height, rest = divmod(amount + below, count)
        if count == len(floors) or height < floors[count]:
            break
    return height, rest


class _Chains:
    """Moves partitions along chains, starting from the members with the most partitions.

    If members reach no member with at least two fewer, they and all members that they reach are settled: no later chain
    goes through them. As in Dinitz' algorithm for flows, one search finds all chains of the shortest length, and they
    are carried out together.
    """

    def __init__(self, shares: PoolShares[Any]) -> None:
        self._pools = shares.pools
        self._loads = shares.loads
        self._shares = shares
        self._unsettled = dict.fromkeys(range(len(shares.loads)))
        self._depth: dict[int, int] = {}
        self._next: dict[int, list[int]] = {}
        self._takers: dict[int, list[int]] = {}

    def settle(self) -> None:
        """Moves partitions along chains until all members are settled.

        Begins with the members with the most partitions.
        """
        while self._unsettled:
            top = max(self._loads[member] for member in self._unsettled)
            givers = [member for member in self._unsettled if self._loads[member] == top]
            if self._find_distances(givers, top - 2):
                for giver in givers:
                    self._follow_chain(giver, top - 2)
            else:
                for member in self._depth:
                    del self._unsettled[member]

    def _find_distances(self, givers: Iterable[int], low: int) -> bool:
        """Finds, breadth first, members' distances from the givers, up to the nearest with at most ``low`` partitions.

        It records the edges for :meth:`_follow_chain`: for each member, the pools that lead one step further; for each
        pool, the members that are one step further.

        Returns:
            Whether such a member was reached.
        """
        self._depth = dict.fromkeys(givers, 0)
        self._next, self._takers = {}, {}
        edge = list(self._depth)
        is_reached = False
        while edge and not is_reached:
            depth = self._depth[edge[0]] + 1
            opened: dict[int, None] = {}
            for member in edge:
                ways = [number for number in self._shares.pools_of[member] if self._pools[number].now.get(member)]
                self._next[member] = [number for number in ways if number in opened or number not in self._takers]
                opened.update(dict.fromkeys(self._next[member]))
                self._takers.update({number: [] for number in self._next[member] if number not in self._takers})
            edge = []
            for number in opened:
                for member in self._pools[number].members:
                    if member in self._unsettled and self._depth.setdefault(member, depth) == depth:
                        if member not in self._next:
                            self._next[member] = []
                            edge.append(member)
                        self._takers[number].append(member)
                        is_reached = is_reached or self._loads[member] <= low
        return is_reached

    def _follow_chain(self, giver: int, low: int) -> None:
        """Moves a partition from each member of a chain to the next, until one with at most ``low`` partitions.

        Does nothing if earlier chains have used up all paths from ``giver``.
        """
        chain: list[tuple[int, int]] = []
        member = giver
        while self._loads[member] > low:
            ways = self._next[member]
            while ways and not (self._takers[ways[-1]] and self._pools[ways[-1]].now.get(member)):
                ways.pop()
            if ways:
                chain.append((member, ways[-1]))
                member = self._takers[ways[-1]][-1]
            elif chain:
                # A dead end: no other path to this member needs to be tried.
                member, number = chain.pop()
                self._takers[number].pop()
            else:
                return
        for (holder, number), taker in zip(chain, [*(holder for holder, _ in chain[1:]), member], strict=True):
            self._shares.move(number, holder, taker)
