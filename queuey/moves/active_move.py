"""One move that this process works on, partition by partition.

Any number of processes may take the steps of one move concurrently, each may stop after any step, and none needs to
know of the others. The log of the partition decides (:mod:`queuey.claims.rules`)::

            ┌───────────── the log: messages are taken, one chunk ◄──────────────┐
            ▼                                                                    │
    they are posted to the target, under a key that names the chunk              │
            ▼                                                                    │
    they are deleted here ──► the log: the chunk is moved, the next one is taken ┘

1. A message is in at most one chunk, because the log takes only messages that are neither claimed nor done.
2. The messages of a chunk get into the target once, because the chunk's key is unique.
3. A message is deleted here only after it is in the target, and the log has its chunk until then. So any process that
   finds an unfinished chunk continues with it.
4. No chunk is taken while another one is unfinished. So the order is kept.
5. When the move ends, the log records that and takes no more messages for it: a process that wakes up late does no
   harm.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from queuey.access.queue_access import QueueAccess
from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.move_turns import FETCH_BATCH_SIZE, MoveOrder, MoveTurn
from queuey.model import ids
from queuey.model.deadletters import convert_for_move
from queuey.model.errors import (
    ClaimsRefused,
    Conflict,
    QueueChanged,
    QueueNotFound,
    QueueyError,
    StoreBusy,
    StoreClosed,
)
from queuey.model.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.kinds import choose_target_partition
from queuey.model.messages import Location, Message, NewMessage, PostKey, Queue
from queuey.moves.move_records import QueueMove, QueueMoveProgress
from queuey.storage import Store

KEY_TTL = 7 * 86_400
"""Number of seconds for which the key of a chunk is remembered. A move that stands still for longer may post a chunk
twice."""
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0
"""Min and max pause in seconds before a failed step is repeated."""
MAX_COUNTED = 1000
"""Max messages counted when a move starts; more are estimated."""

MAX_ATTEMPTS = 3
TURN_INTERVAL = 0.2
"""Interval in seconds between turns at a partition whose last messages are not certain yet."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class MoveBlocked(Conflict):
    """An earlier move has left an unfinished chunk."""

    code = "Conflict"


