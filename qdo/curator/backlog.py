"""Decides which node of a queue is taken next. Pure."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection

from qdo.curator.nodes import Child, RecipeNodes

MAX_BLOCKED = 1000
"""Max nodes of other consumers whose locks are watched; further nodes are read again with the next list."""
RECHECK_INTERVAL = 10.0
"""Interval after which the further nodes are read again, in seconds."""
PAUSE_RATIO = 4
"""Ratio of the pause after a listing to its duration."""
REFRESH_RATIO = 100
"""Ratio of the listed nodes to the nodes taken before the queue is listed again."""
MS_PER_SECOND = 1000


class NodeBacklog:
    """The listed nodes, in order, without nodes that cannot be taken now.

    A queue is listed again only if it has changed and no node of the last list can be taken. If new nodes may come
    first, it is also listed again after ``refresh`` nodes. Listings take at most a fifth of the time.

    A taken node is left out of new lists until it is dropped or put back. So are nodes that are set aside or blocked.

    ``now`` is a time of a monotonic clock in seconds, ``epoch`` is in ms since 1970.

    Args:
        names: The names of the recipe.
        refresh: Number of nodes that are taken before the queue is listed again. 0 means a hundredth of the last list,
            None that new nodes never come first.
    """

    def __init__(self, names: RecipeNodes, refresh: int | None) -> None:
        self._names = names
        self._refresh = refresh
        self._heap: list[tuple[tuple[int, ...], Child]] = []
        self._held: set[str] = set()
        self._bad: set[str] = set()
        self._blocked: dict[str, Child] = {}
        self._foreign: frozenset[str] = frozenset()
        self._stale = True
        self._begun = 0
        self._listed = 0
        self._not_before = 0.0

    def mark_stale(self) -> None:
        self._stale = True

    def seconds_until_listing(self, now: float, epoch: int) -> float | None:
        """Returns the seconds until the queue is to be listed, 0 or less if now, or None if no list is needed."""
        if not self._stale:
            return None
        if self.seconds_until_due(epoch) == 0 and (
            self._refresh is None or self._begun < (self._refresh or self._listed // REFRESH_RATIO + 1)
        ):
            return None
        return self._not_before - now

    def begin_listing(self) -> None:
        self._stale = False

    def replace_list(self, children: Collection[str], began: float, ended: float) -> frozenset[str]:
        nodes, foreign = [], set()
        for name in children:
            child = self._names.parse(name)
            if child is None:
                foreign.add(name)
            else:
                nodes.append(child)
        names = {child.name for child in nodes}
        self._bad &= names
        self._blocked = {name: child for name, child in self._blocked.items() if name in names}
        aside = self._held | self._bad | self._blocked.keys()
        self._heap = [(child.rank(), child) for child in nodes if child.name not in aside]
        heapq.heapify(self._heap)
        self._begun, self._listed = 0, len(nodes)
        self._not_before = ended + PAUSE_RATIO * (ended - began)
        new = frozenset(foreign - self._foreign)
        self._foreign = frozenset(foreign)
        return new

    def seconds_until_due(self, epoch: int) -> float | None:
        return max(0, self._heap[0][1].epoch - epoch) / MS_PER_SECOND if self._heap else None

    def take(self, epoch: int) -> Child | None:
        if self.seconds_until_due(epoch) != 0:
            return None
        _, child = heapq.heappop(self._heap)
        self._held.add(child.name)
        self._begun += 1
        return child

    def put_back(self, child: Child) -> None:
        self._held.discard(child.name)
        self._blocked.pop(child.name, None)
        heapq.heappush(self._heap, (child.rank(), child))

    def drop(self, child: Child) -> None:
        self._held.discard(child.name)

    def set_aside(self, child: Child) -> None:
        """Leaves a node in hand out of this and all later lists."""
        self._held.discard(child.name)
        self._bad.add(child.name)

    def block(self, child: Child, now: float) -> bool:
        """Marks a node as locked by another consumer.

        At the limit of watched locks returns False, and has the queue listed again after ``RECHECK_INTERVAL`` seconds.
        """
        self._held.discard(child.name)
        if len(self._blocked) >= MAX_BLOCKED:
            self._stale = True
            self._not_before = max(self._not_before, now + RECHECK_INTERVAL)
            return False
        self._blocked[child.name] = child
        return True

    def hold(self, child: Child) -> bool:
        """Marks a blocked node as in hand; returns False if it is not blocked any more."""
        if self._blocked.pop(child.name, None) is None:
            return False
        self._held.add(child.name)
        return True

    def forget_watches(self) -> None:
        self._stale = True
        for name in list(self._blocked):
            self.unblock(name)

    def unblock(self, name: str) -> None:
        child = self._blocked.pop(name, None)
        if child is not None:
            heapq.heappush(self._heap, (child.rank(), child))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
