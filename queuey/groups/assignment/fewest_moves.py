"""Fewest moves: exchanges partitions so that members keep more of theirs, and the counts stay equally balanced.

A balanced distribution can move more partitions than necessary: a member gave away partitions of one pool and received
some of another, although it could have kept its own. Such a detour is a ring: each member gives a partition of a pool
to the next one, and afterwards fewer partitions have moved. A ring may also pass through two members with loads that
differ by one: they exchange their loads. Without such a ring, no balanced distribution has fewer moves: the rings are
the cycles of negative cost in a flow in which a move costs one (Klein, "A primal method for minimal cost flows", 1967).

With one pool there is nothing to save, because balancing a pool already keeps as many partitions as possible.
"""

from __future__ import annotations

from typing import Any

from queuey.groups.assignment.partition_pools import PoolShares

MAX_SEARCH_STEPS = 1_000_000
"""Max steps of the search, about half a second of work. Only large groups in which nearly every member subscribes to
different queues reach it. Their assignment is balanced, but may move more partitions than necessary.
"""


def undo_needless_moves(shares: PoolShares[Any], effort: int = MAX_SEARCH_STEPS) -> None:
    search = _Search(shares, effort)
    while rings := search.find_rings():
        for ring in rings:
            search.apply_ring(ring)


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
        self._frontier: dict[int, None] = {}
        self._gained: dict[int, list[int]] = {}
        self._by_load: dict[int, list[int]] = {}

    def apply_ring(self, ring: list[int]) -> None:
        for index, node in enumerate(ring):
            if self._pools_at <= node < self._swaps_at:
                self._shares.move(node - self._pools_at, ring[index - 1], ring[(index + 1) % len(ring)])

    def find_rings(self) -> list[list[int]]:
        """Returns rings without common nodes, or an empty list if no move can be saved or the effort is used up.

        A ring lists nodes in the order in which partitions move, starting at any of them.
        """
        self._begin_search()
        while self._frontier and self._effort > 0:
            nodes, self._frontier = list(self._frontier), {}
            for node in nodes:
                if node < self._pools_at:
                    self._add_edges_from_member(node)
                elif node < self._swaps_at:
                    self._add_edges_from_pool(node)
                else:
                    self._reach(self._by_load.get(node - self._swaps_at, []), self._length[node], node)
            if rings := self._find_cycles():
                return rings
        return []

    def _begin_search(self) -> None:
        """Starts at the pools of which members lost partitions: only giving those back saves moves."""
        self._length, self._from, self._frontier, self._gained, self._by_load = {}, {}, {}, {}, {}
        for number, pool in enumerate(self._shares.pools, self._pools_at):
            for member in pool.now:
                if pool.has_gained(member):
                    self._gained.setdefault(member, []).append(number)
            self._reach([member for member in pool.before if pool.has_lost(member)], -1, number)
        for member, load in enumerate(self._shares.loads):
            self._by_load.setdefault(load, []).append(member)
        self._effort -= len(self._shares.loads)

    def _reach(self, nodes: list[int], length: int, previous_node: int) -> None:
        """Records a path to some nodes if it is shorter than the known one. A node without a path has the length 0."""
        self._effort -= len(nodes)
        for node in nodes:
            if length < self._length.get(node, 0):
                self._length[node] = length
                self._from[node] = previous_node
                self._frontier[node] = None

    def _add_edges_from_member(self, member: int) -> None:
        """Adds edges from a member: giving a gained partition costs nothing, giving one that it kept costs a move.

        Kept partitions only from length -2 down, since otherwise nothing is saved; also an edge to the swap with the
        next load.
        """
        length = self._length[member]
        self._reach(self._gained.get(member, []), length, member)
        if length < -1:
            pools = self._shares.pools
            own = [number for number in self._shares.pools_of[member] if pools[number].now.get(member)]
            kept = [number + self._pools_at for number in own if not pools[number].has_gained(member)]
            self._reach(kept, length + 1, member)
        self._reach([self._swaps_at + self._shares.loads[member] + 1], length, member)

    def _add_edges_from_pool(self, node: int) -> None:
        """Adds edges from a pool: receiving costs nothing, and saves a move if the member lost one of the pool."""
        pool = self._shares.pools[node - self._pools_at]
        length = self._length[node]
        self._reach(pool.members, length, node)
        self._reach([member for member in pool.before if pool.has_lost(member)], length - 1, node)

    def _find_cycles(self) -> list[list[int]]:
        rings = []
        seen: dict[int, int] = {}
        for start in self._from:
            node, path = start, []
            while node in self._from and node not in seen:
                seen[node] = start
                path.append(node)
                node = self._from[node]
            if seen.get(node) == start:
                rings.append(path[path.index(node) :][::-1])
        return rings
