"""Ordered queues: messages of one key are given out in the order of their ids, and to one caller at a time.

A key is **busy** while a message of it is outstanding: claimed, or to be given again. That is in the state. A message
**waits** until its first delivery. The log does not know which messages wait: each process finds that out by reading,
and remembers it (:class:`Waiting`). A message is given to a caller if nothing of its key is claimed, and each earlier
message of the key that is not done is given to this caller by the same entry (:class:`OrderCheck`).

This is exact because a process reads only below the horizon, where no further message can appear.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from heapq import merge, nsmallest
from itertools import islice

import msgspec

from queuey.claims.state import State
from queuey.ids import FIRST, Position
from queuey.messages import Message
from queuey.partitions import key_digest

MOST_WAITING = 20_000
"""Max waiting messages of a partition in a process's memory. It reads no further until some of them are delivered."""


def key_of(message: Message) -> int:
    """Returns the digest of a message's key. Messages without a key share one."""
    meta = message.meta
    # 0 stands for no digest.
    return key_digest("" if meta is None else meta.key or "") or 1


class Waiting:
    """The messages of a partition that were not delivered yet, as far as one process has read.

    Everything above the cursor and below ``front`` is in the state, or is here, or is gone.
    """

    __slots__ = ("_by_key", "_keys", "front")

    def __init__(self) -> None:
        self.front: Position = FIRST
        self._keys: OrderedDict[Position, int] = OrderedDict()
        """Ascending. Some may have been delivered since."""
        self._by_key: dict[int, deque[Position]] = {}
        """Ascending for each key. Some may not be in ``_keys`` any more."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, position: Position, key: int) -> None:
        """Adds a message above all others."""
        self._keys[position] = key
        self._by_key.setdefault(key, deque()).append(position)

    def drop(self, positions: Collection[Position]) -> None:
        """Removes messages that are gone."""
        for position in positions:
            self._keys.pop(position, None)

    def sweep(self, state: State) -> None:
        """Removes all that were delivered or are done."""
        self.drop([position for position in self._keys if state.is_known(position)])
        for key in list(self._by_key):
            self._first(key, state)

    def of(self, key: int, state: State) -> Iterator[Position]:
        """Yields the waiting messages of a key, ascending."""
        there = self._keys
        return (one for one in self._by_key.get(key, ()) if one in there and not state.is_known(one))

    def count(self, key: int) -> int:
        return len(self._by_key.get(key, ()))

    def ascending(self, state: State) -> Iterator[Position]:
        """Yields all waiting messages, ascending; removes leading ones that were delivered or are done."""
        while self._keys and state.is_known(next(iter(self._keys))):
            position, key = self._keys.popitem(last=False)
            # A key that never rests is never chosen here, and would remember all that others deliver.
            there = self._by_key.get(key, deque())
            while there and there[0] <= position:
                there.popleft()
            if not there:
                self._by_key.pop(key, None)
        return (one for one in self._keys if not state.is_known(one))

    def choose(self, state: State, free: Callable[[int], int], most: int) -> list[Position]:
        """Returns the first ``most`` messages that may be delivered now, ascending.

        Args:
            state: After the last entry.
            free: Returns how many messages of a key the next entry may give.
            most: How many.
        """
        of_keys = {key: there for key in self._by_key if (there := free(key)) > 0}
        firsts = ((first, key) for key in of_keys if (first := self._first(key, state)) is not None)
        runs = (islice(self.of(key, state), min(most, of_keys[key])) for _, key in nsmallest(most, firsts))
        return list(islice(merge(*runs), most))

    def _first(self, key: int, state: State) -> Position | None:
        """Returns the first waiting message of a key, and forgets those before it."""
        there = self._by_key[key]
        while there:
            if there[0] in self._keys and not state.is_known(there[0]):
                return there[0]
            self._keys.pop(there.popleft(), None)
        del self._by_key[key]
        return None


def freed_by(state: State, done: Collection[Position]) -> set[int]:
    """Returns the busy keys of which nothing but ``done`` is outstanding."""
    left: defaultdict[int, set[Position]] = defaultdict(set)
    for position in done:
        claim = state.outstanding.get(position)
        if claim is not None and claim.key:
            left[claim.key].add(position)
    return {key for key, positions in left.items() if len(positions) == len(state.busy[key])}


def free_in_order(state: State, freed: Collection[int], of_a_key: int, key: int) -> int:
    """Returns how many messages of a key the next entry can give to one caller.

    Args:
        state: After the last entry.
        freed: Busy keys of which it may give further messages.
        of_a_key: Max messages of one key.
        key: The digest.
    """
    return of_a_key if key not in state.busy or key in freed else 0


def ended_in_order(state: State, expired: int, of_a_key: int, most: int) -> list[Position]:
    """Returns messages whose claims have ended and that may be given again, ascending: nothing before them is claimed.

    Args:
        state: After the last entry.
        expired: Claims with an expiry below this are over (milliseconds since 1970).
        of_a_key: Max messages of one key.
        most: Max messages.
    """
    found: list[Position] = []
    claimed: dict[int, bool] = {}
    for position in sorted(state.ended(expired, len(state.outstanding))):
        key = state.outstanding[position].key
        there = state.busy.get(key, [])
        if key not in claimed:
            claimed[key] = not all(state.has_ended(one, expired) for one in there)
        if not claimed[key] and bisect_left(there, position) < of_a_key:
            found.append(position)
            if len(found) >= most:
                break
    return found


def has_another(
    state: State, position: Position, is_done: Callable[[Position], bool], is_free: Callable[[Position], bool]
) -> bool:
    """Returns whether another caller has a message of the same key, as it may when the claim has expired.

    Args:
        state: After the last entry.
        position: An outstanding message.
        is_done: Tells if the next entry makes a message done.
        is_free: Tells if an outstanding message is not claimed, nor claimed by the entry.
    """
    outstanding = state.outstanding
    claim = outstanding[position]
    return any(
        (other.number, other.secret) != (claim.number, claim.secret) and not is_free(one)
        for one in state.busy.get(claim.key, ())
        if one != position and not is_done(one)
        for other in [outstanding[one]]
    )


class _Turn(msgspec.Struct):
    """A key in an entry.

    Attributes:
        pending: Its messages that are not done, ascending, after ``next``.
        next: The next one that may be given; None: none.
        caller: Gets them; None: no caller has got one yet.
    """

    pending: Iterator[Position]
    next: Position | None
    caller: int | None = None


class OrderCheck:
    """Decides which messages one entry gives to whom.

    Args:
        state: After the last entry.
        waiting: The messages that wait.
        is_done: Tells if the entry makes a message done.
        is_free: Tells if an outstanding message is not claimed, nor claimed by the entry.
    """

    __slots__ = ("_is_done", "_is_free", "_state", "_turns", "_waiting")

    def __init__(
        self,
        state: State,
        waiting: Waiting,
        is_done: Callable[[Position], bool],
        is_free: Callable[[Position], bool],
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._is_done = is_done
        self._is_free = is_free
        self._turns: dict[int, _Turn] = {}

    def aside(self) -> OrderCheck:
        """Returns a check for a caller that is only shown messages: it changes nothing for the others."""
        check = OrderCheck(self._state, self._waiting, self._is_done, self._is_free)
        check._turns = {key: _Turn(iter(()), None) for key, turn in self._turns.items() if turn.caller is not None}
        return check

    def allows(self, caller: int, message: Message) -> bool:
        """Returns whether a caller may get a message, which then counts as given. Callers come one after another."""
        key = key_of(message)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = self._begin(key)
        if turn.next != message.position or turn.caller not in {None, caller}:
            return False
        turn.caller = caller
        turn.next = next(turn.pending, None)
        return True

    def _begin(self, key: int) -> _Turn:
        busy = [position for position in self._state.busy.get(key, ()) if not self._is_done(position)]
        if not all(map(self._is_free, busy)):
            return _Turn(iter(()), None)
        waiting = (position for position in self._waiting.of(key, self._state) if not self._is_done(position))
        pending = merge(busy, waiting)
        return _Turn(pending, next(pending, None))
