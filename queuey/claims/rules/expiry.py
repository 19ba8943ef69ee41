"""Expired messages of a queue with ``on_expiry = dead-letter``.

Their rows are kept for a day after the expiry. An expired message is not delivered any more. It becomes a dead letter
once it has expired by the clock of every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from queuey.claims.rules.partition_state import MAX_ABOVE, State
from queuey.model.ids import LAST, TICKS_PER_SECOND, Position
from queuey.model.messages import KEPT_SECONDS, Message

MAX_ROW_DELETION_DELAY = 10.0
"""Max seconds between the expiry of a message and the deletion of its row, in queues that do not keep expired rows."""
CLAIMED_GRACE_SECONDS = KEPT_SECONDS // 2
"""Number of seconds after its expiry for which a claimed message is left to its worker."""
MAX_OUTBOX = 1_000
"""Max unpublished dead letters of a partition. With more, no expired messages become dead letters."""
MAX_EXPIRED_IN_SCAN = 5_000
"""Max expired messages of one scan."""


class ExpiredMessages(msgspec.Struct):
    """Expired messages found by a read.

    Attributes:
        expiries: Expiry of each message (ticks).
        due: Messages that may become dead letters.
        overdue: Messages that may become dead letters even if claimed: their rows are deleted in half a day.
        first_live: The lowest message read that has not expired and was not delivered. The cursor stays below it.
    """

    expiries: dict[Position, int] = {}
    due: list[Position] = []
    overdue: set[Position] = set()
    first_live: Position = LAST

    def record_live(self, messages: Sequence[Message]) -> None:
        if messages:
            self.first_live = min(self.first_live, messages[0].position)

    @property
    def are_many(self) -> bool:
        return len(self.expiries) >= MAX_EXPIRED_IN_SCAN


def split_expired(messages: Sequence[Message], expired: ExpiredMessages, now: int, margin: float) -> list[Message]:
    """Returns the messages that have not expired, and adds the others to ``expired``.

    Args:
        messages: Messages as read.
        expired: Receives the expired messages.
        now: The clock (ticks).
        margin: Max difference between the clocks of two processes (seconds).
    """
    live = [message for message in messages if message.expires > now]
    if len(live) == len(messages):
        return live
    due = now - ticks_until_due(margin)
    overdue = now - CLAIMED_GRACE_SECONDS * TICKS_PER_SECOND
    for message in messages:
        position = message.position
        if message.expires > now or position in expired.expiries:
            continue
        expired.expiries[position] = message.expires
        if message.expires <= due:
            expired.due.append(position)
        if message.expires <= overdue:
            expired.overdue.add(position)
    return live


def ticks_until_due(margin: float) -> int:
    """Returns the ticks from the expiry of a message until it may become a dead letter.

    By then it has expired for every process, and its row would be gone if the queue did not keep expired rows.
    """
    return round((MAX_ROW_DELETION_DELAY + margin) * TICKS_PER_SECOND)


def find_expirable(
    state: State, expired: ExpiredMessages, is_changed: Callable[[Position], bool], expiry_limit: int, room: int
) -> Iterator[Position]:
    """Yields the expired messages that the next entry makes dead letters. Skips claimed ones that are not overdue.

    If ``MAX_ABOVE`` messages above the cursor are done, only messages that the cursor can pass are yielded.

    Args:
        state: The state after the last entry.
        expired: The expired messages found by a read.
        is_changed: Returns whether the entry changes a message in another way.
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        room: Max messages to yield.
    """
    upper = expired.first_live if len(state.above) >= MAX_ABOVE else LAST
    for position in expired.due:
        if room <= 0:
            return
        is_claimed = state.is_live(position, expiry_limit) and position not in expired.overdue
        if position < upper and not (is_claimed or is_changed(position) or state.is_done(position)):
            room -= 1
            yield position
