"""The state of one partition after some entry of its claim log.

States of a message::

                claims                    finals, outs
     new ─────────────────► claimed ──────────────────────► done
                             │  ▲  ▲                          ▲
            releases, expiry │  │  │ claims                   │ finals, outs
                             ▼  │  │                          │
                          released / expired ─────────────────┘
                                └── renewals

A message that a move takes is done, too; one that it returns is released.

A message is done if it is in ``above``, or at or below the cursor and not outstanding. Done is final.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal

import msgspec

from queuey.claims.covers import Covers, Encoded
from queuey.claims.entries import FORMAT, KEEPING, Entry, MoveStep, UnknownFormat, format_of, require_known
from queuey.ids import FIRST, Position

LATEST_END = 46_800_000
"""Max milliseconds until the end of any claim that is made now: the longest lasts 12 hours, and clocks differ by less
than one. A claim that ends later was made while the clock was ahead, and is over."""
MOST_OUTSTANDING = 20_000
"""Max messages of a partition that are claimed, or were and wait to be delivered again."""
MOST_ABOVE = 20_000
"""Max messages above the cursor that are remembered as done. With more, polls read more slowly."""
MOST_SUPERSEDED = 20_000
"""Max messages of a partition whose last receipts are known to be superseded; as many as can be claimed at one
moment."""
SUPERSEDED_FOR = 86_400_000
"""Max milliseconds for which that is remembered: twice as long as the longest claim."""
MOST_UNDELETED = 20_000
"""Max messages that are to be deleted and may be there still."""

_NO_POSITIONS: set[Position] = set()
"""Shared by all states without cancelled messages, which is most of them; never changed."""
_ID_WEIGHT = 250
_COVER_WEIGHT = 500
_WEIGHT = 5300
_STALE = 100
"""Number of expiries that may be kept besides those of live claims."""


class ClaimTiming:
    """Decides by the clock when a claim is over, and by when it must be answered.

    Args:
        margin: The largest difference between the clocks of two processes (seconds): S. It may change.
    """

    __slots__ = ("_margin",)

    def __init__(self, margin: float | Callable[[], float] = 1.0) -> None:
        self._margin = margin

    @property
    def margin(self) -> float:
        margin = self._margin
        return margin() if callable(margin) else margin

    def expired(self, now: int) -> int:
        """Returns the expiry (milliseconds since 1970) below which claims are over for other processes at ``now``."""
        return now - round(self.margin * 1000)

    def left(self, expires: float, now: int) -> float:
        """Returns the seconds until a claim with this expiry is over for other processes, at least 0."""
        return max(0.0, (expires - self.expired(now) + 1) / 1000)

    def answer_within(self, ttl: float) -> float:
        """Returns the seconds, from the choice of its expiry, for which a claim may still be answered."""
        return ttl - min(self.margin, ttl / 2)


class LastDelivery(msgspec.Struct, gc=False):
    """The last delivery of a message that is not done.

    Attributes:
        number: The entry that made it; 0: no receipt fits, because a move gave the message back or its bare id was
            renewed.
        deliveries: How many there were.
        expires: Milliseconds since 1970; 0: the claim has ended.
        secret: Of its receipt.
        worker: The caller's name for itself; blank: none.
        key: The digest of the message's key; 0: it has none, or the queue does not keep keys.
        renewed: When the claim was made or renewed last (milliseconds since 1970, by the writer's clock); 0 until then
            if the state was read from a snapshot, which does not keep it.
    """

    number: int
    deliveries: int
    expires: int
    secret: int = 0
    worker: str = ""
    key: int = 0
    renewed: int = 0


class MoveState(msgspec.Struct, array_like=True):
    """Progress of the newest move of the partition's messages to another queue.

    Attributes:
        number: Of the move.
        moved: Number of messages.
        last: The last of them in the target.
        chunk: The entry that took the chunk under way; 0: none.
        taken: Its messages, each with its number of deliveries.
        ended: The move takes no more.
    """

    number: int
    moved: int = 0
    last: Position = FIRST
    chunk: int = 0
    taken: list[tuple[Position, int]] = []
    ended: bool = False


class _Snapshot(msgspec.Struct, array_like=True):
    format: int
    number: int
    cursor: Position
    outstanding: list[tuple[int, int, int, int, int]]
    above: list[Position]
    outbox: list[tuple[Position, tuple[str, int]]]
    pending_deletes: list[tuple[int, list[Position]]]
    superseded: list[tuple[Position, int]]
    move: MoveState | None
    covers: list[Encoded]
    stored_until: int
    secrets: list[int]
    workers: list[str]
    keys: list[int]
    resting: list[Position]


class _CancellingSnapshot(_Snapshot, array_like=True):
    """A snapshot of a state with cancelled messages. Version 0.1.0 reads it as one without."""

    cancelled: list[Position] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_CancellingSnapshot)


class State:
    """The state of a partition. It follows from the entries alone: processes that applied the same have the same.

    Attributes:
        number: The last entry applied.
        cursor: Every message at or below it was delivered, or is gone.
        outstanding: Messages that were delivered and are not done.
        above: Messages above the cursor that are done.
        outbox: Messages that become dead letters, with the queue and the number of deliveries.
        pending_deletes: Messages to delete, by the entry that asked for it.
        superseded: Messages that were delivered here and then removed from here, because a newer value took their name,
            or they became dead letters, or a move took them; with the time. Oldest first.
        withdrawn: The last entry that superseded messages since this was read into memory; 0: none.
        move: The newest move of messages to another queue; None: there was none.
        snapshot: The newest snapshot that the log names; 0: none.
        covers: Marks duplicates, in a dedup queue.
        released: Number of claims that ended before they expired. This and the other counts only grow, also if a state
            is read again: they are too high for the entries before its snapshot.
        busy: The outstanding messages of each key, by its digest, ascending, in a queue that keeps keys.
        freed: How many of those were done.
        resting: Messages that were released with a delay: they are claimed, and nobody works on them.
        vacated: How many messages were done or began to rest.
        keeps: Expired messages become dead letters, so reads for claims must show them.
        cancelled: Outstanding messages that will not be delivered again.
    """

    def __init__(self) -> None:
        self.number = 0
        self.cursor: Position = FIRST
        self.outstanding: dict[Position, LastDelivery] = {}
        self.above: set[Position] = set()
        self.outbox: dict[Position, tuple[str, int]] = {}
        self.pending_deletes: dict[int, list[Position]] = {}
        self.superseded: dict[Position, int] = {}
        self.withdrawn = 0
        self.move: MoveState | None = None
        self.snapshot = 0
        self.covers = Covers()
        self.released = 0
        self.busy: dict[int, list[Position]] = {}
        self.freed = 0
        self.resting: set[Position] = set()
        self.vacated = 0
        self.keeps = False
        self.cancelled = _NO_POSITIONS
        self._forget_from = 0
        self._above_heap: list[Position] = []
        self._expiries: list[tuple[int, Position]] = []
        self._last_expiry = 0
        """No expiry in ``_expiries`` is above it."""
        self._ended: dict[Position, None] = {}

    def is_done(self, position: Position) -> bool:
        """Returns whether a message will never be delivered any more."""
        return (position <= self.cursor and position not in self.outstanding) or position in self.above

    def is_known(self, position: Position) -> bool:
        """Returns whether a message was delivered or is done, so that scans skip it."""
        return position <= self.cursor or position in self.outstanding or position in self.above

    def unknown(self, positions: Collection[Position]) -> set[Position]:
        """Returns those positions that are not known (:meth:`is_known`)."""
        left = set(positions).difference(self.above).difference(self.outstanding)
        if left and min(left) <= self.cursor:
            return {position for position in left if position > self.cursor}
        return left

    def is_known_for_good(self, position: Position) -> bool:
        """Returns whether a message was there when the cursor passed it, or is done."""
        return position <= self.cursor or position in self.above

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory, with what a process keeps beside it."""
        pending_deletes = sum(map(len, self.pending_deletes.values())) if self.pending_deletes else 0
        taken = 0 if self.move is None else len(self.move.taken)
        noted = len(self.outbox) + len(self.superseded) + pending_deletes + taken
        known = len(self.outstanding) + len(self.above) + noted
        covers = self.covers.count if self.covers.by_digest else 0
        return _WEIGHT + _ID_WEIGHT * known + _COVER_WEIGHT * covers

    # Entries

    def apply(self, number: int, entry: Entry) -> None:
        """Applies the next entry.

        Raises:
            ValueError: It is not the next one.
        """
        if number != self.number + 1:
            raise ValueError(f"entry {number} does not follow entry {self.number}")
        self.number = number
        self.keeps = self.keeps or entry.format == KEEPING
        if entry.outs or entry.sent or entry.deleted or entry.delete or entry.move is not None:
            self._apply_tasks(number, entry)
        for position in entry.finals:
            self._finish(position)
        if entry.superseded:
            self.withdrawn = number
            self._take_away([position for position in entry.superseded if position in self.outstanding], entry.at)
        for position in self.outstanding if entry.release_all else entry.releases:
            self._release(position)
        if entry.renewals:
            self._renew_all(entry)
        if entry.claims:
            self._claim_all(entry)
        if entry.cancels:
            self.cancelled = self.cancelled | (self.outstanding.keys() & entry.cancels)
        self._pass(number, entry)
        if self.superseded and (entry.at > self._forget_from or len(self.superseded) > MOST_SUPERSEDED):
            self._forget(entry.at)
        self.snapshot = max(self.snapshot, entry.snapshot)

    def _apply_tasks(self, number: int, entry: Entry) -> None:
        if entry.move is not None:
            self._apply_move(number, entry.move, entry.at)
        if entry.outs:
            never_delivered = sum(position not in self.outstanding for position, _, _ in entry.outs)
            self.freed, self.vacated = self.freed + never_delivered, self.vacated + never_delivered
            self._take_away([position for position, _, _ in entry.outs], entry.at)
            self.outbox.update((position, (target, deliveries)) for position, target, deliveries in entry.outs)
        for position in entry.sent:
            self.outbox.pop(position, None)
        if entry.delete and entry.finals:
            self._demand_deletion(number, entry.finals)
        if entry.deleted:
            self.pending_deletes = {key: old for key, old in self.pending_deletes.items() if key > entry.deleted}

    def _apply_move(self, number: int, step: MoveStep, at: int) -> None:
        move = self.move
        if move is None or move.number < step.move:
            move = self.move = MoveState(step.move)
        if move.chunk and move.chunk in {step.moved, step.returned}:
            if step.moved:
                move.moved += len(move.taken)
                move.last = max(move.last, step.last)
            else:
                for position, deliveries in move.taken:
                    self.above.discard(position)
                    self.superseded.pop(position, None)
                    self.outstanding[position] = LastDelivery(0, deliveries, 0)
                    self._ended.setdefault(position)
            move.chunk, move.taken = 0, []
        if step.taken:
            claims = [(position, self.outstanding.get(position)) for position in step.taken]
            move.taken = [(position, 0 if claim is None else claim.deliveries) for position, claim in claims]
            move.chunk = number
            self._take_away(step.taken, at)
        move.ended = move.ended or step.ended

    def _claim_all(self, entry: Entry) -> None:
        workers = entry.workers or [""] * len(entry.claims)
        for (expires, positions), secret, worker in zip(entry.claims, entry.secrets, workers, strict=True):
            self._claim(positions, expires, secret, worker, entry.at)
        for (_, positions), keys in zip(entry.claims, entry.keys, strict=False):
            self._note_keys(positions, keys)

    def _claim(self, positions: list[Position], expires: int, secret: int, worker: str, now: int) -> None:
        outstanding, number = self.outstanding, self.number
        self._last_expiry = max(self._last_expiry, expires)
        for position in positions:
            before = outstanding.get(position)
            if before is None:
                outstanding[position] = LastDelivery(number, 1, expires, secret, worker, 0, now)
            else:
                deliveries = before.deliveries + 1
                outstanding[position] = LastDelivery(number, deliveries, expires, secret, worker, before.key, now)
                if self.cancelled:
                    self.cancelled.discard(position)  # Version 0.1.0 delivers it all the same.
            self._ended.pop(position, None)
            self.resting.discard(position)
            heappush(self._expiries, (expires, position))
        if len(self._expiries) > 2 * len(outstanding) + _STALE:
            self._index()

    def _note_keys(self, positions: list[Position], keys: list[int]) -> None:
        for position, key in zip(positions, keys, strict=True):
            claim = self.outstanding[position]
            if key and not claim.key:
                claim.key = key
                insort(self.busy.setdefault(key, []), position)

    def _free_key(self, position: Position, key: int) -> None:
        left = self.busy[key]
        left.remove(position)
        if not left:
            del self.busy[key]
        self.freed += 1

    def _finish(self, position: Position) -> None:
        claim = self.outstanding.pop(position, None)
        if claim is not None:
            self._ended.pop(position, None)
            self.resting.discard(position)
            if self.cancelled:
                self.cancelled.discard(position)
            self.vacated += 1
            if claim.key:
                self._free_key(position, claim.key)
        if position > self.cursor and position not in self.above:
            self.above.add(position)
            heappush(self._above_heap, position)

    def _take_away(self, positions: list[Position], at: int) -> None:
        """Ends messages that leave the queue. Delivered ones are remembered: a caller has a receipt."""
        for position in positions:
            if position in self.outstanding:
                self.superseded[position] = at
            self._finish(position)

    def _forget(self, at: int) -> None:
        """Forgets superseded messages that are old, or too many."""
        stale: list[Position] = []
        surplus = len(self.superseded) - MOST_SUPERSEDED
        for position, when in self.superseded.items():
            if len(stale) >= surplus and when >= at - SUPERSEDED_FOR:
                self._forget_from = when + SUPERSEDED_FOR
                break
            stale.append(position)
        for position in stale:
            del self.superseded[position]

    def _demand_deletion(self, number: int, positions: list[Position]) -> None:
        self.pending_deletes[number] = positions
        there = sum(map(len, self.pending_deletes.values()))
        while there > MOST_UNDELETED:
            there -= len(self.pending_deletes.pop(next(iter(self.pending_deletes))))

    def _release(self, position: Position) -> None:
        claim = self.outstanding.get(position)
        if claim is not None and claim.expires:
            claim.expires = 0
            self.resting.discard(position)
            self.released += 1
            self._ended.setdefault(position)

    def _renew_all(self, entry: Entry) -> None:
        delayed = set(entry.releases)
        for expires, positions in entry.renewals:
            for position in positions:
                self._renew(position, expires, entry.at)
                if position in delayed and position in self.outstanding:
                    self.resting.add(position)
                    self.vacated += 1

    def _renew(self, position: Position, expires: int, now: int) -> None:
        claim = self.outstanding.get(position)
        self.resting.discard(position)
        if claim is None:
            if self.is_done(position):
                return
            self.outstanding[position] = LastDelivery(0, 0, expires, renewed=now)
        elif claim.expires < expires or claim.expires > expires + LATEST_END:
            claim.expires, claim.renewed = expires, now
            self._ended.pop(position, None)
        else:
            return
        self._last_expiry = max(self._last_expiry, expires)
        heappush(self._expiries, (expires, position))
        if len(self._expiries) > 2 * len(self.outstanding) + _STALE:
            self._index()

    def _pass(self, number: int, entry: Entry) -> None:
        """Applies changes of covers, and moves the cursor."""
        covers, heap = self.covers, self._above_heap
        if entry.covers is not None:
            covers.apply(number, entry.covers, self.cursor)
        if entry.cursor > self.cursor:
            self.cursor = entry.cursor
            while heap and heap[0] <= self.cursor:
                self.above.discard(heappop(heap))
            if covers.by_digest or covers.stored_until:
                covers.move(self.cursor)

    def _index(self, latest: float = inf) -> None:
        self._expiries = [(one.expires, place) for place, one in self.outstanding.items() if 0 < one.expires <= latest]
        self._last_expiry = max((expires for expires, _ in self._expiries), default=0)
        heapify(self._expiries)

    # Ended claims

    def ended(self, expired: int, most: int) -> list[Position]:
        """Returns at most ``most`` messages whose claims have ended, those first that have waited longest.

        Args:
            expired: Claims with an expiry below this are over (milliseconds since 1970), and those with one more than
                ``LATEST_END`` above it.
            most: How many.
        """
        if self._last_expiry > (latest := expired + LATEST_END):
            late = (position for position, claim in self.outstanding.items() if claim.expires > latest)
            self._ended.update(dict.fromkeys(late))
            self._index(latest)
        outstanding, expiries, ended = self.outstanding, self._expiries, self._ended
        while expiries and expiries[0][0] < expired:
            expires, position = heappop(expiries)
            claim = outstanding.get(position)
            if claim is not None and claim.expires == expires:
                ended.setdefault(position)
        stale = []
        found: list[Position] = []
        for position in ended:
            if len(found) >= most:
                break
            if self.has_ended(position, expired):
                found.append(position)
            else:
                # The clock was set, or the message was claimed again.
                stale.append(position)
        for position in stale:
            del ended[position]
            if position in outstanding:
                expires = outstanding[position].expires
                self._last_expiry = max(self._last_expiry, expires)
                heappush(expiries, (expires, position))
        return found

    def next_expiry(self) -> float:
        """Returns the next expiry of a live claim (milliseconds since 1970; infinity: there is none)."""
        outstanding, expiries = self.outstanding, self._expiries
        while expiries:
            expires, position = expiries[0]
            claim = outstanding.get(position)
            if claim is not None and claim.expires == expires:
                return expires
            heappop(expiries)
        return inf

    def has_ended(self, position: Position, expired: int) -> bool:
        """Returns whether a message was delivered, is not done and is not claimed."""
        claim = self.outstanding.get(position)
        return claim is not None and not expired <= claim.expires <= expired + LATEST_END

    def is_live(self, position: Position, expired: int) -> bool:
        """Returns whether a caller may be working on a message: its claim has not ended, and it does not rest."""
        claim = self.outstanding.get(position)
        return claim is not None and expired <= claim.expires <= expired + LATEST_END and position not in self.resting

    def standing(self, position: Position, expired: int) -> Literal["claimed", "retrying", "waiting"]:
        """Returns what an outstanding message is: live, released with a delay, or free because its claim has ended."""
        if self.has_ended(position, expired):
            return "waiting"
        return "retrying" if position in self.resting else "claimed"

    def live(self, expired: int) -> int:
        """Returns how many messages are live (:meth:`is_live`)."""
        return len(self.outstanding) - len(self.ended(expired, len(self.outstanding))) - self.count_retrying(expired)

    def count_retrying(self, expired: int) -> int:
        """Returns how many messages were released with a delay that is not over."""
        return sum(not self.has_ended(position, expired) for position in self.resting)

    def live_of(self, expired: int, key: int) -> int:
        return sum(self.is_live(position, expired) for position in self.busy.get(key, ()))

    # Snapshots

    def encode(self) -> bytes:
        """Returns a snapshot. Equal states give equal snapshots."""
        outstanding = sorted(
            (*position, claim.number, claim.deliveries, claim.expires) for position, claim in self.outstanding.items()
        )
        covers, last = self.covers, [self.outstanding[ticks, low] for ticks, low, *_ in outstanding]
        fields = (
            KEEPING if self.keeps else FORMAT,
            self.number,
            self.cursor,
            outstanding,
            sorted(self.above),
            sorted(self.outbox.items()),
            sorted(self.pending_deletes.items()),
            list(self.superseded.items()),
            self.move,
            covers.encode(),
            covers.stored_until,
            [claim.secret for claim in last],
            [claim.worker for claim in last] if any(claim.worker for claim in last) else [],
            [claim.key for claim in last] if self.busy else [],
            sorted(self.resting),
        )
        if self.cancelled:
            return _encoder.encode(_CancellingSnapshot(*fields, sorted(self.cancelled)))
        return _encoder.encode(_Snapshot(*fields))

    @classmethod
    def decode(cls, body: bytes) -> State:
        """Reads a snapshot.

        Raises:
            UnknownFormat: It has another format.
        """
        try:
            found = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a snapshot of format {format_of(body)} cannot be read: {error}") from error
        require_known(found.format, "a snapshot")
        state = cls()
        state.keeps = found.format == KEEPING
        state.number = state.snapshot = found.number
        state.cursor = found.cursor
        # At least as many as all entries before can have ended: who compares them with earlier counts sees no fewer.
        state.released = state.freed = state.vacated = MOST_OUTSTANDING * found.number
        workers = found.workers or [""] * len(found.outstanding)
        state.outstanding = {
            (ticks, low): LastDelivery(number, deliveries, expires, secret, worker)
            for (ticks, low, number, deliveries, expires), secret, worker in zip(
                found.outstanding, found.secrets, workers, strict=True
            )
        }
        state.above = set(found.above)
        state.outbox = dict(found.outbox)
        state.pending_deletes = dict(found.pending_deletes)
        state.superseded = dict(found.superseded)
        state.move = found.move
        state.covers = Covers.decode(found.covers, found.stored_until, found.cursor, found.number)
        state._above_heap = found.above
        for position, key in zip(list(state.outstanding), found.keys, strict=False):
            state._note_keys([position], [key])
        state.resting = set(found.resting)
        state.cancelled = set(found.cancelled) if found.cancelled else _NO_POSITIONS
        state._ended = dict.fromkeys(place for place, claim in state.outstanding.items() if not claim.expires)
        state._index()
        return state
