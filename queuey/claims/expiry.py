"""Expired messages of a queue that makes dead letters of them (``on_expiry = dead-letter``).

Their rows outlive them by a day. A message that has ended is not delivered any more, and is given up once no process
takes it for a live one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from queuey.claims.state import MOST_ABOVE, State
from queuey.ids import LAST, TICKS_PER_SECOND, Position
from queuey.messages import KEPT_SECONDS, Message

ROW_SECONDS = 10.0
"""Max seconds from the end of a message that is not kept until its row goes."""
LIVE_SECONDS = KEPT_SECONDS // 2
"""Number of seconds after its end for which a message is left to the worker that has claimed it."""
MAX_OUTBOX = 1_000
"""Max dead letters of a partition that wait to be published while more are made of expired messages."""
MAX_ENDED = 5_000
"""Max expired messages of one scan."""


class EndedMessages(msgspec.Struct):
    """Expired messages that were read.

    Attributes:
        all: All of them, with their ends (ticks).
        due: Messages that may be given up.
        overdue: Messages that may be given up even if a worker has them: their rows go in half a day.
        first_live: The lowest message, of those read, that has not ended and was not delivered. The cursor stays below.
    """

    all: dict[Position, int] = {}
    due: list[Position] = []
    overdue: set[Position] = set()
    first_live: Position = LAST

    def saw_live(self, messages: Sequence[Message]) -> None:
        """Records messages that were not delivered, ascending."""
        if messages:
            self.first_live = min(self.first_live, messages[0].position)

    @property
    def are_many(self) -> bool:
        return len(self.all) >= MAX_ENDED


def split_ended(messages: Sequence[Message], ended: EndedMessages, now: int, margin: float) -> list[Message]:
    """Returns the messages that have not ended, and adds the others to ``ended``.

    Args:
        messages: As they were read.
        ended: Is filled.
        now: Ticks.
        margin: The largest difference between the clocks of two processes (seconds).
    """
    live = [message for message in messages if message.expires > now]
    if len(live) == len(messages):
        return live
    due = now - due_after(margin)
    overdue = now - LIVE_SECONDS * TICKS_PER_SECOND
    for message in messages:
        position = message.position
        if message.expires > now or position in ended.all:
            continue
        ended.all[position] = message.expires
        if message.expires <= due:
            ended.due.append(position)
        if message.expires <= overdue:
            ended.overdue.add(position)
    return live


def due_after(margin: float) -> int:
    """Returns the ticks from the end of a message until it is given up.

    No process takes it for a live one then, and a row that is there still is that of a message that is kept.
    """
    return round((ROW_SECONDS + margin) * TICKS_PER_SECOND)


def may_expire(
    state: State, ended: EndedMessages, is_changed: Callable[[Position], bool], expired: int, room: int
) -> Iterator[Position]:
    """Yields the expired messages that the next entry makes dead letters.

    With very many messages above the cursor it yields only messages that the cursor then passes.

    Args:
        state: After the last entry.
        ended: The messages that were read.
        is_changed: Tells if the entry changes a message otherwise.
        expired: Claims with an expiry below this are over (milliseconds since 1970).
        room: Max messages.
    """
    upper = ended.first_live if len(state.above) >= MOST_ABOVE else LAST
    for position in ended.due:
        if room <= 0:
            return
        is_left = state.is_live(position, expired) and position not in ended.overdue
        if position < upper and not (is_left or is_changed(position) or state.is_done(position)):
            room -= 1
            yield position
