"""Claim limits: how many messages of a partition, and of one key, may be claimed at the same time.

A live claim takes a **place**. A claim is live until its message is done or released, or until it has expired for
every process. A message that was released with a delay rests: it takes no place, because no worker has it. The next
entry delivers a message, or renews a claim that is not live, only if there is a free place for it (:class:`Places`). So
the log never has more live claims than the limits that its entries were decided by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial

import msgspec

from queuey.claims.rules.partition_state import State
from queuey.model.ids import Position
from queuey.model.messages import Message, Queue
from queuey.model.partitions import key_digest

NO_LIMIT = 1 << 40
"""Number of places if there is no limit."""


class ClaimLimits(msgspec.Struct, frozen=True):
    """Max live claims of a partition, and of one key; 0: no limit."""

    total: int
    per_key: int


def find_claim_limits(queue: Queue, partition: int) -> ClaimLimits | None:
    if not queue.max_claimed and not queue.max_claimed_per_key:
        return None
    return ClaimLimits(queue.share_of(partition), queue.max_claimed_per_key)


def compute_limited_key_digest(message: Message) -> int:
    meta = message.meta
    return 0 if meta is None or meta.key is None else key_digest(meta.key) or 1


class Places:
    """Counts the free places while the next entry grows. Only changed messages are counted again.

    Args:
        state: The state after the last entry.
        limits: Max live claims.
        now: The clock (milliseconds since 1970).
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        is_live: Returns whether a message has a live claim after the next entry, not counting deliveries.
        changed: Messages for which the entry may begin or end a claim. The draft adds them; this class removes them.
    """

    def __init__(
        self,
        state: State,
        limits: ClaimLimits,
        now: int,
        expiry_limit: int,
        is_live: Callable[[Position], bool],
        changed: set[Position],
    ) -> None:
        self._state = state
        self._limits = limits
        self._now = now
        self._expiry_limit = expiry_limit
        self._is_live = is_live
        self._live = cache(partial(state.count_live, expiry_limit))
        self._live_of = cache(partial(state.count_live_with_key, expiry_limit))
        self._changed = changed
        self._counted: dict[Position, bool] = {}
        """Whether a changed message counts as live."""
        self._added: Counter[int | None] = Counter()
        """Live claims that the entry adds, by key; with the key None, of the whole partition."""

    def has_place_for(self, position: Position) -> bool:
        """Returns whether a claim may be renewed: it is live for every process, or there is a free place for it.

        A claim that has expired by this clock may be over for another process, which has given its place away. A live
        claim counts its own place as free.
        """
        claim, live = self._state.outstanding.get(position), self._is_live(position)
        if live and (claim is None or claim.expires >= self._now):
            return True
        return self._count_free_in_partition() + live > 0 and (
            claim is None or self._count_free_of_key(claim.key) + live > 0
        )

    def count_free(self) -> FreePlaces:
        """Returns the places that are free now. Deliveries take them from the result, not from this object."""
        return FreePlaces(self._count_free_in_partition(), self._count_free_of_key if self._limits.per_key else None)

    def _count_free_in_partition(self) -> int:
        if not self._limits.total:
            return NO_LIMIT
        self._recount_changed()
        return self._limits.total - self._live() - self._added[None]

    def _count_free_of_key(self, key: int) -> int:
        if not key or not self._limits.per_key:
            return NO_LIMIT
        self._recount_changed()
        return self._limits.per_key - self._live_of(key) - self._added[key]

    def _recount_changed(self) -> None:
        while self._changed:
            position = self._changed.pop()
            claim = self._state.outstanding.get(position)
            before = self._counted.get(position, self._state.is_live(position, self._expiry_limit))
            live = self._counted[position] = self._is_live(position)
            for key in {None, 0 if claim is None else claim.key}:
                self._added[key] += live - before


class FreePlaces:
    """Free places for the deliveries of one entry.

    Args:
        total: Free places of the partition.
        of_key: Returns the free places of a key; None if keys have no limit.
    """

    __slots__ = ("_count_free_of_key", "_free", "_total")

    def __init__(self, total: int, of_key: Callable[[int], int] | None) -> None:
        self._total = total
        self._count_free_of_key = of_key
        self._free: dict[int, int] = {}

    def copy_for_peek(self) -> FreePlaces:
        places = FreePlaces(self._total, self._count_free_of_key)
        places._free = dict(self._free)
        return places

    def try_take(self, choice: Callable[[Message], bool] | None, message: Message) -> bool:
        """Takes a place if the partition and the message's key have a free one and ``choice`` accepts the message.

        Returns whether it did. ``choice`` may count the message as delivered, so it is called last.
        """
        if self._total <= 0:
            return False
        key = 0 if self._count_free_of_key is None else compute_limited_key_digest(message)
        if self._count_free_of_key is not None and key not in self._free:
            self._free[key] = self._count_free_of_key(key)
        if self._free.get(key, 1) <= 0 or not (choice is None or choice(message)):
            return False
        self._total -= 1
        if self._count_free_of_key is not None:
            self._free[key] -= 1
        return True


class LikelyPlaces:
    """Estimates how many messages the next entry can deliver, so that enough are read for it.

    Args:
        state: The state after the last entry.
        limits: Max live claims.
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        ending: Messages whose claims the next entry probably ends.

    Attributes:
        total_estimate: Number of messages of all keys.
    """

    __slots__ = ("_ending", "_expiry_limit", "_free", "_per_key", "_state", "total_estimate")

    def __init__(self, state: State, limits: ClaimLimits, expiry_limit: int, ending: Iterable[Position]) -> None:
        self._state = state
        self._expiry_limit = expiry_limit
        self._per_key = limits.per_key
        live = [position for position in set(ending) if state.is_live(position, expiry_limit)]
        self._ending = Counter(state.outstanding[position].key for position in live)
        self._free: dict[int, int] = {}
        self.total_estimate = limits.total - state.count_live(expiry_limit) + len(live) if limits.total else NO_LIMIT

    def estimate_for_key(self, key: int) -> int:
        """Returns how many messages of a key the next entry can probably deliver, after those already given.

        Returns :data:`NO_LIMIT` without a key (0) or without a limit per key.
        """
        if key not in self._free:
            live = self._state.count_live_with_key(self._expiry_limit, key)
            self._free[key] = self._per_key + self._ending[key] - live if key and self._per_key else NO_LIMIT
        return self._free[key]

    def take_places(self, messages: Iterable[Message]) -> None:
        for message in messages:
            key = compute_limited_key_digest(message)
            self._free[key] = self.estimate_for_key(key) - 1

    def find_ended(self, limit: int) -> list[Position]:
        """Returns messages of ended claims for which there are places, the longest waiting first."""
        free: dict[int, int] = {}
        positions: list[Position] = []
        for position in self._state.find_ended(self._expiry_limit, len(self._state.outstanding)):
            key = self._state.outstanding[position].key
            free[key] = free.get(key, self.estimate_for_key(key)) - 1
            if free[key] >= 0:
                positions.append(position)
                if len(positions) >= limit:
                    break
        return positions
