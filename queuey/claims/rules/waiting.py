"""The messages of a partition that wait for others of their keys, in a queue that keeps keys.

They are not in the log: each process reads them from the store, and remembers their positions and keys.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from heapq import merge, nsmallest
from itertools import islice

from queuey.claims.rules.partition_state import State
from queuey.model.ids import FIRST, Position

MAX_WAITING = 20_000
"""Max waiting messages of a partition in memory. With more, the process reads on only after deliveries."""


class Waiting:
    """The undelivered messages of a partition that this process has read.

    Each message above the cursor and below ``front`` is in the state, is in this object, or is gone.
    """

    __slots__ = ("_by_key", "_keys", "front")

    def __init__(self) -> None:
        self.front: Position = FIRST
        self._keys: OrderedDict[Position, int] = OrderedDict()
        """Key digests by position, ascending. Some messages may have been delivered since."""
        self._by_key: dict[int, deque[Position]] = {}
        """Positions of each key, ascending. Some may not be in ``_keys`` any more."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, position: Position, key: int) -> None:
        """Adds a message. Its position must be above all others."""
        self._keys[position] = key
        self._by_key.setdefault(key, deque()).append(position)

    def drop(self, positions: Collection[Position]) -> None:
        for position in positions:
            self._keys.pop(position, None)

    def clear(self) -> None:
        self.front = FIRST
        self._keys.clear()
        self._by_key.clear()

    def sweep(self, state: State) -> None:
        """Removes all messages that were delivered or are done by now."""
        self.drop([position for position in self._keys if state.is_known(position)])
        for key in list(self._by_key):
            self._trim_to_first(key, state)

    def iterate_key(self, key: int, state: State) -> Iterator[Position]:
        keys = self._keys
        return (position for position in self._by_key.get(key, ()) if position in keys and not state.is_known(position))

    def count(self, key: int) -> int:
        """Returns the number of waiting messages of a key, perhaps including some that were delivered since."""
        return len(self._by_key.get(key, ()))

    def iterate(self, state: State) -> Iterator[Position]:
        """Returns an iterator of all waiting messages, ascending; first removes leading delivered or done ones."""
        while self._keys and state.is_known(next(iter(self._keys))):
            position, key = self._keys.popitem(last=False)
            # `choose` skips busy keys, so the positions of a key that is always busy are trimmed here.
            positions = self._by_key.get(key, deque())
            while positions and positions[0] <= position:
                positions.popleft()
            if not positions:
                self._by_key.pop(key, None)
        return (position for position in self._keys if not state.is_known(position))

    def choose(self, state: State, free: Callable[[int], int], limit: int) -> list[Position]:
        """Returns the first messages that may be delivered now, ascending; removes delivered ones before them.

        Args:
            state: The state after the last entry.
            free: Returns how many messages of a key the next entry may deliver.
            limit: Max messages.
        """
        free_keys = {key: count for key in self._by_key if (count := free(key)) > 0}
        firsts = ((first, key) for key in free_keys if (first := self._trim_to_first(key, state)) is not None)
        runs = (islice(self.iterate_key(key, state), min(limit, free_keys[key])) for _, key in nsmallest(limit, firsts))
        return list(islice(merge(*runs), limit))

    def _trim_to_first(self, key: int, state: State) -> Position | None:
        """Removes a key's delivered or done messages before its first waiting one. Returns that, or None."""
        positions = self._by_key[key]
        while positions:
            if positions[0] in self._keys and not state.is_known(positions[0]):
                return positions[0]
            self._keys.pop(positions.popleft(), None)
        del self._by_key[key]
        return None
