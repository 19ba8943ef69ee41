"""Builds the next entry of a claim log from requests and the state after the last entry."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from queuey.claims.rules.entries import ClaimEntry, ClaimGroup, MoveStep, group_by_expiry
from queuey.claims.rules.expiry import MAX_OUTBOX, ExpiredMessages, find_expirable
from queuey.claims.rules.kinds.plain import NO_PARTS, LogParts, PlainRules
from queuey.claims.rules.partition_state import MAX_ABOVE, MAX_CLAIM_MILLISECONDS, MAX_OUTSTANDING, ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, LastDelivery, ReceiptOutcome, ReceiptStatus
from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Message, bytes_at_most, position_of, rendered_bytes

MAX_ENTRY_IDS = 1000

Delay = float | Callable[[ClaimReceipt, int], float]
"""Seconds until a released message may be delivered again, or a function of a receipt and its number of deliveries."""
_ttl_of = attrgetter("ttl")


class Poll(msgspec.Struct, gc=False):
    """One caller's request for messages.

    Attributes:
        limit: Max messages.
        ttl: Duration of the claims in seconds; 0: return messages without claiming them.
        max_bytes: Max bytes of the messages in the answer, not counting the last one.
        worker: The caller's name for itself; may be blank.
        given: The messages for the caller, set by :meth:`queuey.claims.rules.entry_draft.EntryDraft.deliver`.
    """

    limit: int
    ttl: float
    max_bytes: int
    worker: str = ""
    given: list[Message] = []


class EntryDraft:
    """Collects requests into the next entry. The results that it returns count once the entry is in the log.

    Args:
        state: The state after the last entry. It must not change while the draft is in use.
        now: The clock (milliseconds since 1970).
        timing: Decides when claims are over.
        kind: The rules of the queue's kind.
        parts: What this process knows of the log beside its state.

    Attributes:
        rules: What the queue's kind decides.
    """

    def __init__(
        self,
        state: State,
        now: int,
        timing: ClaimTiming,
        kind: type[PlainRules] = PlainRules,
        parts: LogParts = NO_PARTS,
    ) -> None:
        self.state = state
        self.now = now
        self.expiry_limit = timing.expiry_limit(now)
        self.size = 0
        """Approximate number of ids in the entry."""
        self.changed: set[Position] = set()
        """Messages for which the entry may begin or end a claim, not counting deliveries."""
        self.keeps_expired = state.keeps_expired
        self._timing = timing
        self._finals: dict[Position, None] = {}
        self._outs: dict[Position, str] = {}
        self._superseded: dict[Position, None] = {}
        self._releases: dict[Position, bool] = {}  # whether the delivery counts as an attempt
        self._renewals: dict[Position, int] = {}
        self._claims: set[Position] = set()
        self._releases_all = False
        self.rules = kind(self, parts)
        self.groups: list[ClaimGroup] = []
        """Deliveries, a group for each caller."""
        self.workers: list[str] = []
        self.keys: list[list[int]] = []
        """Digests of the keys of each group's messages, in queues that keep keys."""
        self.lapsed: dict[Position, LastDelivery] = {}
        """Claims of this entry's messages that workers let expire; delays of released messages are not included."""
        self._sent: list[Position] = []
        self._move: MoveStep | None = None
        self._taken: frozenset[Position] = frozenset()
        self._cursor = state.cursor
        self._new_outstanding = 0
        self._cancels: dict[Position, None] = {}
        self.records_ends = False
        """True if the queue keeps results, so the ends of unacknowledged messages are recorded too."""

    @property
    def room(self) -> int:
        return MAX_ENTRY_IDS - self.size

    def latest_position(self) -> Position:
        """Returns the highest position that the clock of any process may have reached."""
        return ids.seconds_to_ticks(self.now / 1000 + self._timing.margin), ids.LOW_MAX

    def finish(self, position: Position) -> None:
        """Makes a message done."""
        self._finals[position] = None
        self.size += 1

    def is_done_here(self, position: Position) -> bool:
        return position in self._finals or position in self._outs or position in self._superseded

    def is_known_for_good(self, position: Position) -> bool:
        """Returns whether a message is done, here too, or the cursor has passed it, even if it is still outstanding."""
        return position in self._finals or position <= self.state.cursor or position in self.state.above

    def is_unfinished(self, position: Position) -> bool:
        return position in self.state.outstanding and position not in self._finals

    def is_live(self, position: Position) -> bool:
        if self.is_done_here(position) or position in self._releases:
            return False
        is_renewed = self._renewals.get(position, 0) >= self.expiry_limit
        return is_renewed or (not self._releases_all and self.state.is_live(position, self.expiry_limit))

    def may_redeliver(self, position: Position, max_deliveries: int = 0) -> bool:
        """Returns whether a claim is over and its message not cancelled, changed here, or at ``max_deliveries``."""
        is_ended = self.state.has_ended(position, self.expiry_limit) and position not in self.state.cancelled
        is_free = is_ended and not self._is_changed_here(position)
        return is_free and (not max_deliveries or self.state.outstanding[position].attempts < max_deliveries)

    def _is_changed_here(self, position: Position) -> bool:
        changed = position in self._claims or position in self._renewals or position in self._releases
        return changed or position in self._finals or position in self._outs or position in self._superseded

    def acknowledge(self, receipts: Sequence[ClaimReceipt]) -> list[ReceiptOutcome]:
        """Makes messages done, even if renewed before. Refuses undelivered ones while too many done are remembered."""
        state, settlements = self.state, []
        for receipt in receipts:
            position = receipt.ticks, receipt.low
            status = self._check_receipt(receipt, position)
            if status is ReceiptStatus.ACCEPTED:
                if position not in state.outstanding and len(state.above) + len(self._finals) >= MAX_ABOVE:
                    status = ReceiptStatus.REFUSED
                else:
                    self._renewals.pop(position, None)
                    self._releases.pop(position, None)
                    self._finals[position] = None
                    self.changed.add(position)
                    self.size += 1
            settlements.append(ReceiptOutcome(receipt, status))
        return settlements

    def renew(self, receipts: Sequence[ClaimReceipt], ttl: float) -> list[ReceiptOutcome]:
        """Extends claims to at least ``ttl`` seconds from now. If a message is not claimed, a claim begins.

        No claim begins for an id in the future, because such a message may not exist; for an undelivered message of a
        queue that keeps keys, because its key is not known; in an ordered queue, while another caller has a message of
        the same key; if the limits leave no place for it; or beyond ``MAX_OUTSTANDING``.
        """
        settlements = []
        self.rules.begin_request()
        expires = self.now + round(ttl * 1000)
        for receipt in receipts:
            position = receipt.position
            status = self._check_receipt(receipt, position)
            until = 0
            if status is ReceiptStatus.ACCEPTED:
                is_outstanding = position in self.state.outstanding
                if not is_outstanding and (position > self.latest_position() or self.rules.records_keys):
                    status = ReceiptStatus.FINAL
                elif not self.rules.may_renew(position):
                    status = ReceiptStatus.SUPERSEDED
                elif self._try_add_outstanding(position):
                    until = self._renew(position, expires)
                else:
                    status = ReceiptStatus.REFUSED
            settlements.append(ReceiptOutcome(receipt, status, until / 1000, position in self.state.cancelled))
        return settlements

    def _try_add_outstanding(self, position: Position) -> bool:
        outstanding = self.state.outstanding
        if position in outstanding or position in self._renewals:
            return True
        if len(outstanding) + self._new_outstanding >= MAX_OUTSTANDING:
            return False
        self._new_outstanding += 1
        return True

    def _renew(self, position: Position, expires: int) -> int:
        claim = self.state.outstanding.get(position)
        ended = (
            claim is None
            or claim.expires > expires + MAX_CLAIM_MILLISECONDS
            or position in self._releases
            or self._releases_all
        )
        before = 0 if ended or claim is None else claim.expires
        until = max(before, expires, self._renewals.get(position, 0))
        self._releases.pop(position, None)
        # Recorded even if the expiry stays the same: only an entry proves that the claim is still valid.
        self._renewals[position] = until
        self.changed.add(position)
        self.size += 1
        return until

    def release(
        self, receipts: Sequence[ClaimReceipt], delay: Delay = 0.0, *, begun: bool | None = True
    ) -> list[ReceiptOutcome]:
        """Ends claims now, or ``delay`` seconds from now, whatever their expiry is; cancelled messages become done.

        Attempts that have not begun do not count, at most 10 times for a message, or always if no caller has learned of
        them (``begun`` is None). In an ordered queue a claim cannot be released with a delay while another caller has a
        message of the same key, as may happen once the claim has expired.
        """
        settlements = []
        self.rules.begin_request()
        has_chosen_delay = not callable(delay) and delay > 0
        for receipt in receipts:
            position = receipt.position
            status = self._check_receipt(receipt, position)
            if has_chosen_delay and status is ReceiptStatus.ACCEPTED and position in self.state.outstanding:
                status = status if self.rules.may_delay(position) else ReceiptStatus.SUPERSEDED
            until = self._release(receipt, delay, begun=begun) if status is ReceiptStatus.ACCEPTED else 0
            settlements.append(ReceiptOutcome(receipt, status, until / 1000))
        return settlements

    def _release(self, receipt: ClaimReceipt, delay: Delay, *, begun: bool | None) -> int:
        position = receipt.position
        self._renewals.pop(position, None)
        self.changed.add(position)
        claim = self.state.outstanding.get(position)
        if claim is None or self._end_cancelled(position):
            return 0
        is_held = claim.expires > 0 and position not in self.state.resting
        counts = begun or not (is_held and (begun is None or claim.may_go_uncounted))
        seconds = delay(receipt, max(1, claim.deliveries - (not counts))) if callable(delay) else delay
        # An act that names no delivery says nothing about a claim that has ended in silence.
        if seconds or (claim.expires and (receipt.number or not self.state.has_ended(position, self.expiry_limit))):
            self._releases.setdefault(position, counts)
            self.size += 1
        if not seconds:
            return 0
        until = self._renewals[position] = self.now + round(seconds * 1000)  # Entries apply renewals after releases.
        return until

    def release_all(self) -> None:
        self.changed.update(self._renewals, () if self._releases_all else self.state.outstanding)
        self._releases_all = True
        self._renewals.clear()
        self._releases.clear()

    def was_delivered(self, position: Position) -> bool:
        return position in self.state.outstanding

    def ask_to_stop(self, position: Position) -> None:
        self._cancels[position] = None
        self.size += 1

    def add_as_ended(self, position: Position, limit: int) -> bool:
        """Records a message that is not due as delivered with an expired claim, so that the next poll delivers it.

        Returns False if the partition remembers ``limit`` messages, or the queue's kind delivers nothing early.
        """
        is_full = len(self.state.above) + len(self.state.outstanding) + self._new_outstanding >= limit
        if is_full or not self.rules.delivers_early:
            return False
        self._new_outstanding += position not in self._renewals
        self._renewals[position] = 1
        self.size += 1
        return True

    def _end_cancelled(self, position: Position) -> bool:
        if is_cancelled := position in self.state.cancelled or position in self._cancels:
            self._end_without_letter(position)
        return is_cancelled

    def verify(self, receipts: Sequence[ClaimReceipt]) -> list[ReceiptOutcome]:
        return [ReceiptOutcome(receipt, self._check_receipt(receipt, receipt.position)) for receipt in receipts]

    def _check_receipt(self, receipt: ClaimReceipt, position: Position) -> ReceiptStatus:
        number = receipt.number
        claim = self.state.outstanding.get(position)
        if position in self._superseded or (number and position in self.state.superseded):
            return ReceiptStatus.SUPERSEDED if number else ReceiptStatus.FINAL
        if claim is None:
            is_final = number or position in self._finals or self.state.is_done(position)
            return ReceiptStatus.FINAL if is_final else ReceiptStatus.ACCEPTED
        if position in self._finals:
            return ReceiptStatus.FINAL
        good = not number or ((number, receipt.secret) == (claim.number, claim.secret))
        return ReceiptStatus.ACCEPTED if good else ReceiptStatus.SUPERSEDED

    def supersede(self, positions: Iterable[Position]) -> None:
        for position in positions:
            if not (self.state.is_done(position) or position in self._finals):
                self._renewals.pop(position, None)
                self._releases.pop(position, None)
                # Recorded even if not claimed: a process that has read the message must not append a claim on it.
                self._superseded[position] = None
                self.changed.add(position)
                self.size += 1

    def end_gone(self, positions: Iterable[Position]) -> None:
        """Ends gone or cancelled messages that are free and not in the entry yet; withdraws the covers of gone ones."""
        for position in positions:
            if self.state.has_ended(position, self.expiry_limit) and not self._is_changed_here(position):
                self._end_without_letter(position)
                if position not in self.state.cancelled:
                    self.rules.on_gone(position)

    def _end_without_letter(self, position: Position) -> None:
        if self.records_ends:
            self._outs[position] = ""
            self.size += 1
        else:
            self.finish(position)

    def make_dead_letters(self, positions: Iterable[Position], target: str, max_deliveries: int) -> None:
        """Makes messages dead letters that are free after ``max_deliveries`` attempts, and not in the entry yet."""
        for position in positions:
            if self.may_redeliver(position) and not self.may_redeliver(position, max_deliveries):
                self._make_dead_letter(position, target)

    def _make_dead_letter(self, position: Position, target: str) -> None:
        self._outs[position] = target
        self._record_lapsed_claim(position)
        self.size += 1

    def keep_expired(self) -> None:
        """Marks the log so that reads for claims include expired messages from now on."""
        self.size += not self.keeps_expired
        self.keeps_expired = True

    def expire(self, expired: ExpiredMessages, target: str) -> None:
        """Makes expired messages dead letters in ``target``, cancelled ones done, as entry and outbox have room."""
        room = min(MAX_ENTRY_IDS - self.size, MAX_OUTBOX - len(self.state.outbox) - len(self._outs))
        for position in find_expirable(self.state, expired, self._is_changed_here, self.expiry_limit, room):
            if not self._end_cancelled(position):
                self._make_dead_letter(position, target)
                self.rules.on_gone(position)

    def dead_letter_claimed(self, receipts: Sequence[ClaimReceipt], target: str) -> list[ReceiptOutcome]:
        """Makes outstanding messages dead letters at their workers' request, cancelled ones done; others are final."""
        settlements = []
        for receipt in receipts:
            position = receipt.position
            status = self._check_receipt(receipt, position)
            if position not in self.state.outstanding:
                status = ReceiptStatus.FINAL
            elif status is ReceiptStatus.ACCEPTED:
                self._renewals.pop(position, None)
                self._releases.pop(position, None)
                self.changed.add(position)
                if not self._end_cancelled(position):
                    self._outs[position] = target
                    self.size += 1
            settlements.append(ReceiptOutcome(receipt, status))
        return settlements

    def report_sent(self, positions: Iterable[Position]) -> None:
        for position in positions:
            if position in self.state.outbox:
                self._sent.append(position)
                self.size += 1

    def deliver(
        self, polls: Sequence[Poll], returned: Sequence[Message], fresh: Sequence[Message], max_deliveries: int = 0
    ) -> None:
        """Delivers messages to polls in order, as ``Poll.given``: suspected ones alone. With a TTL of 0 they stay free.

        Args:
            polls: The requests for messages.
            returned: Messages whose claims have ended. Messages that were claimed again are skipped.
            fresh: Messages of a scan. Messages that the state has by now are skipped.
            max_deliveries: Max deliveries of a message; 0: no limit.
        """
        candidates = self._find_deliverable(returned, fresh, max_deliveries)
        make_filter = None
        if not self.rules.allows_all:
            make_filter = self.rules.begin_delivery(candidates, claims=any(map(_ttl_of, polls)))
        suspected = set(filter(self.state.is_suspected, [message.position for message in returned])) if returned else ()
        index = 0
        for caller, poll in enumerate(polls):
            chosen: list[Message] = []
            weight, first = 0, index
            may_give = make_filter and make_filter(caller, poll.ttl > 0)
            # Usually all messages fit, and an upper bound of their size is cheaper to compute than the size.
            fits = may_give is None and bytes_at_most(candidates[index : index + poll.limit]) < poll.max_bytes
            limit = min(poll.limit, MAX_ENTRY_IDS - self.size) if poll.ttl else poll.limit
            while index < len(candidates) and len(chosen) < limit and weight < poll.max_bytes:
                message = candidates[index]
                if suspected and poll.ttl and message.position in suspected:
                    if chosen:
                        break
                    limit = 1
                index += 1
                if may_give is None or may_give(message):
                    weight += 0 if fits else rendered_bytes(message.body, message.meta)
                    chosen.append(message)
            poll.given = chosen
            if not poll.ttl:
                index = first
            elif chosen:
                self._claim(poll)
        if make_filter is not None:
            self.size += self.rules.end_delivery()

    def _find_deliverable(
        self, returned: Sequence[Message], fresh: Sequence[Message], max_deliveries: int
    ) -> list[Message]:
        """Returns messages to redeliver, then new ones within ``MAX_OUTSTANDING``."""
        room = MAX_OUTSTANDING - len(self.state.outstanding) - self._new_outstanding
        messages = [m for m in returned if self.may_redeliver(m.position, max_deliveries)] if returned else []
        positions = list(map(position_of, fresh))
        new = self.state.find_unknown(positions)
        new.difference_update(self._finals, self._claims, self._renewals, self._releases, self._outs, self._superseded)
        if len(new) < len(positions):
            fresh = [message for message in fresh if message.position in new]
        messages += fresh[: max(0, room)]
        return messages

    def _claim(self, poll: Poll) -> None:
        positions = list(map(position_of, poll.given))
        self._claims.update(positions)
        self.size += len(positions)
        for position in positions:
            if position in self.state.outstanding:
                self._record_lapsed_claim(position)
        if self.rules.records_keys:
            self.keys.append(list(map(self.rules.search.compute_key, poll.given)))
        self.groups.append((self.now + round(poll.ttl * 1000), positions))
        self.workers.append(poll.worker)

    def _record_lapsed_claim(self, position: Position) -> None:
        last = self.state.outstanding.get(position)
        if last is not None and last.expires and position not in self.state.resting:
            self.lapsed[position] = last

    def settle_chunk(self, move: int, chunk: int, last: Position | None) -> None:
        """Ends the chunk that a move has under way. Does nothing if another chunk is under way.

        Args:
            move: The move's number.
            chunk: The chunk's number; 0: any.
            last: Position of the chunk's last message in the target; None if its messages stay here.
        """
        state = self.state.move
        if state is None or state.number != move or not state.chunk or chunk not in {0, state.chunk}:
            return
        self.size += len(state.taken)
        returned = MoveStep(move, returned=state.chunk)
        self._move = returned if last is None else MoveStep(move, moved=state.chunk, last=last)

    def may_move(self, move: int) -> bool:
        state = self.state.move
        if state is None or state.number < move:
            return state is None or not state.chunk
        return state.number == move and not state.ended and (not state.chunk or self._move is not None)

    def add_to_move(self, move: int, messages: Iterable[Message]) -> list[Position]:
        """Adds messages to a move's chunk unless they are claimed or done, and returns the positions added.

        In a dedup queue their copies become done, like the copies of a delivered message.
        """
        positions = []
        for message in messages:
            position = message.position
            is_new = not self.state.is_known(position) and not self._is_changed_here(position)
            if is_new or self.may_redeliver(position):
                positions.append(position)
                self.rules.on_moved(message)
        if positions:
            self._move = replace(self._move or MoveStep(move), taken=positions)
            self._taken = frozenset(positions)
            self.size += len(positions)
        return positions

    def end_move(self, move: int) -> None:
        self._move = replace(self._move or MoveStep(move), ended=True)
        self.size += 1

    def advance(self, bound: Position, seen: Sequence[Position], *, delete: bool = False) -> int:
        """Moves the cursor to just below the first undelivered message. Duplicates that it passes become done.

        Args:
            bound: All messages above the cursor and below this are in ``seen``: contiguous reads from the cursor on
                have shown them, and ``bound`` is not above the horizon of the first read.
            seen: Positions, ascending.
            delete: Whether duplicates are to be deleted.

        Returns:
            How many positions of ``seen`` the cursor passes; in queues that keep keys, how many positions of
            ``State.above``.
        """
        if not self.rules.allows_all:
            self.rules.begin_advance(bound, seen)
        undelivered = self.state.find_unknown(seen[: bisect_left(seen, bound)])
        undelivered.difference_update(self._claims, self._finals, self._renewals, self._taken, self._outs)
        for position in sorted(undelivered):
            if not self.rules.is_done_copy(position) or (delete and self.size >= MAX_ENTRY_IDS):
                bound = position
                break
            self.size += 1
            if delete:
                self._finals[position] = None
        if bound > ids.FIRST:
            self._cursor = max(self._cursor, ids.preceding(bound))
        above = self.state.above
        return bisect_left(seen, bound) if not self.rules.records_keys else sum(position < bound for position in above)

    @property
    def has_changes_beyond_cursor(self) -> bool:
        return bool(self.size) or self._releases_all or self.rules.withdraws_covers

    def make_entry(
        self, token: int, *, secrets: Sequence[int] = (), delete: bool = False, deleted: int = 0, snapshot: int = 0
    ) -> ClaimEntry:
        """Builds the entry.

        ``secrets`` has a random number for each of :attr:`groups`; empty: all 0. The other arguments are fields of the
        entry.
        """
        claimed, outs = self.state.outstanding, self._outs
        return ClaimEntry(
            token=token,
            at=self.now,
            cursor=self._cursor if self._cursor > self.state.cursor else ids.FIRST,
            claims=self.groups,
            finals=list(self._finals),
            renewals=group_by_expiry(self._renewals) if self._renewals else [],
            releases=list(self._releases),
            delete=delete and bool(self._finals),
            deleted=deleted,
            snapshot=snapshot,
            outs=[(p, to, claimed[p].attempts if p in claimed else 0) for p, to in outs.items()] if outs else [],
            sent=self._sent,
            release_all=self._releases_all,
            superseded=list(self._superseded),
            move=self._move,
            covers=None if self.rules.allows_all else self.rules.make_cover_changes(self._cursor),
            secrets=list(secrets) or [0] * len(self.groups),
            workers=self.workers if any(self.workers) else [],
            keys=self.keys,
            cancels=list(self._cancels),
            unbegun=[position for position, counts in self._releases.items() if not counts] if self._releases else [],
            keeps=self.keeps_expired,
        )
