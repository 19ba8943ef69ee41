"""Use cases of moves: all messages of a queue are moved to another one, as a job that survives its process.

See ``docs/architecture-claims.md``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from queuey.api.progress import Move, MoveState
from queuey.errors import InvalidRequest, MoveNotFound
from queuey.service.claims import ClaimUseCases
from queuey.service.due_work import DueRunner
from queuey.service.moves.carrying import MoveCarrier, MoveTiming
from queuey.service.moves.records import OVER, MoveRecord, MoveRecords, began, decode
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store

M = TypeVar("M", bound=Move)


class MoveUseCases:
    """Begins, shows and cancels moves."""

    def __init__(
        self, store: Store, claims: ClaimUseCases, stopping: threading.Event, *, timing: MoveTiming | None = None
    ) -> None:
        self._records = MoveRecords(store)
        self._claims = claims
        timing = timing or MoveTiming()
        self._carrier = MoveCarrier(store, claims, self._records, timing)
        self._runner = DueRunner(store, self._carrier, claims.core, stopping, timing.of_steps)

    def statistics(self) -> dict[str, float]:
        return self._carrier.statistics()

    def watch(self) -> None:
        """Starts to take over moves whose processes have stopped. Does not wait."""
        self._runner.watch()

    def end(self) -> asyncio.Task[None] | None:
        """Returns the task in the background if it has begun; it ends once the service does."""
        return self._runner.end()

    def begin(self, source: QueueAccess, target: QueueAccess) -> MoveState:
        """Begins to move all messages that the source has now, or finds the move that does so already.

        The caller may read and delete in the source, and send to the target.

        Raises:
            InvalidRequest: Both are the same queue, or one is ordered or limits claims by key.
            ClaimsRefused: The source's consistency level does not allow claims.
            MoveUnderWay: The source is being moved to another queue.
            TooManyMoves: The application has as many moves as it may have.
        """
        if source.queue.uid == target.queue.uid:
            raise InvalidRequest({"to": "Names the queue that the messages are in; choose another one"})
        for access, field in ((source, "from"), (target, "to")):
            if access.queue.kind == "ordered":
                text = f"Queue {access.queue.name!r} is ordered: no messages can be moved from it or to it"
                raise InvalidRequest({field: text})
            if access.queue.max_claimed_per_key:
                text = f"Queue {access.queue.name!r} has max_claimed_per_key: no messages can be moved from it or to it"
                raise InvalidRequest({field: text})
        source.refresh()
        target.refresh()
        self._claims.check(source.queue)
        record, is_new = self._records.begin(source.queue, target.queue)
        if is_new:
            self._runner.know(record)
        else:
            self._runner.watch()
        return _report(MoveState, decode(record.value))

    def show(self, application: str, name: str, may_see: Callable[[str], bool]) -> MoveState:
        """Returns the state of a move; ``may_see`` tells if the caller may know of a queue of a name.

        Raises:
            MoveNotFound: There is no such move that the caller may see.
        """
        record = self._records.find(application, name)
        if not _is_seen(record, may_see):
            raise MoveNotFound(name)
        return _report(MoveState, record)

    def list(self, application: str, may_see: Callable[[str], bool]) -> list[Move]:
        """Lists moves, the newest first: those under way, and the last ones that have ended."""
        return [_report(Move, record) for record in self._records.listed(application) if _is_seen(record, may_see)]

    def cancel(self, application: str, name: str, may_delete: Callable[[str], bool]) -> MoveState:
        """Requests the end of a move: moved messages stay in the target. One that is over stays as it is.

        Args:
            application: The owner of both queues.
            name: The id of the move.
            may_delete: Tells if the caller may delete messages of a queue; of the source it must.

        Raises:
            MoveNotFound: There is no such move, or the caller may not cancel it.
        """
        record = self._records.find(application, name)
        if not may_delete(record.move.source):
            raise MoveNotFound(name)
        return _report(MoveState, record if record.progress.state in OVER else self._records.cancel(record.move))


def _is_seen(record: MoveRecord, may_see: Callable[[str], bool]) -> bool:
    return may_see(record.move.source) or may_see(record.move.target)


def _report(kind: type[M], record: MoveRecord) -> M:
    move, progress = record.move, record.progress
    return kind(
        id=move.id,
        source=move.source,
        target=move.target,
        state=progress.state,
        moved=progress.moved,
        total=None if progress.total < 0 else progress.total,
        left=progress.left,
        began=began(move),
        updated=progress.updated or None,
        ended=progress.ended or None,
        error=progress.error or None,
    )
