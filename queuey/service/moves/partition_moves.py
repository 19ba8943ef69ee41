"""What a move does in one partition, step by step: decisions only, no input or output.

Any number of processes may do this for one move at once, each may stop after any step, and none needs to know of the
others. The log of the partition decides (:mod:`queuey.claims`)::

            ┌───────────── the log: messages are taken, one chunk ◄──────────────┐
            ▼                                                                    │
    they are posted to the target, under a key that names the chunk              │
            ▼                                                                    │
    they are deleted here ──► the log: the chunk is moved, the next one is taken ┘

1. A message is in one chunk at most, because the log takes only what is neither claimed nor done.
2. The messages of a chunk get into the target once, because its key is theirs alone.
3. A message is deleted here only after it is in the target, and the log has its chunk until then. So whoever finds a
   chunk under way goes on with it.
4. No chunk is taken while another one is under way. So the order stays.
5. When the move ends, the log says so, and takes nothing for it any more: a process that wakes up late can do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from queuey.errors import Conflict
from queuey.ids import FIRST, Position
from queuey.messages import Message
from queuey.service.claims.move_turns import MoveTurn


class Ask(NamedTuple):
    """Ask the log for a turn; see :class:`~queuey.service.claims.move_turns.MoveOrder`. Sent back: the turn."""

    moved: int = 0
    last: Position = FIRST
    stop: bool = False
    give_back: bool = False


class Fetch(NamedTuple):
    """Read messages by id. Sent back: those that are still there."""

    places: list[Position]


class Publish(NamedTuple):
    """Post messages to the target under the chunk's key. Sent back: the last one's position there, or ``after``."""

    chunk: int
    messages: list[Message]
    after: Position


class Delete(NamedTuple):
    """Delete messages here."""

    places: list[Position]


class Pause(NamedTuple):
    """Wait a little: messages that were posted before the move may still become visible."""


Step = Ask | Fetch | Publish | Delete | Pause
Steps = Generator[Step, Any, None]


class MoveBlocked(Conflict):
    """Another move has left messages on their way."""


def move_partition(stopping: Callable[[], bool]) -> Steps:
    """Yields the steps that move a partition's messages.

    Args:
        stopping: Says whether to end with the chunk that is under way.

    Raises:
        MoveBlocked: An earlier move was never finished.
    """
    turn: MoveTurn = yield Ask(stop=stopping())
    while not turn.ended:
        if turn.blocked:
            raise MoveBlocked("An earlier move from this queue was never finished.")
        if not turn.chunk:
            yield Pause()
            turn = yield Ask(stop=stopping())
            continue
        messages = turn.messages
        if messages is None:
            messages = yield Fetch(turn.places)
        last: Position = yield Publish(turn.chunk, messages, turn.last)
        yield Delete(turn.places)
        turn = yield Ask(moved=turn.chunk, last=last, stop=stopping())


def give_back() -> Steps:
    """Yields the steps that end a move whose target is gone for good: the chunk that is under way stays."""
    yield Ask(give_back=True)
