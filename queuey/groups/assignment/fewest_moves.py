"""Fewest moves: exchanges that leave each member as many partitions, but more of those that it had before.

A distribution can be even and still move more than it must: a member gave partitions of one pool and got some of
another, where it might have kept its own. Such a detour shows as a ring: along it each member gives one partition of a
pool to the next, and in sum fewer partitions are away from where they were. A ring may also include two members whose
loads differ by one: they exchange their loads. When no such ring is left, no even distribution moves less: these are
the cycles of negative cost in a flow, where a move costs one (Klein, "A primal method for minimal cost flows", 1967).

With one pool there is nothing to save: pouring it keeps what can be kept.
"""

from __future__ import annotations

from typing import Any

from queuey.groups.assignment.partition_pools import PoolShares

EFFORT = 1_000_000
"""Max steps of the search, about half a second of work. Only large groups in which nearly every member subscribes to
something else get there: they are as even as can be, but some partitions may move that could have stayed.
"""


def undo_needless_moves(shares: PoolShares[Any], effort: int = EFFORT) -> None:
    search = _Search(shares, effort)
    while rings := search.rings():
        for ring in rings:
            search.turn(ring)


class _Search:
    """Finds rings that save moves, as the Bellman-Ford algorithm finds cycles of negative length.

    The nodes of the graph are numbers: the members, then the pools, then the swaps, one for each load, between members
    with one less and members with that load.
    """

    def __init__(self, shares: PoolShares[Any], effort: int) -> None:
        self._shares = shares
        self._effort = effort
        self._pools_at = len(shares.loads)
        self._swaps_at = len(shares.loads) + len(shares.pools)
        self._length: dict[int, int] = {}
        self._from: dict[int, int] = {}
        self._edge: dict[int, None] = {}
        self._gained: dict[int, list[int]] = {}
        self._by_load: dict[int, list[int]] = {}

    def turn(self, ring: list[int]) -> None:
        """Passes partitions on along a ring, one from each member to the next."""
        for at, place in enumerate(ring):
            if self._pools_at <= place < self._swaps_at:
                self._shares.move(place - self._pools_at, ring[at - 1], ring[(at + 1) % len(ring)])

    def rings(self) -> list[list[int]]:
        """Returns rings that have no place in common; none when nothing can be saved or the effort is spent.

        A ring lists places in the order in which partitions move, beginning anywhere.
        """
        self._begin()
        while self._edge and self._effort > 0:
            places, self._edge = list(self._edge), {}
            for place in places:
                if place < self._pools_at:
                    self._leave_member(place)
                elif place < self._swaps_at:
                    self._leave_pool(place)
                else:
                    self._reach(self._by_load.get(place - self._swaps_at, []), self._length[place], place)
            if rings := self._closed():
                return rings
        return []

    def _begin(self) -> None:
        """Starts from partitions that were taken from a member: only giving those back saves moves."""
        self._length, self._from, self._edge, self._gained, self._by_load = {}, {}, {}, {}, {}
        for number, pool in enumerate(self._shares.pools, self._pools_at):
            for member in pool.now:
                if pool.gained(member):
                    self._gained.setdefault(member, []).append(number)
            self._reach([member for member in pool.before if pool.lost(member)], -1, number)
        for member, load in enumerate(self._shares.loads):
            self._by_load.setdefault(load, []).append(member)
        self._effort -= len(self._shares.loads)

    def _reach(self, places: list[int], length: int, before: int) -> None:
        """Notes a way to some places if it is shorter than those that are known; without one, a place is at 0."""
        self._effort -= len(places)
        for place in places:
            if length < self._length.get(place, 0):
                self._length[place] = length
                self._from[place] = before
                self._edge[place] = None

    def _leave_member(self, member: int) -> None:
        """A member gives what it gained at no cost, what it had before at the cost of a move."""
        length = self._length[member]
        self._reach(self._gained.get(member, []), length, member)
        if length < -1:
            pools = self._shares.pools
            own = [number for number in self._shares.pools_of[member] if pools[number].now.get(member)]
            kept = [number + self._pools_at for number in own if not pools[number].gained(member)]
            self._reach(kept, length + 1, member)
        self._reach([self._swaps_at + self._shares.loads[member] + 1], length, member)

    def _leave_pool(self, place: int) -> None:
        """Giving a partition costs nothing; giving it to a member that lost one of the pool saves a move."""
        pool = self._shares.pools[place - self._pools_at]
        length = self._length[place]
        self._reach(pool.members, length, place)
        self._reach([member for member in pool.before if pool.lost(member)], length - 1, place)

    def _closed(self) -> list[list[int]]:
        """Returns the rings among the ways found so far."""
        rings = []
        seen: dict[int, int] = {}
        for start in self._from:
            place, way = start, []
            while place in self._from and place not in seen:
                seen[place] = start
                way.append(place)
                place = self._from[place]
            if seen.get(place) == start:
                rings.append(way[way.index(place) :][::-1])
        return rings
