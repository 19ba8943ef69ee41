"""Claim limits: how many messages of a partition, and of one key, may be claimed at the same time.

A live claim takes a **place**. A claim is live until its message is done or released, or until it has expired for
every process. A message that was released with a delay rests: it takes no place, because no worker has it. The next
entry delivers a message, or renews a claim that is not live, only if there is a free place for it. So the
log never has more live claims than the limits that its entries were decided by.

A queue of each kind may have a limit of the partition, so these rules are the base of dedup and ordered queues, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

import msgspec

from queuey.claims.rules.kinds.plain import NO_LIMIT, Filter, PlainRules, PlainSearch
from queuey.model.ids import Position
from queuey.model.messages import Message
from queuey.model.partitions import key_digest


def compute_limited_key_digest(message: Message) -> int:
    meta = message.meta
    return 0 if meta is None or meta.key is None else key_digest(meta.key) or 1


class FreePlaces(msgspec.Struct):
    """Free places for the deliveries of one entry.

    Attributes:
        total: Free places of the partition.
        count_of_key: Returns the free places of a key; None if keys have no limit.
        free: Free places by key.
    """

    total: int
    count_of_key: Callable[[int], int] | None
    free: dict[int, int] = {}

    def copy_for_peek(self) -> FreePlaces:
        return FreePlaces(self.total, self.count_of_key, dict(self.free))

    def try_take(self, choice: Filter | None, message: Message) -> bool:
        """Takes a place if the partition and the message's key have a free one and ``choice`` accepts the message.

        Returns whether it did. ``choice`` may count the message as delivered, so it is called last.
        """
        if self.total <= 0:
            return False
        key = 0 if self.count_of_key is None else compute_limited_key_digest(message)
        if self.count_of_key is not None and key not in self.free:
            self.free[key] = self.count_of_key(key)
        if self.free.get(key, 1) <= 0 or not (choice is None or choice(message)):
            return False
        self.total -= 1
        if self.count_of_key is not None:
            self.free[key] -= 1
        return True


class LikelyPlaces(PlainSearch, dict=True):
    """Estimates how many messages the next entry can deliver, so that enough are read for it."""

    compute_key = staticmethod(compute_limited_key_digest)

    def __post_init__(self) -> None:
        state, expiry_limit = self.state, self.expiry_limit
        live = [position for position in set(self.ending()) if state.is_live(position, expiry_limit)]
        self._ending = Counter(state.outstanding[position].key for position in live)
        self._free: dict[int, int] = {}
        if self.limits.total:
            self.room = self.limits.total - state.count_live(expiry_limit) + len(live)

    def estimate_for_key(self, key: int) -> int:
        # After those already given; `NO_LIMIT` without a key (0) or a limit per key.
        if key not in self._free:
            live, per_key = self.state.count_live_with_key(self.expiry_limit, key), self.limits.per_key
            self._free[key] = per_key + self._ending[key] - live if key and per_key else NO_LIMIT
        return self._free[key]

    def record_returned(self, messages: Sequence[Message], ended: Sequence[Position]) -> None:
        for message in messages:
            key = compute_limited_key_digest(message)
            self._free[key] = self.estimate_for_key(key) - 1

    def find_ended(self, limit: int) -> list[Position]:
        if not self.limits.per_key:
            return super().find_ended(limit)
        free: dict[int, int] = {}
        positions: list[Position] = []
        for position in self.state.find_ended(self.expiry_limit, len(self.state.outstanding)):
            key = self.state.outstanding[position].key
            free[key] = free.get(key, self.estimate_for_key(key)) - 1
            if free[key] >= 0:
                positions.append(position)
                if len(positions) >= limit:
                    break
        return positions


class LimitedRules(PlainRules, dict=True):
    """A message is delivered, and a claim renewed, only if there is a free place for it."""

    search: ClassVar[type[PlainSearch]] = LikelyPlaces
    allows_all: ClassVar = False

    def __post_init__(self) -> None:
        state, expiry_limit = self.entry.state, self.entry.expiry_limit
        limits = self.parts.limits
        self._has_limits = bool(limits.total or limits.per_key)
        self.records_keys = limits.per_key > 0
        self.delivers_early = not self.records_keys
        self._live = cache(partial(state.count_live, expiry_limit))
        self._live_of = cache(partial(state.count_live_with_key, expiry_limit))
        self._counted: dict[Position, bool] = {}
        """Whether a changed message counts as live. Only changed messages are counted again."""
        self._added: Counter[int | None] = Counter()
        """Live claims that the entry adds, by key; with the key None, of the whole partition."""

    def may_renew(self, position: Position) -> bool:
        if not self._has_limits:
            return True
        # It is live for every process, or there is a free place for it. A claim that has expired by this clock may be
        # over for another process, which has given its place away. A live claim counts its own place as free.
        claim, live = self.entry.state.outstanding.get(position), self.entry.is_live(position)
        if live and (claim is None or claim.expires >= self.entry.now):
            return True
        return self._count_free_in_partition() + live > 0 and (
            claim is None or self._count_free_of_key(claim.key) + live > 0
        )

    def begin_delivery(self, messages: list[Message], *, claims: bool) -> Callable[[int, bool], Filter] | None:
        of_key = self._count_free_of_key if self.parts.limits.per_key else None
        return partial(self._make_filter, FreePlaces(self._count_free_in_partition(), of_key))

    def _count_free_in_partition(self) -> int:
        if not self.parts.limits.total:
            return NO_LIMIT
        self._recount_changed()
        return self.parts.limits.total - self._live() - self._added[None]

    def _count_free_of_key(self, key: int) -> int:
        if not key or not self.parts.limits.per_key:
            return NO_LIMIT
        self._recount_changed()
        return self.parts.limits.per_key - self._live_of(key) - self._added[key]

    def _recount_changed(self) -> None:
        entry = self.entry
        while entry.changed:
            position = entry.changed.pop()
            claim = self.entry.state.outstanding.get(position)
            before = self._counted.get(position, self.entry.state.is_live(position, entry.expiry_limit))
            live = self._counted[position] = entry.is_live(position)
            for key in {None, 0 if claim is None else claim.key}:
                self._added[key] += live - before

    def _make_filter(self, free: FreePlaces, caller: int, claims: bool) -> Filter:  # noqa: FBT001
        choice = self._choose(caller, claims=claims)
        if choice is not None and not self._has_limits:
            return choice
        return partial((free if claims else free.copy_for_peek()).try_take, choice)

    def _choose(self, caller: int, *, claims: bool) -> Filter | None:
        """Returns what a message must pass beside the limits."""
        return None
