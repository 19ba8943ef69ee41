"""Ordered queues: messages of one key are delivered in the order of their ids, and to one caller at a time.

A key is **busy** while one of its messages is outstanding: claimed, or to be delivered again. The state has the busy
keys. A message **waits** until its first delivery. Waiting messages are not in the log: each process reads them from
the store and keeps them in memory (:class:`Waiting`). A message is delivered to a caller if no message of its key is
claimed, and the same entry delivers each earlier message of the key that is not done to the same caller
(:class:`OrderCheck`).

This is exact because a process reads only below the horizon, where no further message can appear.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge, nsmallest
from itertools import islice

import msgspec

from queuey.claims.rules.partition_state import State
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Message
from queuey.model.partitions import key_digest

MAX_WAITING = 20_000
"""Max waiting messages of a partition in memory. With more, the process reads on only after deliveries."""


def compute_key_digest(message: Message) -> int:
    """Returns the digest of a message's key. Messages without a key share one."""
    meta = message.meta
    # 0 stands for no digest.
    return key_digest("" if meta is None else meta.key or "") or 1


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


def find_freed_keys(state: State, done: Collection[Position]) -> set[int]:
    """Returns the busy keys that would be free if these messages were done. Changes nothing."""
    done_by_key: defaultdict[int, set[Position]] = defaultdict(set)
    for position in done:
        claim = state.outstanding.get(position)
        if claim is not None and claim.key:
            done_by_key[claim.key].add(position)
    return {key for key, positions in done_by_key.items() if len(positions) == len(state.busy[key])}


def count_deliverable_in_order(state: State, freed: Collection[int], max_per_key: int, key: int) -> int:
    """Returns how many messages of a key the next entry can deliver to one caller.

    Args:
        state: The state after the last entry.
        freed: Digests of busy keys that the entry frees.
        max_per_key: Max messages of one key.
        key: Digest of the key.
    """
    return max_per_key if key not in state.busy or key in freed else 0


def find_ended_in_order(state: State, expiry_limit: int, max_per_key: int, limit: int) -> list[Position]:
    """Returns messages that may be delivered again, ascending: no message of their key is claimed.

    Args:
        state: The state after the last entry.
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        max_per_key: Max messages of one key.
        limit: Max messages.
    """
    ended: list[Position] = []
    claimed: dict[int, bool] = {}
    for position in sorted(state.find_ended(expiry_limit, len(state.outstanding))):
        key = state.outstanding[position].key
        outstanding = state.busy.get(key, [])
        if key not in claimed:
            claimed[key] = not all(state.has_ended(other, expiry_limit) for other in outstanding)
        if not claimed[key] and bisect_left(outstanding, position) < max_per_key:
            ended.append(position)
            if len(ended) >= limit:
                break
    return ended


@dataclass(slots=True)
class KeyHolders:
    """The callers that have messages of each key, for one request: several may, once claims have expired.

    Attributes:
        state: The state after the last entry; None in a queue that is not ordered.
        is_done: Returns whether the next entry makes a message done.
        is_free: Returns whether an outstanding message is claimed neither now nor by the next entry.
        claims: Numbers and secrets of claims by key: a key's messages are read once, not for each receipt.
    """

    state: State | None
    is_done: Callable[[Position], bool]
    is_free: Callable[[Position], bool]
    claims: dict[int, set[tuple[int, int]]] = field(default_factory=dict)

    def has_another(self, position: Position) -> bool:
        """Returns whether another caller has a message of an outstanding one's key. If not, this one's has it now."""
        if self.state is None:
            return False
        outstanding = self.state.outstanding
        claim = outstanding[position]
        if (claims := self.claims.get(claim.key)) is None:
            live = (p for p in self.state.busy.get(claim.key, ()) if not self.is_done(p) and not self.is_free(p))
            claims = self.claims[claim.key] = {(outstanding[p].number, outstanding[p].secret) for p in live}
        own = claim.number, claim.secret
        if len(claims) > (own in claims):
            return True
        claims.add(own)
        return False


class _KeyDeliveries(msgspec.Struct):
    """The deliveries of one key in an entry.

    Attributes:
        pending: Messages of the key after ``next`` that are not done, ascending.
        next: The next message that may be delivered, or None if the key has no more.
        caller: The caller that receives them, or None before the first delivery.
    """

    pending: Iterator[Position]
    next: Position | None
    caller: int | None = None


class OrderCheck:
    """Decides which caller may receive which messages by one entry.

    Args:
        state: The state after the last entry.
        waiting: The waiting messages.
        is_done: Returns whether the entry makes a message done.
        is_free: Returns whether an outstanding message is claimed neither now nor by the entry.
    """

    __slots__ = ("_deliveries", "_is_done", "_is_free", "_state", "_waiting")

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
        self._deliveries: dict[int, _KeyDeliveries] = {}

    def copy_for_peek(self) -> OrderCheck:
        """Returns a copy that offers no messages of keys from which this entry already delivers to a caller."""
        check = OrderCheck(self._state, self._waiting, self._is_done, self._is_free)
        check._deliveries = {
            key: _KeyDeliveries(iter(()), None) for key, d in self._deliveries.items() if d.caller is not None
        }
        return check

    def try_deliver(self, caller: int, message: Message) -> bool:
        """Returns whether a caller may receive a message, and if so counts it as delivered.

        All messages for one caller must be checked before the first one for the next caller.
        """
        key = compute_key_digest(message)
        deliveries = self._deliveries.get(key)
        if deliveries is None:
            deliveries = self._deliveries[key] = self._begin(key)
        if deliveries.next != message.position or deliveries.caller not in {None, caller}:
            return False
        deliveries.caller = caller
        deliveries.next = next(deliveries.pending, None)
        return True

    def _begin(self, key: int) -> _KeyDeliveries:
        """Returns the deliveries of a key: of outstanding messages, then of waiting ones; none if one is claimed."""
        busy = [position for position in self._state.busy.get(key, ()) if not self._is_done(position)]
        if not all(map(self._is_free, busy)):
            return _KeyDeliveries(iter(()), None)
        waiting = (position for position in self._waiting.iterate_key(key, self._state) if not self._is_done(position))
        pending = merge(busy, waiting)
        return _KeyDeliveries(pending, next(pending, None))
