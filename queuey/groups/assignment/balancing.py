"""Balancing: decides how many partitions of each pool a member is to have, so that the counts are as even as possible.

There are two steps. First each pool is spread evenly over the members that may have it (water filling). With one pool
this is all; with several, it does nearly all of the work. Then chains even out the rest: a member gives a partition of
one pool to a second member, which gives a partition of another pool to a third.

A distribution is optimal if neither a single move nor a chain of moves can bring a partition from a member to another
with at least two fewer (Harvey, Ladner, Lovász and Tamir, "Semi-matchings for bipartite graphs and load balancing",
2006).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuey.groups.assignment.partition_pools import Pool, PoolShares

_MAX_PASSES = 30
"""Max passes over all pools in the first step; the chains even out what remains."""


def balance(shares: PoolShares[Any]) -> None:
    """Chooses how many partitions of each pool a member is to have: changes ``Pool.now`` and the loads."""
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
