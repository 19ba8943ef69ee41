"""The state of one partition after an entry of its claim log.

States of a message::

                claims                    finals, outs
     new ─────────────────► claimed ──────────────────────► done
                             │  ▲  ▲                          ▲
            releases, expiry │  │  │ claims                   │ finals, outs
                             ▼  │  │                          │
                          released / expired ─────────────────┘
                                └── renewals

A message that a move takes is done too; a message that it returns is released.

A message is done if it is in ``above``, or is at or below the cursor and not outstanding. Only a move makes a done
message deliverable again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal

import msgspec

from queuey.claims.rules.covers import EncodedCover, PartitionCovers
from queuey.claims.rules.entries import (
    FORMAT,
    ClaimEntry,
    MoveStep,
    PartitionMoveState,
    UnknownFormat,
    format_of,
    require_known_format,
)
from queuey.claims.rules.receipts import LastDelivery
from queuey.model.ids import FIRST, Position

MAX_CLAIM_MILLISECONDS = 46_800_000
"""Max milliseconds until the expiry of a claim made now: claims last at most 12 hours, and clocks differ by less than
one hour. A claim with a later expiry was made while a clock was ahead, and counts as over."""
MAX_OUTSTANDING = 20_000
"""Max messages of a partition that are claimed or wait to be delivered again."""
MAX_ABOVE = 20_000
"""Max messages above the cursor that are remembered as done. With more, polls read more slowly."""
MAX_SUPERSEDED = 20_000
"""Max superseded messages that a partition remembers: as many as can be claimed at the same time."""
SUPERSEDED_MAX_AGE = 86_400_000
"""Max milliseconds for which a superseded message is remembered: twice the longest claim."""
MAX_PENDING_DELETES = 20_000
"""Max messages of a partition that wait to be deleted from the store."""

_NO_POSITIONS: set[Position] = set()
"""Shared by all states without cancelled messages, to save memory. It must never be changed."""
_ID_BYTES = 250
_COVER_BYTES = 500
_STATE_BYTES = 5300
"""Bytes in memory, approximately: of a remembered id, of a cover, and of a partition without either."""
_MAX_STALE_EXPIRIES = 100
"""Number of outdated expiries that the heap may have, beside one for each outstanding message, before a rebuild."""


class ClaimTiming:
    """Decides by the clock when a claim is over, and how long an answer with the claim may take.

    Args:
        margin: S, the max difference between the clocks of two processes (seconds), or a function that returns it.
    """

    __slots__ = ("_read_margin",)

    def __init__(self, margin: float | Callable[[], float] = 1.0) -> None:
        self._read_margin = margin if callable(margin) else lambda: margin

    @property
    def margin(self) -> float:
        return self._read_margin()

    def expiry_limit(self, now: int) -> int:
        """Returns the expiry (milliseconds since 1970) below which claims are over for other processes at ``now``."""
        return now - round(self._read_margin() * 1000)

    def seconds_left(self, expires: float, now: int) -> float:
        return max(0.0, (expires - self.expiry_limit(now) + 1) / 1000)

    def seconds_to_answer(self, ttl: float) -> float:
        """Returns for how many seconds after its decision a claim may be sent: ``ttl`` less S, at least ``ttl / 2``."""
        return ttl - min(self._read_margin(), ttl / 2)


class _Snapshot(msgspec.Struct, array_like=True):
    format: int
    number: int
    cursor: Position
    outstanding: list[tuple[int, int, int, int, int]]
    above: list[Position]
    outbox: list[tuple[Position, tuple[str, int]]]
    pending_deletes: list[tuple[int, list[Position]]]
    superseded: list[tuple[Position, int]]
    move: PartitionMoveState | None
    covers: list[EncodedCover]
    stored_until: int
    secrets: list[int]
    workers: list[str]
    keys: list[int]
    resting: list[Position]
    cancelled: list[Position]
    marked: list[tuple[Position, int, bool, bool]]
    keeps_expired: bool


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)


class State:
    """The state of a partition. It depends only on the entries applied: equal entries give equal states.

    ``freed_count`` only grows, even if a state is read again: it is estimated too high for entries before a snapshot.

    Attributes:
        number: Number of the last entry applied.
        cursor: Every message at or below the cursor was delivered or is gone.
        outstanding: Messages that were delivered and are not done.
        above: Messages above the cursor that are done.
        outbox: Messages that become dead letters, each with the target queue and the number of deliveries.
        pending_deletes: Messages to delete, by the number of the entry that requested it.
        superseded: Delivered messages that left the queue, with the time: a newer value took their name, or they became
            dead letters, or a move took them. Oldest first.
        withdrawn: Number of the last entry applied since the state was loaded that superseded messages, or 0.
        move: The newest move of messages to another queue, or None if there was no move.
        snapshot: Number of the newest snapshot that the log names, or 0.
        covers: Covers, in a dedup queue.
        busy: Outstanding messages by the digest of their key, ascending, in a queue that keeps keys.
        resting: Messages that were released with a delay: the state keeps a claim until the delay is over.
        freed_count: Number of messages that became done or were released, at least.
        keeps_expired: Expired messages become dead letters, so reads for claims must include them.
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
        self.move: PartitionMoveState | None = None
        self.snapshot = 0
        self.covers = PartitionCovers()
        self.busy: dict[int, list[Position]] = {}
        self.resting: set[Position] = set()
        self.freed_count = 0
        self.keeps_expired = False
        self.cancelled = _NO_POSITIONS
        self._next_prune = 0
        self._above_heap: list[Position] = []
        self._expiries: list[tuple[int, Position]] = []
        self._last_expiry = 0
        """Upper bound of the expiries in ``_expiries``."""
        self._ended: dict[Position, None] = {}

    def is_done(self, position: Position) -> bool:
        return (position <= self.cursor and position not in self.outstanding) or position in self.above

    def is_known(self, position: Position) -> bool:
        return position <= self.cursor or position in self.outstanding or position in self.above

    def find_unknown(self, positions: Collection[Position]) -> set[Position]:
        unknown = set(positions).difference(self.above).difference(self.outstanding)
        if unknown and min(unknown) <= self.cursor:
            return {position for position in unknown if position > self.cursor}
        return unknown

    @property
    def weight(self) -> int:
        pending_deletes = sum(map(len, self.pending_deletes.values())) if self.pending_deletes else 0
        taken = 0 if self.move is None else len(self.move.taken)
        other_ids = len(self.outbox) + len(self.superseded) + pending_deletes + taken
        ids = len(self.outstanding) + len(self.above) + other_ids
        covers = self.covers.count if self.covers.by_digest else 0
        return _STATE_BYTES + _ID_BYTES * ids + _COVER_BYTES * covers

    # Entries

    def apply(self, number: int, entry: ClaimEntry) -> None:
        """Applies the next entry: moves, dead letters, finals, releases, renewals, claims, cursor, in this order.

        Raises:
            ValueError: ``number`` does not follow the last entry.
        """
        if number != self.number + 1:
            raise ValueError(f"entry {number} does not follow entry {self.number}")
        self.number = number
        self.keeps_expired = self.keeps_expired or entry.keeps
        if entry.outs or entry.sent or entry.deleted or entry.delete or entry.move is not None:
            self._apply_departures(number, entry)
        for position in entry.finals:
            self._finish(position)
        if entry.superseded:
            self.withdrawn = number
            self._finish_leaving([position for position in entry.superseded if position in self.outstanding], entry.at)
        if entry.releases or entry.renewals or entry.release_all:
            self._apply_releases(entry)
        if entry.claims:
            self._apply_claims(entry)
        if entry.cancels:
            self.cancelled = self.cancelled | (self.outstanding.keys() & entry.cancels)
        if entry.covers is not None or entry.cursor > self.cursor:
            self._advance_cursor(number, entry)
        if self.superseded and (entry.at > self._next_prune or len(self.superseded) > MAX_SUPERSEDED):
            self._prune_superseded(entry.at)
        self.snapshot = max(self.snapshot, entry.snapshot)

    def _apply_departures(self, number: int, entry: ClaimEntry) -> None:
        if entry.move is not None:
            self._apply_move(number, entry.move, entry.at)
        if entry.outs:
            self.freed_count += sum(position not in self.outstanding for position, _, _ in entry.outs)
            self._finish_leaving([position for position, _, _ in entry.outs], entry.at)
            self.outbox.update((position, (target, deliveries)) for position, target, deliveries in entry.outs)
        for position in entry.sent:
            self.outbox.pop(position, None)
        if entry.delete and entry.finals:
            self._request_deletion(number, entry.finals)
        if entry.deleted:
            self.pending_deletes = {key: old for key, old in self.pending_deletes.items() if key > entry.deleted}

    def _apply_move(self, number: int, step: MoveStep, now: int) -> None:
        """Ends the chunk under way if the step names it, and takes the step's messages as the next chunk.

        Returned messages can be delivered again and keep their number of deliveries; earlier receipts are superseded.
        """
        move = self.move
        if move is None or move.number < step.move:
            move = self.move = PartitionMoveState(step.move)
        if move.chunk and move.chunk in {step.moved, step.returned}:
            if step.moved:
                move.moved += len(move.taken)
                move.last = max(move.last, step.last)
            else:
                for position, deliveries in move.taken:
                    self.above.discard(position)
                    self.superseded.pop(position, None)
                    self.outstanding[position] = LastDelivery(0, deliveries, 0, suspected=deliveries > 0)
                    self._ended.setdefault(position)
            move.chunk, move.taken = 0, []
        if step.taken:
            claims = [(position, self.outstanding.get(position)) for position in step.taken]
            move.taken = [(position, 0 if claim is None else claim.attempts) for position, claim in claims]
            move.chunk = number
            self._finish_leaving(step.taken, now)
        move.ended = move.ended or step.ended

    def _apply_claims(self, entry: ClaimEntry) -> None:
        outstanding, number, now = self.outstanding, self.number, entry.at
        workers = entry.workers or [""] * len(entry.claims)
        for (expires, positions), secret, worker in zip(entry.claims, entry.secrets, workers, strict=True):
            self._last_expiry = max(self._last_expiry, expires)
            for position in positions:
                before = outstanding.get(position)
                if before is None:
                    outstanding[position] = LastDelivery(number, 1, expires, secret, worker, 0, now)
                else:
                    deliveries = before.attempts + 1
                    claim = LastDelivery(number, deliveries, expires, secret, worker, before.key, now)
                    claim.uncounted = before.uncounted + (not before.begun)
                    claim.suspected = self.is_suspected(position)
                    outstanding[position] = claim
                self._ended.pop(position, None)
                self.resting.discard(position)
                heappush(self._expiries, (expires, position))
        if len(self._expiries) > 2 * len(outstanding) + _MAX_STALE_EXPIRIES:
            self._rebuild_expiries()
        for (_, positions), keys in zip(entry.claims, entry.keys, strict=False):
            self._record_keys(positions, keys)

    def _record_keys(self, positions: list[Position], keys: list[int]) -> None:
        for position, key in zip(positions, keys, strict=True):
            claim = self.outstanding[position]
            if key and not claim.key:
                claim.key = key
                insort(self.busy.setdefault(key, []), position)

    def _free_key(self, position: Position, key: int) -> None:
        positions = self.busy[key]
        positions.remove(position)
        if not positions:
            del self.busy[key]

    def _finish(self, position: Position) -> None:
        claim = self.outstanding.pop(position, None)
        if claim is not None:
            self._ended.pop(position, None)
            self.resting.discard(position)
            if self.cancelled:
                self.cancelled.discard(position)
            self.freed_count += 1
            if claim.key:
                self._free_key(position, claim.key)
        if position > self.cursor and position not in self.above:
            self.above.add(position)
            heappush(self._above_heap, position)

    def _finish_leaving(self, positions: list[Position], now: int) -> None:
        for position in positions:
            if position in self.outstanding:
                self.superseded[position] = now
            self._finish(position)

    def _prune_superseded(self, now: int) -> None:
        stale: list[Position] = []
        surplus = len(self.superseded) - MAX_SUPERSEDED
        for position, when in self.superseded.items():
            if len(stale) >= surplus and when >= now - SUPERSEDED_MAX_AGE:
                self._next_prune = when + SUPERSEDED_MAX_AGE
                break
            stale.append(position)
        for position in stale:
            del self.superseded[position]

    def _request_deletion(self, number: int, positions: list[Position]) -> None:
        self.pending_deletes[number] = positions
        count = sum(map(len, self.pending_deletes.values()))
        while count > MAX_PENDING_DELETES:
            count -= len(self.pending_deletes.pop(next(iter(self.pending_deletes))))

    def _release(self, position: Position) -> None:
        claim = self.outstanding.get(position)
        if claim is not None and claim.expires:
            claim.expires = 0
            self.resting.discard(position)
            self.freed_count += 1
            self._ended.setdefault(position)

    def _apply_releases(self, entry: ClaimEntry) -> None:
        """Applies releases and renewals. A message that is in both was released with a delay, so it rests.

        Nobody knows which attempts of ``release_all`` have begun, so none of them counts that may go uncounted; those
        that have expired ended without a word.
        """
        for position, claim in self.outstanding.items() if entry.release_all else ():
            if claim.expires and position not in self.resting:
                has_lapsed = claim.deliveries > 0 and claim.expires < entry.at
                claim.suspected = claim.suspected or has_lapsed
                claim.begun = has_lapsed or not claim.may_go_uncounted
            self._release(position)
        for position in entry.releases:
            self._release(position)
        delayed = set(entry.releases)
        for expires, positions in entry.renewals:
            for position in positions:
                self._renew(position, expires, entry.at)
                if position in delayed and position in self.outstanding:
                    self.resting.add(position)
        for position in entry.unbegun:
            if position in self.outstanding:
                self.outstanding[position].begun = False

    def _renew(self, position: Position, expires: int, now: int) -> None:
        """Extends a claim and ends the message's rest; shortens only a claim that ends too far ahead.

        An undelivered message becomes outstanding; nothing happens to one that is done.
        """
        claim = self.outstanding.get(position)
        self.resting.discard(position)
        if claim is None:
            if self.is_done(position):
                return
            self.outstanding[position] = LastDelivery(0, 0, expires, renewed=now)
        elif claim.expires < expires or claim.expires > expires + MAX_CLAIM_MILLISECONDS:
            claim.expires, claim.renewed, claim.begun = expires, now, True
            self._ended.pop(position, None)
        else:
            return
        self._last_expiry = max(self._last_expiry, expires)
        heappush(self._expiries, (expires, position))
        if len(self._expiries) > 2 * len(self.outstanding) + _MAX_STALE_EXPIRIES:
            self._rebuild_expiries()

    def _advance_cursor(self, number: int, entry: ClaimEntry) -> None:
        covers, heap = self.covers, self._above_heap
        if entry.covers is not None:
            covers.apply(number, entry.covers, self.cursor)
        if entry.cursor > self.cursor:
            self.cursor = entry.cursor
            while heap and heap[0] <= self.cursor:
                self.above.discard(heappop(heap))
            if covers.by_digest or covers.stored_until:
                covers.advance_cursor(self.cursor)

    def _rebuild_expiries(self, latest: float = inf) -> None:
        self._expiries = [(c.expires, position) for position, c in self.outstanding.items() if 0 < c.expires <= latest]
        self._last_expiry = max((expires for expires, _ in self._expiries), default=0)
        heapify(self._expiries)

    # Ended claims

    def find_ended(self, expiry_limit: int, limit: int) -> list[Position]:
        """Returns messages whose claims have ended, the longest waiting first.

        Args:
            expiry_limit: Claims with an expiry below this are over (milliseconds since 1970), and so are claims with an
                expiry more than ``MAX_CLAIM_MILLISECONDS`` above it.
            limit: Max messages.
        """
        if self._last_expiry > (latest := expiry_limit + MAX_CLAIM_MILLISECONDS):
            late = (position for position, claim in self.outstanding.items() if claim.expires > latest)
            self._ended.update(dict.fromkeys(late))
            self._rebuild_expiries(latest)
        outstanding, expiries, ended = self.outstanding, self._expiries, self._ended
        while expiries and expiries[0][0] < expiry_limit:
            expires, position = heappop(expiries)
            claim = outstanding.get(position)
            if claim is not None and claim.expires == expires:
                ended.setdefault(position)
        stale = []
        positions: list[Position] = []
        for position in ended:
            if len(positions) >= limit:
                break
            if self.has_ended(position, expiry_limit):
                positions.append(position)
            else:
                # The clock was set back, or the message was claimed again.
                stale.append(position)
        for position in stale:
            del ended[position]
            if position in outstanding:
                expires = outstanding[position].expires
                self._last_expiry = max(self._last_expiry, expires)
                heappush(expiries, (expires, position))
        return positions

    def next_expiry(self) -> float:
        outstanding, expiries = self.outstanding, self._expiries
        while expiries:
            expires, position = expiries[0]
            claim = outstanding.get(position)
            if claim is not None and claim.expires == expires:
                return expires
            heappop(expiries)
        return inf

    def has_ended(self, position: Position, expiry_limit: int) -> bool:
        """Returns whether a message is outstanding and its claim is over, was released, or ends later than any may."""
        claim = self.outstanding.get(position)
        return claim is not None and not expiry_limit <= claim.expires <= expiry_limit + MAX_CLAIM_MILLISECONDS

    def is_live(self, position: Position, expiry_limit: int) -> bool:
        """Returns whether a worker may have a message: its claim has not ended, and it does not rest."""
        claim = self.outstanding.get(position)
        return (
            claim is not None
            and expiry_limit <= claim.expires <= expiry_limit + MAX_CLAIM_MILLISECONDS
            and position not in self.resting
        )

    def is_suspected(self, position: Position) -> bool:
        """Returns whether an outstanding message without a live claim is to be delivered alone."""
        claim = self.outstanding.get(position)
        if claim is None or claim.suspected:
            return claim is not None
        return claim.expires > 0 and claim.deliveries > 0 and position not in self.resting

    def find_status(self, position: Position, expiry_limit: int) -> Literal["claimed", "retrying", "waiting"]:
        if self.has_ended(position, expiry_limit):
            return "waiting"
        return "retrying" if position in self.resting else "claimed"

    def count_live(self, expiry_limit: int) -> int:
        return (
            len(self.outstanding)
            - len(self.find_ended(expiry_limit, len(self.outstanding)))
            - self.count_retrying(expiry_limit)
        )

    def count_retrying(self, expiry_limit: int) -> int:
        return sum(not self.has_ended(position, expiry_limit) for position in self.resting)

    def count_live_with_key(self, expiry_limit: int, key: int) -> int:
        return sum(self.is_live(position, expiry_limit) for position in self.busy.get(key, ()))

    # Snapshots

    def encode(self) -> bytes:
        """Encodes a snapshot. Equal states give equal snapshots."""
        outstanding = sorted(self.outstanding.items())
        claims = [claim for _, claim in outstanding]
        marks = [(position, claim.uncounted, claim.begun, claim.suspected) for position, claim in outstanding]
        snapshot = _Snapshot(
            FORMAT,
            self.number,
            self.cursor,
            [(*position, claim.number, claim.deliveries, claim.expires) for position, claim in outstanding],
            sorted(self.above),
            sorted(self.outbox.items()),
            sorted(self.pending_deletes.items()),
            list(self.superseded.items()),
            self.move,
            self.covers.encode(),
            self.covers.stored_until,
            [claim.secret for claim in claims],
            [claim.worker for claim in claims] if any(claim.worker for claim in claims) else [],
            [claim.key for claim in claims] if self.busy else [],
            sorted(self.resting),
            sorted(self.cancelled),
            [mark for mark in marks if mark[1:] != (0, True, False)],
            self.keeps_expired,
        )
        return _encoder.encode(snapshot)

    @classmethod
    def decode(cls, body: bytes) -> State:
        """Decodes a snapshot.

        Raises:
            UnknownFormat: The snapshot cannot be decoded, or has a format that this program does not know.
        """
        try:
            snapshot = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a snapshot of format {format_of(body)} cannot be read: {error}") from error
        require_known_format(snapshot.format, "a snapshot")
        state = cls()
        state.keeps_expired = snapshot.keeps_expired
        state.number = state.snapshot = snapshot.number
        state.cursor = snapshot.cursor
        # An upper bound for the entries before: the counts must never fall below those of an earlier state.
        state.freed_count = MAX_OUTSTANDING * snapshot.number
        workers = snapshot.workers or [""] * len(snapshot.outstanding)
        state.outstanding = {
            (ticks, low): LastDelivery(number, deliveries, expires, secret, worker)
            for (ticks, low, number, deliveries, expires), secret, worker in zip(
                snapshot.outstanding, snapshot.secrets, workers, strict=True
            )
        }
        state.above = set(snapshot.above)
        state.outbox = dict(snapshot.outbox)
        state.pending_deletes = dict(snapshot.pending_deletes)
        state.superseded = dict(snapshot.superseded)
        state.move = snapshot.move
        state.covers = PartitionCovers.decode(snapshot.covers, snapshot.stored_until, snapshot.cursor, snapshot.number)
        state._above_heap = snapshot.above
        for position, key in zip(list(state.outstanding), snapshot.keys, strict=False):
            state._record_keys([position], [key])
        state.resting = set(snapshot.resting)
        state.cancelled = set(snapshot.cancelled) if snapshot.cancelled else _NO_POSITIONS
        for position, uncounted, begun, suspected in snapshot.marked:
            claim = state.outstanding[position]
            claim.uncounted, claim.begun, claim.suspected = uncounted, begun, suspected
        state._ended = dict.fromkeys(position for position, claim in state.outstanding.items() if not claim.expires)
        state._rebuild_expiries()
        return state
