"""The steps of a move in one partition, without their execution.

Any number of processes may take them for one move at once, each may stop after any step, and none needs to know of the
others. The log of the partition decides (:mod:`queuey.claims`)::

            ┌───────────── the log: messages are taken, one chunk ◄──────────────┐
            ▼                                                                    │
    they are posted to the target, under a key that names the chunk              │
            ▼                                                                    │
    they are deleted here ──► the log: the chunk is moved, the next one is taken ┘

1. A message is in one chunk at most, because the log takes only messages that are neither claimed nor done.
2. The messages of a chunk get into the target once, because its key is theirs alone.
3. A message is deleted here only after it is in the target, and the log has its chunk until then. So any process that
   finds a chunk under way goes on with it.
4. No chunk is taken while another one is under way. So the order stays.
5. When the move ends, the log records that, and takes nothing for it any more: a process that wakes up late does no
harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from queuey.errors import Conflict
from queuey.ids import FIRST, Position
from queuey.messages import Message
from queuey.service.claims.move_turns import MoveTurn


class MoveBlocked(Conflict):
    """Another move has left a chunk under way."""


class PartitionMove(ABC):
    """The move of a partition.

    Attributes:
        number: Of the partition.
        turn: The log's last answer; None: it was not asked yet.
        over: The move takes nothing more here.
        is_given_back: The target is gone for good: the chunk under way stays here.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.turn: MoveTurn | None = None
        self.over = False
        self.is_given_back = False

    async def advance(self) -> None:
        """Goes on with the chunk under way, or takes one. After an error this may be called again.

        Raises:
            MoveBlocked: An earlier move was never finished.
        """
        if self.is_given_back:
            await self.ask(give_back=True)
            self.over = True
            return
        turn = self.turn
        if turn is None or not turn.chunk:
            self.turn = await self.ask()
        else:
            self.turn = await self.ask(moved=turn.chunk, last=await self.carry(turn))
        if self.turn.blocked and not self.turn.ended:
            raise MoveBlocked("An earlier move from this queue was never finished.")
        self.over = self.turn.ended

    async def carry(self, turn: MoveTurn) -> Position:
        """Publishes and deletes a chunk; returns the position of its last message in the target."""
        messages = await self.fetch(turn.places) if turn.messages is None else turn.messages
        last = await self.publish(turn.chunk, messages, turn.last)
        await self.delete(turn.places)
        return last

    @abstractmethod
    async def ask(self, *, moved: int = 0, last: Position = FIRST, give_back: bool = False) -> MoveTurn:
        """Asks the log for a turn; see :class:`~queuey.service.claims.move_turns.MoveOrder`."""

    @abstractmethod
    async def fetch(self, places: list[Position]) -> list[Message]:
        """Reads messages by id; returns those that are still there."""

    @abstractmethod
    async def publish(self, chunk: int, messages: list[Message], after: Position) -> Position:
        """Posts messages to the target under the chunk's key; returns the last one's position there, or ``after``."""

    @abstractmethod
    async def delete(self, places: list[Position]) -> None:
        """Deletes messages here."""
