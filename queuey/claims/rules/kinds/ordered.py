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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import filterfalse
from typing import TYPE_CHECKING, ClassVar

import msgspec

from queuey.claims.rules.kinds.limited import LikelyPlaces, LimitedRules
from queuey.claims.rules.kinds.plain import Filter, PlainSearch
from queuey.claims.rules.waiting import Waiting
from queuey.model.ids import Position
from queuey.model.messages import Message
from queuey.model.partitions import key_digest

if TYPE_CHECKING:
    from queuey.claims.rules.entry_draft import EntryDraft


def compute_key_digest(message: Message) -> int:
    """Returns the digest of a message's key. Messages without a key share one."""
    meta = message.meta
    # 0 stands for no digest.
    return key_digest("" if meta is None else meta.key or "") or 1


class OrderedSearch(LikelyPlaces):
    """Finds messages of keys of which no message is claimed. ``max_per_key`` is the limit of the largest poll."""

    compute_key = staticmethod(compute_key_digest)
    in_order: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._freed: set[int] = set()

    def find_ended(self, limit: int) -> list[Position]:
        # Ascending, and none of a key of which a message is claimed.
        state, expiry_limit = self.state, self.expiry_limit
        ended: list[Position] = []
        claimed: dict[int, bool] = {}
        for position in sorted(state.find_ended(expiry_limit, len(state.outstanding))):
            key = state.outstanding[position].key
            outstanding = state.busy.get(key, [])
            if key not in claimed:
                claimed[key] = not all(state.has_ended(other, expiry_limit) for other in outstanding)
            if not claimed[key] and bisect_left(outstanding, position) < self.max_per_key:
                ended.append(position)
                if len(ended) >= limit:
                    break
        return ended

    def record_returned(self, messages: Sequence[Message], ended: Sequence[Position]) -> None:
        # A busy key is free if all its outstanding messages are done or delivered again by the next entry.
        done_by_key: defaultdict[int, set[Position]] = defaultdict(set)
        for position in [*self.finishing(), *ended, *(message.position for message in messages)]:
            claim = self.state.outstanding.get(position)
            if claim is not None and claim.key:
                done_by_key[claim.key].add(position)
        busy = self.state.busy
        self._freed = {key for key, positions in done_by_key.items() if len(positions) == len(busy[key])}

    def estimate_for_key(self, key: int) -> int:
        return self.max_per_key if key not in self.state.busy or key in self._freed else 0


class OrderedRules(LimitedRules):
    """A message is delivered if no other caller has one of its key, in the order of ids.

    An acknowledgement frees the key with its last outstanding message. A release frees it at once, a release with a
    delay only after the delay: later messages never overtake. A lapsed claim frees it too, so its holder may renew or
    delay it only while no other caller has a message of the key. An expired message leaves the key.
    """

    search: ClassVar[type[PlainSearch]] = OrderedSearch

    def __post_init__(self) -> None:
        super().__post_init__()
        self.records_keys, self.delivers_early = True, False
        self._holders: dict[int, set[tuple[int, int]]] = {}
        """Numbers and secrets of live claims by key, for one request."""

    def begin_request(self) -> None:
        self._holders.clear()

    def may_renew(self, position: Position) -> bool:
        return self.may_delay(position) and super().may_renew(position)

    def may_delay(self, position: Position) -> bool:
        # If no other caller has a message of its key, this one's has it from now on.
        entry, outstanding = self.entry, self.entry.state.outstanding
        claim = outstanding[position]
        if (holders := self._holders.get(claim.key)) is None:
            busy = entry.state.busy.get(claim.key, ())
            live = (p for p in busy if not entry.is_done_here(p) and not entry.may_redeliver(p))
            holders = self._holders[claim.key] = {(outstanding[p].number, outstanding[p].secret) for p in live}
        own = claim.number, claim.secret
        if len(holders) > (own in holders):
            return False
        holders.add(own)
        return True

    def begin_delivery(self, messages: list[Message], *, claims: bool) -> Callable[[int, bool], Filter] | None:
        self._drop_expired(messages, ends=claims)
        messages.sort(key=lambda message: message.position)
        self._order = OrderCheck(self.entry, self.parts.waiting)
        return super().begin_delivery(messages, claims=claims)

    def _drop_expired(self, messages: list[Message], *, ends: bool) -> None:
        """Removes new messages that have expired for some process. With ``ends``, they become done if not kept.

        Clocks differ: another process may have skipped an expired message already and delivered its key's next one.
        """
        entry, (latest, _) = self.entry, self.entry.latest_position()
        outstanding = entry.state.outstanding
        late = [m for m in messages if m.expires <= latest and m.position not in outstanding]
        for message in late[: max(0, entry.room)] if ends and not entry.keeps_expired else ():
            entry.finish(message.position)
        messages[:] = [m for m in messages if m.expires > latest or m.position in outstanding]

    def _choose(self, caller: int, *, claims: bool) -> Filter | None:
        return partial((self._order if claims else self._order.copy_for_peek()).try_deliver, caller)


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


class OrderCheck(msgspec.Struct):
    """Decides which caller may receive which messages by one entry.

    Attributes:
        entry: The entry so far.
        waiting: The waiting messages.
        deliveries: Deliveries by the digest of their key.
    """

    entry: EntryDraft
    waiting: Waiting
    deliveries: dict[int, _KeyDeliveries] = {}

    def copy_for_peek(self) -> OrderCheck:
        """Returns a copy that offers no messages of keys from which this entry already delivers to a caller."""
        keys = [key for key, deliveries in self.deliveries.items() if deliveries.caller is not None]
        return OrderCheck(self.entry, self.waiting, {key: _KeyDeliveries(iter(()), None) for key in keys})

    def try_deliver(self, caller: int, message: Message) -> bool:
        """Returns whether a caller may receive a message, and if so counts it as delivered.

        All messages for one caller must be checked before the first one for the next caller.
        """
        key = compute_key_digest(message)
        deliveries = self.deliveries.get(key)
        if deliveries is None:
            deliveries = self.deliveries[key] = self._begin(key)
        if deliveries.next != message.position or deliveries.caller not in {None, caller}:
            return False
        deliveries.caller = caller
        deliveries.next = next(deliveries.pending, None)
        return True

    def _begin(self, key: int) -> _KeyDeliveries:
        """Returns the deliveries of a key: of outstanding messages, then of waiting ones; none if one is claimed."""
        busy = self.find_busy(key)
        if not all(map(self.entry.may_redeliver, busy)):
            return _KeyDeliveries(iter(()), None)
        pending = merge(busy, filterfalse(self.entry.is_done_here, self.waiting.iterate_key(key, self.entry.state)))
        return _KeyDeliveries(pending, next(pending, None))

    def find_busy(self, key: int) -> list[Position]:
        """Returns the outstanding messages of a key that the entry does not make done, ascending."""
        return [place for place in self.entry.state.busy.get(key, ()) if not self.entry.is_done_here(place)]
