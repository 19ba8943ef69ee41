"""Plain queues: any free message is next, in the order of ids. The other kinds extend these rules.

Each kind has two classes. The *search* says which messages a round reads for its polls. The *rules* say what the next
entry does with them, with receipts, and with messages that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from queuey.claims.rules.covers import ScanDuplicates
from queuey.claims.rules.entries import CoverChanges
from queuey.claims.rules.partition_state import State
from queuey.claims.rules.waiting import Waiting
from queuey.model.ids import Position
from queuey.model.messages import Message

if TYPE_CHECKING:
    from queuey.claims.rules.entry_draft import EntryDraft

NO_LIMIT = 1 << 40
"""Number of places that means no limit: more than a log can have claims."""

Filter = Callable[[Message], bool]
"""Returns whether a poll may have a message, and if so counts it as delivered."""


class ClaimLimits(msgspec.Struct, frozen=True):
    """Max live claims of a partition, and of one key; 0: no limit."""

    total: int = 0
    per_key: int = 0


class LogParts(msgspec.Struct):
    """What a process knows of a log beside its state.

    Attributes:
        limits: Max live claims.
        waiting: Messages that wait for others of their keys, in a queue that keeps keys.
        copies: Duplicates that this round's reads have shown, in a dedup queue.
        until: New covers hide undelivered copies with ids below this (ticks).
        written: See ``CoverChanges.stored``.
    """

    limits: ClaimLimits = ClaimLimits()
    waiting: Waiting = msgspec.field(default_factory=Waiting)
    copies: ScanDuplicates = msgspec.field(default_factory=ScanDuplicates)
    until: int = 0
    written: tuple[int, Position] | None = None


NO_PARTS = LogParts()
"""Shared by all logs of plain queues without limits, to save memory. It must never be changed."""


class PlainSearch(msgspec.Struct):
    """Which messages a round reads for its polls.

    Attributes:
        state: The state after the last entry.
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        limits: Max live claims.
        ending: Returns the messages whose claims the next entry probably ends.
        finishing: Returns the messages that the next entry probably makes done.
        max_per_key: Max messages for one caller.
        room: Estimated number of messages that the next entry can deliver.
        in_order: A message may be delivered only together with all waiting messages of its key before it.
    """

    state: State
    expiry_limit: int
    limits: ClaimLimits
    ending: Callable[[], Iterable[Position]]
    finishing: Callable[[], Iterable[Position]]
    max_per_key: int
    room: int = NO_LIMIT
    in_order: ClassVar = False

    @staticmethod
    def compute_key(message: Message) -> int:
        """Returns the digest of a message's key, or 0 if it has none or the queue keeps no keys."""
        return 0

    def find_ended(self, limit: int) -> list[Position]:
        """Returns messages whose claims have ended and which may be delivered again, the next ones first."""
        return self.state.find_ended(self.expiry_limit, limit)

    def record_returned(self, messages: Sequence[Message], ended: Sequence[Position]) -> None:
        """Records which messages are delivered again, and which are gone or become dead letters."""

    def estimate_for_key(self, key: int) -> int:
        """Returns how many messages of a key the next entry can probably deliver."""
        return NO_LIMIT


class PlainRules(msgspec.Struct):
    """Decides what the next entry may do.

    Attributes:
        entry: The changes of the entry so far.
        parts: What this process knows of the log beside its state.
        search: The kind's search.
        allows_all: Every delivery is allowed, and the cursor passes no undelivered message. So nobody asks.
        records_keys: The log records the keys of claimed messages.
        delivers_early: An operator may let a message be delivered before it is due.
        withdraws_covers: The entry ends covers whose messages are gone.
    """

    entry: EntryDraft
    parts: LogParts
    search: ClassVar[type[PlainSearch]] = PlainSearch
    allows_all: ClassVar = True
    records_keys: bool = False
    delivers_early: bool = True
    withdraws_covers: bool = False

    # Receipts

    def begin_request(self) -> None:
        """Begins the receipts of one request."""

    def may_renew(self, position: Position) -> bool:
        """Returns whether the claim of an outstanding message may be renewed or begin again."""
        return True

    def may_delay(self, position: Position) -> bool:
        """Returns whether an outstanding message may be released with a delay that the caller chose."""
        return True

    # Deliveries

    def begin_delivery(self, messages: list[Message], *, claims: bool) -> Callable[[int, bool], Filter] | None:
        """Puts the free messages into the order in which they are delivered.

        Args:
            messages: The free messages: first those whose claims have ended, then new ones. Is changed.
            claims: A poll claims messages.

        Returns:
            A function of a caller's number, and of whether it claims messages, that returns the caller's filter; None
            if callers may have any messages.
        """
        return None

    def end_delivery(self) -> int:
        """Returns the number of ids that the deliveries add to the entry beside the messages."""
        return 0

    # Messages that leave, and the cursor

    def on_moved(self, message: Message) -> None:
        """A move takes a message."""

    def on_gone(self, position: Position) -> None:
        """An outstanding message no longer exists, or a message has expired."""

    def begin_advance(self, bound: Position, seen: Sequence[Position]) -> None:
        """The cursor moves; all messages above it and below ``bound`` are in ``seen``."""

    def is_done_copy(self, position: Position) -> bool:
        """Returns whether the cursor may pass a message that was not delivered."""
        return False

    def make_cover_changes(self, cursor: Position) -> CoverChanges | None:
        return None
