"""How far a partition is handled whose messages end in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable


class ContiguousOffset:
    """Messages in their order, some of them done.

    Only messages before every unfinished one may be recorded as processed, so that nothing is lost when the
    partition goes to another worker.
    """

    __slots__ = ("_done", "_order", "end")

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        self._done: set[str] = set()
        self.end: str | None = None
        """The last message of the part that is done without a gap; None: not even the first."""

    def __len__(self) -> int:
        """Messages from the first unfinished one on."""
        return len(self._order)

    @property
    def unfinished(self) -> int:
        """Messages among those that are not done."""
        return len(self._order) - len(self._done)

    def add(self, ids: Iterable[str]) -> None:
        self._order.extend(ids)

    def done(self, identifier: str) -> None:
        order, done = self._order, self._done
        done.add(identifier)
        while order and order[0] in done:
            self.end = order.popleft()
            done.remove(self.end)

    def gaps(self, barriers: Collection[str]) -> set[str]:
        """Returns the unfinished messages that keep finished ones from being recorded.

        Barriers are messages that will not be finished: nothing behind the first of them can be recorded.
        """
        left = len(self._done)
        found: set[str] = set()
        between: list[str] = []
        for identifier in self._order:
            if not left or identifier in barriers:
                break
            if identifier in self._done:
                left -= 1
                found.update(between)
                between.clear()
            else:
                between.append(identifier)
        return found
