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

from queuey import ids
from queuey.errors import Conflict, MoveNotFound, MoveUnderWay, RecordChanged, StoreBusy, TooManyMoves
from queuey.messages import Queue, Record
from queuey.storage import Store

KIND = "move"
"""Kind of the records of running moves."""
_ENDED_KIND = "ended move"
"""Kind of the records of ended moves."""
MAX_RUNNING = 10
"""Max running moves of one application; a few more if several start at the same moment."""
MAX_RUNNING_TOTAL = 100
"""Max running moves of all applications; likewise."""
MAX_LISTED = 100
"""Max moves of an application that are kept after their end, the latest ones."""
_OLD_DIRECTORY_ENTRY, _OLD_RECORD_ENTRY = "moves under way", "move"
"""Entries of the ledger in which version 0.1.0 kept moves."""
_MAX_ATTEMPTS = 20
"""Max attempts at a change when other processes interfere."""

_ID = re.compile("[0-7][0-9a-f]{15}", re.ASCII)

State = Literal["running", "cancelling", "done", "cancelled", "failed"]
ENDED_STATES = frozenset({"done", "cancelled", "failed"})


class Move(msgspec.Struct, frozen=True, array_like=True):
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


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a move.

    Attributes:
        runner: Token of the process at work on the move; 0 if none.
        beat: Changed by version 0.1.0 as long as a process was at work.
        moved: Number of moved messages.
        total: Approximate number of messages at the start; -1 if not known yet.
        left: Number of messages that stay because they are claimed.
        updated: When a message was last moved (seconds since 1970); 0 if none was.
        ended: When the move ended (seconds since 1970); 0 if it is running.
        error: Reason of its failure; empty if it has not failed.
    """

    state: State = "running"
    runner: int = 0
    beat: int = 0
    moved: int = 0
    total: int = -1
    left: int = 0
    updated: float = 0.0
    ended: float = 0.0
    error: str = ""


class MoveRecord(msgspec.Struct, frozen=True, array_like=True):
    """Value of a move's record."""

    move: Move
    progress: Progress


