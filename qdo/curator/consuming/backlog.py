"""Which node of a queue is taken next. Pure: knows names, and is told what happened."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection

from qdo.curator.names import Child, Names

MOST_BLOCKED = 1000
"""Nodes in the hands of others whose locks are watched at a time; further ones are looked at with the next list."""
RECHECK = 10.0
"""Seconds after which those are looked at."""
SHARE = 4
"""After a list that took a second, so many seconds pass before the next."""
STEPS = 100
"""A list is used for a hundredth of its nodes before changes are looked at, where new nodes may come first."""
MS = 1000


class Backlog:
    """The nodes that were listed, in order, without those that cannot be taken now.

    A queue is listed again only when something changed in it, and then when nothing is left of the last list that can
    be taken; where new nodes may come first, also after ``refresh`` nodes. Not more than a fifth of the time goes into
    lists.

    Args:
        names: Of the recipe.
        refresh: How many nodes are begun before changes are looked at. 0: a hundredth of what the last list had; None:
            new nodes never come first.
    """

    def __init__(self, names: Names, refresh: int | None) -> None:
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

    def changed(self) -> None:
        """Says that the queue is not as it was listed."""
        self._stale = True

    def listing_due(self, now: float, epoch: int) -> float | None:
        """Returns after how many seconds the queue is to be listed, at most 0: now; None: no list is needed.

        Args:
            now: Seconds of a clock that never goes back.
            epoch: ms since 1970.
        """
        if not self._stale:
            return None
        if self.due(epoch) == 0 and (
            self._refresh is None or self._begun < (self._refresh or self._listed // STEPS + 1)
        ):
            return None
        return self._not_before - now

    def listing(self) -> None:
        """Says that the queue is being listed: what changes from now on may be missing."""
        self._stale = False

    def listed(self, children: Collection[str], began: float, ended: float) -> frozenset[str]:
        """Takes a list over; returns the names that are none of the queue's and were not there before.

        Args:
            children: All names.
            began: When it was asked for, seconds.
            ended: When it was there.
        """
        found, foreign = [], set()
        for name in children:
            child = self._names.parse(name)
            if child is None:
                foreign.add(name)
            else:
                found.append(child)
        names = {child.name for child in found}
        self._bad &= names
        self._blocked = {name: child for name, child in self._blocked.items() if name in names}
        aside = self._held | self._bad | self._blocked.keys()
        self._heap = [(self._names.rank(child), child) for child in found if child.name not in aside]
        heapq.heapify(self._heap)
        self._begun, self._listed = 0, len(found)
        self._not_before = ended + SHARE * (ended - began)
        new = frozenset(foreign - self._foreign)
        self._foreign = frozenset(foreign)
        return new

    def due(self, epoch: int) -> float | None:
        """Returns the seconds until the next node may be taken, 0: now; None: there is none.

        Args:
            epoch: ms since 1970.
        """
        return max(0, self._heap[0][1].epoch - epoch) / MS if self._heap else None

    def take(self, epoch: int) -> Child | None:
        """Returns the next node, which is in hand from now on; None: there is none now."""
        if self.due(epoch) != 0:
            return None
        _, child = heapq.heappop(self._heap)
        self._held.add(child.name)
        self._begun += 1
        return child

    def put_back(self, child: Child) -> None:
        """Says that a node in hand was not handled and can be taken again."""
        self._held.discard(child.name)
        self._blocked.pop(child.name, None)
        heapq.heappush(self._heap, (self._names.rank(child), child))

    def drop(self, child: Child) -> None:
        """Says that a node in hand is gone."""
        self._held.discard(child.name)

    def set_aside(self, child: Child) -> None:
        """Says that a node in hand cannot be handled and is left where it is."""
        self._held.discard(child.name)
        self._bad.add(child.name)

    def block(self, child: Child, now: float) -> bool:
        """Says that a node in hand is somebody else's; returns False if too many are watched to watch this one too.

        Args:
            child: The node.
            now: Seconds of a clock that never goes back.
        """
        self._held.discard(child.name)
        if len(self._blocked) >= MOST_BLOCKED:
            self._stale = True
            self._not_before = max(self._not_before, now + RECHECK)
            return False
        self._blocked[child.name] = child
        return True

    def hold(self, child: Child) -> bool:
        """Says that a node thought to be somebody else's is in hand after all; returns False if it was taken again."""
        if self._blocked.pop(child.name, None) is None:
            return False
        self._held.add(child.name)
        return True

    def unblock(self, name: str) -> None:
        """Says that a node may be nobody's any more."""
        child = self._blocked.pop(name, None)
        if child is not None:
            heapq.heappush(self._heap, (self._names.rank(child), child))


def now_ms() -> int:
    """Returns the ms since 1970."""
    return time.time_ns() // 1_000_000
