"""Expired messages of a queue that makes dead letters of them (``on_expiry = dead-letter``).

Their rows outlive them by a day. A message that has ended is not delivered any more, and is given up once no process
takes it for a live one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from queuey.claims.state import MOST_ABOVE, State
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import KEPT_SECONDS, Message

ROW_SECONDS = 10.0
"""Max seconds from the end of a message that is not kept until its row goes."""
LIVE_SECONDS = KEPT_SECONDS // 2
"""Number of seconds after its end for which a message is left to the worker that has claimed it."""
MOST_OUTBOX = 1_000
"""Max dead letters of a partition that wait to be published while more are made of expired messages."""
MOST_ENDED = 5_000
"""Max expired messages of one scan."""


class EndedMessages(msgspec.Struct):
    """Expired messages that were read.

    Attributes:
        all: All of them.
        due: Those that may be given up.
        overdue: Those that may be given up even if a worker has them: their rows go in half a day.
    """

    all: set[Position] = msgspec.field(default_factory=set)
    due: list[Position] = []
    overdue: set[Position] = msgspec.field(default_factory=set)

    @property
    def are_many(self) -> bool:
        return len(self.all) >= MOST_ENDED


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
        ended.all.add(position)
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
    state: State, positions: Iterable[Position], overdue: Collection[Position], expired: int, room: int, outs: int
) -> list[Position]:
    """Returns the expired messages that the next entry makes dead letters.

    Args:
        state: After the last entry.
        positions: The messages.
        overdue: Those that are not left to a worker who has claimed them.
        expired: Claims with an expiry below this are over (milliseconds since 1970).
        room: Max messages.
        outs: How many messages the entry makes dead letters already.
    """
    room = min(room, MOST_OUTBOX - len(state.outbox) - outs)
    above = MOST_ABOVE - len(state.above)
    chosen: list[Position] = []
    for position in positions:
        if len(chosen) >= min(room, above):
            break
        if not state.is_done(position) and (position in overdue or not state.is_live(position, expired)):
            chosen.append(position)
    return chosen
