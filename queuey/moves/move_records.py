"""The records of moves: one for each source that is being moved, and the last ones that have ended.

A running move has a record named by the source's qid, so a source has one move at a time. It is due when another
process should continue it. An ended move has a record named by its id, which is never due.
"""

from __future__ import annotations

import re
from contextlib import suppress
from secrets import randbelow
from typing import Literal

import msgspec
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import MoveNotFound, MoveUnderWay, RecordChanged, StoreBusy, TooManyMoves
from queuey.model.messages import Queue, Record
from queuey.storage import Store, change_record

KIND = "move"
_ENDED_KIND = "ended move"
MAX_RUNNING = 10
"""Max running moves of one application; a few more if several start at the same moment."""
MAX_RUNNING_TOTAL = 100
"""Max running moves of all applications; likewise."""
MAX_LISTED = 100
"""Max moves of an application that are kept after their end, the latest ones."""
_MAX_ATTEMPTS = 20

_ID = re.compile("[0-7][0-9a-f]{15}", re.ASCII)

State = Literal["running", "cancelling", "done", "cancelled", "failed"]
ENDED_STATES = frozenset({"done", "cancelled", "failed"})


class QueueMove(msgspec.Struct, frozen=True, array_like=True):
    """A move's queues.

    Attributes:
        number: When the move started (ticks); later moves have higher numbers.
        source, source_qid: Source queue; the qid identifies its messages.
        partitions: Number of partitions of the source.
        target, target_qid: Target queue.
    """

    number: int
    application: str
    source: str
    source_qid: int
    partitions: int
    target: str
    target_qid: int

    @property
    def id(self) -> str:
        return f"{self.number:016x}"


class QueueMoveProgress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a move.

    Attributes:
        runner: Token of the process at work on the move; 0 if none.
        moved: Number of moved messages.
        total: Approximate number of messages at the start; -1 if not known yet.
        left: Number of messages that stay because they are claimed.
        updated: When a message was last moved (seconds since 1970); 0 if none was.
        ended: When the move ended (seconds since 1970); 0 if it is running.
        error: Reason of its failure; empty if it has not failed.
    """

    state: State = "running"
    runner: int = 0
    moved: int = 0
    total: int = -1
    left: int = 0
    updated: float = 0.0
    ended: float = 0.0
    error: str = ""


class MoveRecord(msgspec.Struct, frozen=True, array_like=True):
    """Value of a move's record."""

    move: QueueMove
    progress: QueueMoveProgress


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(MoveRecord).decode