class _Directory(msgspec.Struct, frozen=True, array_like=True):
    """Running moves of version 0.1.0, which kept them in the ledger."""

    last: int = 0
    moves: tuple[Move, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(MoveRecord).decode
_decode_directory = msgspec.msgpack.Decoder(_Directory).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


class MoveRecords:
    """Creates, finds, changes and ends moves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen_progress: dict[int, bytes | None] = {}
        """Progress of moves of version 0.1.0, as of the last call of ``adopt``."""

    async def begin(self, source: Queue, target: Queue) -> tuple[Record, bool]:
        """Creates a move, or finds the running one between the same queues; returns it, and whether it is new.

        Raises:
            MoveUnderWay: Another move from this source is running, or this one is being cancelled.
            TooManyMoves: Too many moves of the application, or of all applications, are running.
            StoreBusy: Moves of the source start and end too fast.
        """
        directory = await self._read_directory()
        for move in directory.moves:
            if move.source_qid == source.qid:
                await self._adopt(move)
        for _ in range(_MAX_ATTEMPTS):
            record = await self._store.records.record(KIND, source.application, _record_name(source.qid))
            if record is not None:
                running = decode(record.value)
                if running.progress.state != "running" or running.move.target_qid != target.qid:
                    raise MoveUnderWay(source.name, running.move.target, running.move.id)
                return record, False
            await self._require_room(source.application)
            last = max(
                (value.move.number for value in await self._list_recorded(source.application)), default=directory.last
            )
            # Above all earlier numbers, and unlike that of another source's move that starts at the same moment.
            number = max(max(directory.last, last) + randbelow(1000) + 1, await self._store.ledger.now())
            move = Move(number, source.application, source.name, source.qid, source.partitions, target.name, target.qid)
            new = _make_record(move, Progress(), self._store.claim_logs.claim_time())
            try:
                return await self._store.records.set_record(new), True
            except RecordChanged:
                continue
        raise StoreBusy(f"Moves of queue {source.name!r} begin and end too fast. Try again.")

    async def save(self, record: Record, progress: Progress, due: int) -> Record:
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

    async def end(self, record: Record, progress: Progress) -> None:
        """Ends a move. If another process has ended it before, that end is kept.

        Removes the oldest ended moves beyond ``MAX_LISTED``.

        Raises:
            RecordChanged: The record has changed. The move is still running.
        """
        move = decode(record.value).move
        value = _encode(MoveRecord(move, progress))
        await self._end_old(move, progress)  # First: a process that dies later leaves nothing that is adopted again.
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
            old = await self._find_old(int(name, 16))
            if old is not None and old.move.application == application:
                return old
        raise MoveNotFound(name)

    async def list_moves(self, application: str) -> list[MoveRecord]:
        """Returns the newest ``MAX_LISTED`` moves of an application, running or ended, the newest first."""
        moves = {
            value.move.number: value
            for value in (*await self._list_old(application), *await self._list_recorded(application))
        }
        return [moves[number] for number in sorted(moves, reverse=True)[:MAX_LISTED]]

    async def cancel(self, move: Move) -> MoveRecord:
        """Requests the end of a move, unless it is over or being cancelled. Returns its present record.

        Adopts a move of version 0.1.0 first.
        """
        if move in (await self._read_directory()).moves:
            await self._adopt(move)
        for _ in range(_MAX_ATTEMPTS):
            record = await self._store.records.record(KIND, move.application, _record_name(move.source_qid))
            if record is None or (current := decode(record.value)).move != move:
                return await self.find(move.application, move.id)
            if current.progress.state != "running":
                return current
            now = self._store.claim_logs.claim_time()  # Due now: the process at work on it may not notice.
            try:
                return decode((await self.save(record, replace(current.progress, state="cancelling"), now)).value)
            except RecordChanged:
                continue
        raise StoreBusy(f"The record of move {move.id} changes too fast. Try again.")

    async def adopt(self) -> None:
        """Continues moves of version 0.1.0 whose progress has not changed since the last call."""
        before, self._seen_progress = self._seen_progress, {}
        for move in (await self._read_directory()).moves:
            raw = self._seen_progress[move.number] = await self._store.ledger.entry(_OLD_RECORD_ENTRY, move.number)
            if move.number in before and before[move.number] == raw:
                await self._adopt(move)

    async def _adopt(self, move: Move) -> None:
        """Creates the record of a move of version 0.1.0, unless it is over or another process was faster."""
        old = await self._store.ledger.entry(_OLD_RECORD_ENTRY, move.number)
        progress = Progress() if old is None else decode(old).progress
        if (
            progress.state in ENDED_STATES
            or (await self._store.records.record(_ENDED_KIND, move.application, move.id)) is not None
        ):
            return
        with suppress(RecordChanged):  # Another process was faster.
            await self._store.records.set_record(_make_record(move, progress, self._store.claim_logs.claim_time()))

    async def _end_old(self, move: Move, progress: Progress) -> None:
        """Records the end of a move of version 0.1.0 where that version looks, so that it is not adopted again."""
        while move in (await self._read_directory()).moves:
            old = await self._store.ledger.entry(_OLD_RECORD_ENTRY, move.number)
            if old is not None and decode(old).progress.state in ENDED_STATES:
                return
            with suppress(Conflict):
                await self._store.ledger.enter(
                    _OLD_RECORD_ENTRY, move.number, _encode(MoveRecord(move, progress)), expected=old
                )

    async def _read_directory(self) -> _Directory:
        raw = await self._store.ledger.entry(_OLD_DIRECTORY_ENTRY, 0)
        return _Directory() if raw is None else _decode_directory(raw)

    async def _list_running(self, application: str) -> list[MoveRecord]:
        return [
            decode(record.value)
            for record in await self._store.records.records(KIND, application, limit=MAX_RUNNING_TOTAL)
        ]

    async def _list_recorded(self, application: str) -> list[MoveRecord]:
        under_way = await self._list_running(application)  # First, so that a move that ends meanwhile is found.
        ended = [
            decode(record.value)
            for record in await self._store.records.records(_ENDED_KIND, application, limit=2 * MAX_LISTED)
        ]
        return under_way + ended

    async def _list_old(self, application: str) -> list[MoveRecord]:
        """Returns the moves of an application that version 0.1.0 has left in the ledger."""
        raw = await self._store.ledger.entry(f"moves of {application}", 0)
        moves = [await self._find_old(number) for number in ([] if raw is None else _decode_numbers(raw))]
        return [move for move in moves if move is not None]

    async def _find_old(self, number: int) -> MoveRecord | None:
        if (raw := await self._store.ledger.entry(_OLD_RECORD_ENTRY, number)) is not None:
            return decode(raw)
        begun = (move for move in (await self._read_directory()).moves if move.number == number)
        return next((MoveRecord(move, Progress()) for move in begun), None)

    async def _require_room(self, application: str) -> None:
        running = await self._store.records.due_records(KIND, ids.TICKS_MAX)
        own_count = sum(record.application == application for record in running)
        if own_count >= MAX_RUNNING:
            raise TooManyMoves(f"{own_count} moves of the application are under way. Wait until one has ended.")
        if len(running) >= MAX_RUNNING_TOTAL:
            raise TooManyMoves(f"{len(running)} moves of all applications are under way. Wait until one has ended.")


def _record_name(source_qid: int) -> str:
    return f"{source_qid:x}"


def _make_record(move: Move, progress: Progress, due: int) -> Record:
    value = _encode(MoveRecord(move, progress))
    return Record(KIND, move.application, _record_name(move.source_qid), value, due)