class PartitionMove(ABC):
    """The steps of a move in one partition, without their execution.

    Attributes:
        number: Number of the partition.
        turn: The log's last answer; None before the first one.
        is_over: The move takes no more messages here.
        is_given_back: The target is gone for good: the current chunk stays here.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.turn: MoveTurn | None = None
        self.is_over = False
        self.is_given_back = False

    async def advance(self) -> None:
        """Continues with the current chunk, or takes one. It may be called again after an error.

        Raises:
            MoveBlocked: An earlier move was never finished.
        """
        if self.is_given_back:
            await self.ask(give_back=True)
            self.is_over = True
            return
        turn = self.turn
        if turn is None or not turn.chunk:
            self.turn = await self.ask()
        else:
            self.turn = await self.ask(moved=turn.chunk, last=await self.move_chunk(turn))
        if self.turn.blocked and not self.turn.ended:
            raise MoveBlocked("An earlier move from this queue was never finished.")
        self.is_over = self.turn.ended

    async def move_chunk(self, turn: MoveTurn) -> Position:
        """Publishes and deletes a chunk; returns the position of its last message in the target."""
        messages = await self.fetch(turn.positions) if turn.messages is None else turn.messages
        last = await self.publish(turn.chunk, messages, turn.last)
        await self.delete(turn.positions)
        return last

    @abstractmethod
    async def ask(self, *, moved: int = 0, last: Position = FIRST, give_back: bool = False) -> MoveTurn:
        """Asks the log for a turn; see :class:`~queuey.claims.log.move_turns.MoveOrder`."""

    @abstractmethod
    async def fetch(self, positions: list[Position]) -> list[Message]:
        """Reads messages by position; returns the existing ones."""

    @abstractmethod
    async def publish(self, chunk: int, messages: list[Message], after: Position) -> Position:
        """Posts messages to the target under the chunk's key; returns the last one's position, or ``after``."""

    @abstractmethod
    async def delete(self, positions: list[Position]) -> None:
        """Deletes messages from the source, after recording the end of their jobs."""


class SourceGone(Exception):
    """The source was purged or deleted: nothing is left to move."""


class TargetGone(Exception):
    """The target was purged or deleted."""


class _Partition(PartitionMove):
    """A partition of a move, and the due time of its next step."""

    def __init__(self, move: ActiveMove, number: int) -> None:
        super().__init__(number)
        self.due = 0.0
        self._pause = FIRST_PAUSE
        self._move = move

    def schedule_next(self, now: float) -> None:
        self._pause = FIRST_PAUSE
        self.due = now if self.turn is None or self.turn.chunk else now + TURN_INTERVAL

    def schedule_retry(self, now: float) -> None:
        self.due = now + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE)

    def give_back(self) -> None:
        self.is_given_back = True
        self.due = 0.0

    async def ask(self, *, moved: int = 0, last: Position = ids.FIRST, give_back: bool = False) -> MoveTurn:
        return await self._move.ask(self.number, moved=moved, last=last, give_back=give_back)

    async def fetch(self, positions: list[Position]) -> list[Message]:
        async def fetch(queue: Queue) -> list[Message]:
            locations = [(self.number, position) for position in positions]
            steps = range(0, len(locations), FETCH_BATCH_SIZE)
            fetch = partial(self._move.store.messages.fetch, queue, kept=queue.on_expiry == "dead-letter")
            return [message for i in steps for message in await fetch(locations[i : i + FETCH_BATCH_SIZE])]

        return await self._move.call_with_source(fetch)

    async def publish(self, chunk: int, messages: list[Message], after: Position) -> Position:
        return await self._move.publish(self.number, chunk, messages, after)

    async def delete(self, positions: list[Position]) -> None:
        # Deletes messages from the source, after recording the end of their jobs.
        locations = [(self.number, position) for position in positions]
        await self._move.record_moved(locations)
        await self._move.call_with_source(lambda queue: self._move.store.messages.delete(queue, locations))


class ActiveMove:
    """A move that this process works on.

    Attributes:
        progress: May be replaced. If its state is ``cancelling``, no more messages are taken.
    """

    def __init__(
        self,
        move: QueueMove,
        progress: QueueMoveProgress,
        store: Store,
        claims: ClaimUseCases,
        clock: Callable[[], float],
    ) -> None:
        self.move = move
        self.progress = progress
        self.store = store
        self._claims = claims
        self.core = claims.core
        self._clock = clock
        # Ids of a process whose clock is ahead are higher.
        margin = 1 if store.messages.exact_horizon else round(store.clock_difference * TICKS_PER_SECOND)
        self._below: Position = (move.number + margin, LOW_MIN)
        self._partitions = deque(_Partition(self, number) for number in range(1, move.partitions + 1))
        self._turns: dict[int, MoveTurn] = {}

    @property
    def is_over(self) -> bool:
        return not self._partitions

    @property
    def due(self) -> float:
        return min((partition.due for partition in self._partitions), default=0.0)

    def make_progress(self) -> QueueMoveProgress:
        moved = sum(turn.moved for turn in self._turns.values())
        left = sum(turn.left for turn in self._turns.values())
        all_known = len(self._turns) == self.move.partitions
        return replace(
            self.progress, moved=max(moved, self.progress.moved), left=left if all_known else self.progress.left
        )

    async def estimate_total(self) -> None:
        with suppress(QueueyError, SourceGone):
            access = QueueAccess(self.store, await self._read_source())
            size = await self._claims.overview.size(access, MAX_COUNTED)
            self.progress = replace(self.progress, total=size.size)

    async def run(self) -> None:
        partition = self._choose_next()
        try:
            await partition.advance()
        except (SourceGone, TargetGone, ClaimsRefused, MoveBlocked) as error:
            self._give_up(error)
        except StoreClosed:
            raise
        except QueueyError as error:
            logger.info("move %s waits: %s", self.move.id, error)
            partition.schedule_retry(self._clock())
        else:
            partition.schedule_next(self._clock())
            if partition.is_over:
                self._partitions.remove(partition)

    def _choose_next(self) -> _Partition:
        now = self._clock()
        for _ in range(len(self._partitions)):
            if self._partitions[0].due <= now:
                break
            self._partitions.rotate(-1)
        return self._partitions[0]

    def _give_up(self, error: Exception) -> None:
        source, target = self.move.source, self.move.target
        match error:
            case SourceGone():
                self._fail(f"Queue {source!r} was purged or deleted while its messages were moved.")
                self._partitions.clear()
            case TargetGone():
                self._fail(
                    f"Queue {target!r} was purged or deleted. Messages that were not moved yet stay in {source!r}."
                )
                for partition in self._partitions:
                    partition.give_back()
            case MoveBlocked():
                self._fail(str(error))
                self._partitions.popleft()
            case _:
                self._fail(str(error))

    def _fail(self, text: str) -> None:
        self.progress = replace(self.progress, error=self.progress.error or text)

    # Steps

    async def ask(self, partition: int, *, moved: int, last: Position, give_back: bool) -> MoveTurn:
        order = MoveOrder(
            move=self.move.number,
            below=self._below,
            exact=self.store.messages.exact_horizon,
            moved=moved,
            last=last,
            stop=bool(self.progress.error) or self.progress.state == "cancelling",
            give_back=give_back,
        )
        queue = await self._read_source()
        for _ in range(MAX_ATTEMPTS):
            try:
                turn = self._turns[partition] = await self._claims.take_move_turn(queue, partition, order)
            except QueueChanged:
                queue = await self._read_source(fresh=True)
            else:
                return turn
        raise StoreBusy(f"Queue {self.move.source!r} changed {MAX_ATTEMPTS} times while a chunk was moved. Try again.")

    async def record_moved(self, locations: list[Location]) -> None:
        queue = await self._read_source()
        if queue.result_ttl:
            queue = await self._read_source(fresh=True)
            await self._claims.jobs.record_moved(queue, locations)

    async def call_with_source(self, call: Callable[[Queue], Awaitable[T]]) -> T:
        queue = await self._read_source()
        for _ in range(MAX_ATTEMPTS):
            try:
                return await call(queue)
            except QueueChanged:
                queue = await self._read_source(fresh=True)
        return await call(queue)

    async def publish(self, partition: int, chunk: int, messages: list[Message], after: Position) -> Position:
        """Posts a chunk once; returns the position of its last message, or ``after`` if nothing is left to post.

        The messages keep the rest of their TTL.

        Messages that have expired since they were taken are dropped, unless the source makes dead letters of expired
        ones. Then they are posted, and the target decides.
        """
        now = await self.store.ledger.now()
        source = await self._read_row(self.move.source, self.move.source_qid, fresh=False)
        takes_all = source is not None and source.on_expiry == "dead-letter"
        to = await self._read_target()
        keeps = to.on_expiry == "dead-letter"
        items = [
            NewMessage(
                message.body,
                choose_target_partition(message, partition, to),
                max(1, -(-(message.expires - now) // TICKS_PER_SECOND)),
                message.meta,
                kept=keeps,
            )
            for message in (convert_for_move(to.name, message) for message in messages)
            if takes_all or message.expires > now
        ]
        if not items:
            return after
        # Callers cannot choose a key with this control character.
        name = f"\x01move {self.move.source_qid:x} {partition} {chunk}"
        key = PostKey(name, name.encode(), KEY_TTL)
        for _ in range(MAX_ATTEMPTS):
            target = await self._read_target()
            try:
                await self._rely_on_expiry(target, items, is_stored=False)
                above = after if after > ids.FIRST else None
                posted = await self.store.keyed_posts.append_once(target, items, key, after=above)
                await self._rely_on_expiry(target, items, is_stored=True)
                return max(position for _, position in posted.locations)
            except QueueChanged:
                await self._read_target(fresh=True)
        raise StoreBusy(f"Queue {self.move.target!r} changed {MAX_ATTEMPTS} times while a chunk was moved. Try again.")

    async def _rely_on_expiry(self, target: Queue, items: Sequence[NewMessage], *, is_stored: bool) -> None:
        if items[0].kept:
            await self._claims.ensure_expiry(target, items, is_stored=is_stored)

    async def _read_target(self, *, fresh: bool = False) -> Queue:
        queue = await self._read_row(self.move.target, self.move.target_qid, fresh=fresh)
        if queue is None:
            raise TargetGone
        return queue

    async def _read_source(self, *, fresh: bool = False) -> Queue:
        queue = await self._read_row(self.move.source, self.move.source_qid, fresh=fresh)
        if queue is None:
            raise SourceGone
        return queue

    async def _read_row(self, name: str, qid: int, *, fresh: bool) -> Queue | None:
        for is_fresh in (fresh, True):
            try:
                queue = await self.store.catalogue.queue(self.move.application, name, fresh=is_fresh)
            except QueueNotFound:
                return None
            if queue.qid == qid:
                return queue
        return None