class MoveRecords:
    """Creates, finds, changes and ends moves."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, source: Queue, target: Queue) -> tuple[Record, bool]:
        """Creates a move, or finds the running one between the same queues; returns it, and whether it is new.

        Raises:
            MoveUnderWay: Another move from this source is running, or this one is being cancelled.
            TooManyMoves: Too many moves of the application, or of all applications, are running.
            StoreBusy: Moves of the source start and end too fast.
        """
        for _ in range(_MAX_ATTEMPTS):
            record = await self._store.records.record(KIND, source.application, _record_name(source.qid))
            if record is not None:
                running = decode(record.value)
                if await self._store.records.record(_ENDED_KIND, source.application, running.move.id) is not None:
                    with suppress(RecordChanged):  # Its end is recorded, and its record goes at this moment.
                        await self._store.records.remove_record(record)
                    continue
                if running.progress.state != "running" or running.move.target_qid != target.qid:
                    raise MoveUnderWay(source.name, running.move.target, running.move.id)
                return record, False
            await self._require_room(source.application)
            last = max((value.move.number for value in await self._list_all(source.application)), default=0)
            # Above all earlier numbers, and unlike that of another source's move that starts at the same moment.
            number = max(last + randbelow(1000) + 1, await self._store.ledger.now())
            move = QueueMove(
                number, source.application, source.name, source.qid, source.partitions, target.name, target.qid
            )
            new = _make_record(move, QueueMoveProgress(), self._store.clock.now_ticks())
            try:
                return await self._store.records.set_record(new), True
            except RecordChanged:
                continue
        raise StoreBusy(f"Moves of queue {source.name!r} begin and end too fast. Try again.")

    async def save(self, record: Record, progress: QueueMoveProgress, due: int) -> Record:
        """Replaces the progress of a running move.

        Raises:
            RecordChanged: Another process was faster.
        """
        value = _encode(MoveRecord(decode(record.value).move, progress))
        return await self._store.records.set_record(replace(record, value=value, due=due))

    async def reread(self, record: Record) -> Record:
        """Returns the current record of a running move.

        Raises:
            RecordChanged: The move is over.
        """
        present = await self._store.records.record(KIND, record.application, record.name)
        if present is None:
            raise RecordChanged(record.name)
        return present

    async def end(self, record: Record, progress: QueueMoveProgress) -> None:
        """Ends a move. If another process has ended it before, that end is kept.

        Removes the oldest ended moves beyond ``MAX_LISTED``.

        Raises:
            RecordChanged: The record has changed. The move is still running.
        """
        move = decode(record.value).move
        value = _encode(MoveRecord(move, progress))
        with suppress(RecordChanged):  # Another process has ended it.
            await self._store.records.set_record(Record(_ENDED_KIND, move.application, move.id, value, ids.TICKS_MAX))
        await self._store.records.remove_record(record)
        ended = await self._store.records.records(_ENDED_KIND, move.application, limit=2 * MAX_LISTED)
        for old in ended[:-MAX_LISTED]:
            with suppress(RecordChanged):
                await self._store.records.remove_record(old)

    async def find(self, application: str, name: str) -> MoveRecord:
        """Returns a move by its id.

        Raises:
            MoveNotFound: The application has no move with that id.
        """
        if _ID.fullmatch(name) is not None:
            under_way = await self._list_running(
                application
            )  # Before the ended ones, so that a move that ends meanwhile is found.
            if (record := await self._store.records.record(_ENDED_KIND, application, name)) is not None:
                return decode(record.value)
            for value in under_way:
                if value.move.id == name:
                    return value
        raise MoveNotFound(name)

    async def list_moves(self, application: str) -> list[MoveRecord]:
        moves = {value.move.number: value for value in await self._list_all(application)}
        return [moves[number] for number in sorted(moves, reverse=True)[:MAX_LISTED]]

    async def cancel(self, move: QueueMove) -> MoveRecord:
        """Requests the end of a move, unless it is over or being cancelled. Returns its present record."""

        async def decide(record: Record | None) -> Record | None:
            if record is None or (current := decode(record.value)).move != move or current.progress.state != "running":
                return None
            value = _encode(MoveRecord(move, replace(current.progress, state="cancelling")))
            # Due now: the process at work on it may not notice.
            return replace(record, value=value, due=self._store.clock.now_ticks())

        saved = await change_record(
            self._store.records, (KIND, move.application, _record_name(move.source_qid)), decide
        )
        return await self.find(move.application, move.id) if saved is None else decode(saved.value)

    async def _list_running(self, application: str) -> list[MoveRecord]:
        return [
            decode(record.value)
            for record in await self._store.records.records(KIND, application, limit=MAX_RUNNING_TOTAL)
        ]

    async def _list_all(self, application: str) -> list[MoveRecord]:
        under_way = await self._list_running(application)  # First, so that a move that ends meanwhile is found.
        ended = [
            decode(record.value)
            for record in await self._store.records.records(_ENDED_KIND, application, limit=2 * MAX_LISTED)
        ]
        return under_way + ended

    async def _require_room(self, application: str) -> None:
        running = await self._store.records.due_records(KIND, ids.TICKS_MAX)
        own_count = sum(record.application == application for record in running)
        if own_count >= MAX_RUNNING:
            raise TooManyMoves(f"{own_count} moves of the application are under way. Wait until one has ended.")
        if len(running) >= MAX_RUNNING_TOTAL:
            raise TooManyMoves(f"{len(running)} moves of all applications are under way. Wait until one has ended.")


def _record_name(source_qid: int) -> str:
    return f"{source_qid:x}"


def _make_record(move: QueueMove, progress: QueueMoveProgress, due: int) -> Record:
    value = _encode(MoveRecord(move, progress))
    return Record(KIND, move.application, _record_name(move.source_qid), value, due)
