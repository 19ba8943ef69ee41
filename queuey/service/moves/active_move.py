"""One move that this process works on: carries out what :mod:`.partition_moves` decides, partition by partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from queuey import ids
from queuey.claims import ClaimTiming, place_in
from queuey.errors import (
    ClaimsRefused,
    QueueChanged,
    QueueNotFound,
    QueueyError,
    StoreBusy,
    StoreClosed,
)
from queuey.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Message, NewMessage, PostKey, Queue
from queuey.service.claims import ClaimUseCases
from queuey.service.claims.move_turns import FETCHED, MoveOrder, MoveTurn
from queuey.service.moves.partition_moves import (
    Ask,
    Delete,
    Fetch,
    MoveBlocked,
    Pause,
    Publish,
    Step,
    Steps,
    give_back,
    move_partition,
)
from queuey.service.moves.records import Move, Progress
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store

KEPT = 7 * 86_400
"""Seconds for which the key of a chunk is remembered: a move that stands still for longer may post a chunk twice."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds after which a step that failed is repeated."""
COUNTED = 1000
"""Messages that are counted at the beginning; more are estimated."""

WAIT = 0.2
"""Seconds between two turns at a partition whose last messages are not certain yet."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class SourceGone(Exception):
    """The queue that messages are moved from was purged or deleted: there is nothing to move."""


class TargetGone(Exception):
    """The queue that messages are moved to was purged or deleted."""


class _Partition:
    """A partition that is being moved: the step that is next, and when."""

    def __init__(self, number: int, steps: Steps) -> None:
        self.number = number
        self.due = 0.0
        self.pause = FIRST_PAUSE
        self.begin(steps)

    def begin(self, steps: Steps) -> None:
        """Goes on with other steps."""
        self._steps = steps
        self.step: Step | None = next(steps)
        self.due = 0.0

    def done(self, result: object) -> None:
        """Notes what the step has given; raises what the steps raise."""
        self.pause = FIRST_PAUSE
        try:
            self.step = self._steps.send(result)
        except StopIteration:
            self.step = None

    def failed(self, now: float) -> None:
        """Has the step repeated later."""
        self.due = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


class ActiveMove:
    """A move that this process works on. Used by one thread.

    Args:
        move: What is to be moved.
        progress: How far it has come, as far as is recorded.
        store: Where the queues are.
        claims: Of this process.
        clock: Seconds.

    Attributes:
        progress: May be replaced: when its state says that the move is being cancelled, nothing more is taken.
    """

    def __init__(
        self, move: Move, progress: Progress, store: Store, claims: ClaimUseCases, clock: Callable[[], float]
    ) -> None:
        self.move = move
        self.progress = progress
        self._store = store
        self._claims = claims
        self._clock = clock
        # Another process may have made an id with a clock that is ahead.
        margin = 1 if store.exact_horizon else round(ClaimTiming().margin * TICKS_PER_SECOND)
        self._below: Position = (move.number + margin, LOW_MIN)
        self._partitions = deque(
            _Partition(number, move_partition(self._stopping)) for number in range(1, move.partitions + 1)
        )
        self._turns: dict[int, MoveTurn] = {}

    @property
    def over(self) -> bool:
        """Whether every partition's log says that it is over, or the source is gone."""
        return not self._partitions

    @property
    def due(self) -> float:
        """When there is something to do."""
        return min((each.due for each in self._partitions), default=0.0)

    def counted(self) -> Progress:
        """Returns how far it has come."""
        moved = sum(turn.moved for turn in self._turns.values())
        left = sum(turn.left for turn in self._turns.values())
        known = len(self._turns) == self.move.partitions
        return replace(self.progress, moved=max(moved, self.progress.moved), left=left if known else self.progress.left)

    def estimate(self) -> None:
        """Finds out about how many messages there are."""
        with suppress(QueueyError, SourceGone):
            access = QueueAccess(self._store, self._source(), lambda _: None)
            size = self._claims.size(access, COUNTED)
            self.progress = replace(self.progress, total=size.count)

    def run(self) -> None:
        """Takes one partition a chunk further."""
        part = self._next()
        try:
            self._advance(part)
        except (SourceGone, TargetGone, ClaimsRefused, MoveBlocked) as error:
            self._give_up(error)
        except StoreClosed:
            raise
        except QueueyError as error:
            logger.info("move %s waits: %s", self.move.id, error)
            part.failed(self._clock())
        else:
            if part.step is None:
                self._partitions.popleft()

    def _next(self) -> _Partition:
        """Puts a partition first for which there is something to do now."""
        now = self._clock()
        for _ in range(len(self._partitions)):
            if self._partitions[0].due <= now:
                break
            self._partitions.rotate(-1)
        return self._partitions[0]

    def _give_up(self, error: Exception) -> None:
        """Has the move fail. What is on its way arrives, unless the target is gone; nothing more is taken."""
        source, target = self.move.source, self.move.target
        match error:
            case SourceGone():
                self._fail(f"Queue {source!r} was purged or deleted while its messages were moved.")
                self._partitions.clear()
            case TargetGone():
                self._fail(
                    f"Queue {target!r} was purged or deleted. What was not moved yet is in {source!r} as before."
                )
                for each in self._partitions:
                    each.begin(give_back())
            case MoveBlocked():
                self._fail(str(error))
                self._partitions.popleft()
            case _:
                self._fail(str(error))

    def _fail(self, text: str) -> None:
        """Notes why the move fails, the first reason that was found."""
        self.progress = replace(self.progress, error=self.progress.error or text)

    def _stopping(self) -> bool:
        return bool(self.progress.error) or self.progress.state == "cancelling"

    def _advance(self, part: _Partition) -> None:
        """Does the steps of one chunk."""
        while (step := part.step) is not None:
            match step:
                case Ask():
                    turn = self._ask(part.number, step)
                    self._turns[part.number] = turn
                    part.done(turn)
                    return
                case Fetch(places):
                    part.done(self._on_source(partial(self._fetch, part.number, places)))
                case Publish():
                    part.done(self._publish(part.number, step))
                case Delete(places):
                    part.done(self._on_source(partial(self._delete, part.number, places)))
                case Pause():
                    part.done(None)
                    part.due = self._clock() + WAIT
                    return

    def _ask(self, partition: int, step: Ask) -> MoveTurn:
        # The log is asked again whether to stop, because that may have been said since.
        order = MoveOrder(
            move=self.move.number,
            below=self._below,
            exact=self._store.exact_horizon,
            moved=step.moved,
            last=step.last,
            stop=step.stop or self._stopping(),
            give_back=step.give_back,
        )
        return self._on_source(lambda queue: self._claims.core.run(self._claims.turn(queue, partition, order)))

    def _fetch(self, partition: int, places: list[Position], queue: Queue) -> list[Message]:
        found: list[Message] = []
        for at in range(0, len(places), FETCHED):
            found += self._store.fetch(queue, [(partition, place) for place in places[at : at + FETCHED]])
        return found

    def _delete(self, partition: int, places: list[Position], queue: Queue) -> int:
        return self._store.delete(queue, [(partition, place) for place in places])

    def _publish(self, partition: int, step: Publish) -> Position:
        """Posts a chunk once; its messages keep what is left of their lives."""
        now = self._store.now()
        to = self._target()
        items = [
            NewMessage(one.body, place_in(one, partition, to), -(-(one.expires - now) // TICKS_PER_SECOND), one.meta)
            for one in step.messages
            if one.expires > now
        ]
        if not items:
            return step.after
        # No caller can choose a key with such a character.
        name = f"\x01move {self.move.source_qid:x} {partition} {step.chunk}"
        key = PostKey(name, name.encode(), KEPT)
        after = step.after if step.after > ids.FIRST else None
        for _ in range(3):
            target = self._target()
            try:
                posted = self._store.append_once(target, items, key, after=after)
                return max(position for _, position in posted.locations)
            except QueueChanged:
                self._target(fresh=True)
        raise StoreBusy(f"Queue {self.move.target!r} is being changed all the time.")

    def _target(self, *, fresh: bool = False) -> Queue:
        queue = self._row(self.move.target, self.move.target_qid, fresh=fresh)
        if queue is None:
            raise TargetGone
        return queue

    def _source(self, *, fresh: bool = False) -> Queue:
        queue = self._row(self.move.source, self.move.source_qid, fresh=fresh)
        if queue is None:
            raise SourceGone
        return queue

    def _row(self, name: str, qid: int, *, fresh: bool) -> Queue | None:
        """Returns a queue's row if its messages are those that the move is about."""
        for again in (fresh, True):
            try:
                queue = self._store.queue(self.move.application, name, fresh=again)
            except QueueNotFound:
                return None
            if queue.qid == qid:
                return queue
        return None

    def _on_source(self, call: Callable[[Queue], T]) -> T:
        queue = self._source()
        for _ in range(3):
            try:
                return call(queue)
            except QueueChanged:
                queue = self._source(fresh=True)
        return call(queue)
