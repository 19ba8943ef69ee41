"""Evening out: how many partitions of each pool a member is to have so that all have as equally many as can be.

Two steps. First each pool alone is spread evenly over the members that may have it, like water; this does nearly all of
the work, and all of it when there is one pool. What is left are chains: a member gives a partition of one pool to a
second member, which gives one of another pool to a third.

A distribution from which neither one partition nor a chain of them can go from a member to one that has two less or
fewer is the most even that there is (Harvey, Ladner, Lovász and Tamir, "Semi-matchings for bipartite graphs and load
balancing", 2006).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuey.groups.assignment.partition_pools import Pool, PoolShares

_SWEEPS = 30
"""Max times that all pools are poured; what is not even by then is left to the chains."""


def balance(shares: PoolShares[Any]) -> None:
    """Hands out free partitions and evens out what members have."""
    order = sorted(shares.pools, key=lambda pool: (len(pool.members), pool.members))
    for pool in order:
        _hand_out(pool, shares.loads)
    for _ in range(_SWEEPS):
        uneven = [pool for pool in order if _uneven(pool, shares.loads)]
        if not uneven:
            break
        for pool in uneven:
            _pour(pool, shares.loads)
    if len(shares.pools) > 1:
        _Chains(shares).settle()


def _hand_out(pool: Pool[Any], loads: list[int]) -> None:
    """Gives the free partitions of a pool to the members with the fewest, and takes none away."""
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


def _uneven(pool: Pool[Any], loads: list[int]) -> bool:
    """Returns whether one partition of the pool can go to a member that has two less or fewer."""
    highest = max((loads[member] for member, count in pool.now.items() if count), default=0)
    return highest - min(loads[member] for member in pool.members) > 1


def _pour(pool: Pool[Any], loads: list[int]) -> None:
    """Evens out one pool as if all other partitions were fixed; of equally even ways it takes the nearest."""
    beside = {member: loads[member] - pool.now.get(member, 0) for member in pool.members}
    height, rest = fill(list(beside.values()), sum(pool.now.values()))
    wanted = {member: max(0, height - below) for member, below in beside.items()}
    candidates = [member for member, below in beside.items() if below <= height]
    # One more for members that had it before, then for members that have it now: theirs need not move.
    candidates.sort(
        key=lambda member: (
            pool.before.get(member, 0) <= wanted[member],
            pool.now.get(member, 0) <= wanted[member],
            member,
        )
    )
    for member in candidates[:rest]:
        wanted[member] += 1
    for member, count in wanted.items():
        loads[member] = beside[member] + count
    pool.now = {member: count for member, count in wanted.items() if count}


def fill(floors: list[int], amount: int) -> tuple[int, int]:
    """Returns how high so much water stands over floors of different heights.

    Returns:
        The height that all lower floors are filled up to, and how many of those up to that height get one more.
    """
    floors = sorted(floors)
    below = 0
    for count, lowest_commit in enumerate(floors, 1):
        below += lowest_commit
        height, rest = divmod(amount + below, count)
        if count == len(floors) or height < floors[count]:
            break
    return height, rest


class _Chains:
    """Moves partitions along chains, beginning at the members with the most.

    Members that reach no member with two less are set aside together with all members that they reach: their partitions
    stay among them, so no later chain goes through them. Chains of one length are found in one search and carried out
    side by side, as in Dinitz' algorithm for flows.
    """

    def __init__(self, shares: PoolShares[Any]) -> None:
        self._pools = shares.pools
        self._loads = shares.loads
        self._shares = shares
        self._left = dict.fromkeys(range(len(shares.loads)))
        self._depth: dict[int, int] = {}
        self._next: dict[int, list[int]] = {}
        self._takers: dict[int, list[int]] = {}

    def settle(self) -> None:
        """Carries out chains until none makes the loads more even."""
        while self._left:
            top = max(self._loads[member] for member in self._left)
            givers = [member for member in self._left if self._loads[member] == top]
            if self._search(givers, top - 2):
                for giver in givers:
                    self._advance(giver, top - 2)
            else:
                for member in self._depth:
                    del self._left[member]

    def _search(self, givers: Iterable[int], low: int) -> bool:
        """Finds, breadth first, how far each member is from the givers, up to the nearest with a low load.

        Leaves the ways for :meth:`_advance`: for each member the pools through which others are reached from members
        of its depth, for each pool the members that are one step further.
        """
        self._depth = dict.fromkeys(givers, 0)
        self._next, self._takers = {}, {}
        edge = list(self._depth)
        found = False
        while edge and not found:
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
                    if member in self._left and self._depth.setdefault(member, depth) == depth:
                        if member not in self._next:
                            self._next[member] = []
                            edge.append(member)
                        self._takers[number].append(member)
                        found = found or self._loads[member] <= low
        return found

    def _advance(self, giver: int, low: int) -> None:
        """Carries out one chain from a giver to a member with a low load, if there is one among the ways."""
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
                # A dead end: other ways to this member need not be tried.
                member, number = chain.pop()
                self._takers[number].pop()
            else:
                return
        for (holder, number), taker in zip(chain, [*(holder for holder, _ in chain[1:]), member], strict=True):
            self._shares.move(number, holder, taker)
