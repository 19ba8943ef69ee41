"""The records of moves: one of each source that is being moved, and the last ones that have ended.

A move that is under way is a record by the source's qid, so a source has one move at a time; it is due when another
process is to go on with it. One that is over is a record by its id, which is never due.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
"""Kind of the records of those under way."""
_ENDED = "ended move"
"""Kind of the others."""
MOST_RUNNING = 10
"""Max moves of one application at a time; a few more if several are begun at the same moment."""
MOST_OF_ALL = 100
"""Max moves of all applications at a time, likewise."""
MOST_LISTED = 100
"""Max moves of an application that are kept after their end, the last ones."""
_DIRECTORY, _OLD_RECORD = "moves under way", "move"
"""Entries of the ledger that version 0.1.0 had."""
_TRIES = 20
"""Max attempts at a change that others interfere with."""

_ID = re.compile("[0-7][0-9a-f]{15}", re.ASCII)

State = Literal["running", "cancelling", "done", "cancelled", "failed"]
OVER = frozenset({"done", "cancelled", "failed"})


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A move's queues.

    Attributes:
        number: When it began (ticks); later moves have higher ones.
        source, source_qid: The queue and its messages.
        partitions: Of the source.
        target, target_qid: The queue that gets them.
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
        """Name for callers."""
        return f"{self.number:016x}"


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a move.

    Attributes:
        runner: The process at work on it; 0: none.
        beat: Version 0.1.0 changed it as long as a process was at work.
        moved: Messages.
        total: Messages at the beginning, about; -1: not known yet.
        left: Messages that stay because they are claimed.
        updated: When a message was last moved (seconds since 1970); 0: never.
        ended: When it ended; 0: it has not.
        error: Reason of its failure.
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
    """Value of a record."""

    move: Move
    progress: Progress


class _Directory(msgspec.Struct, frozen=True, array_like=True):
    """Moves under way of version 0.1.0, which kept them and their progress in the ledger."""

    last: int = 0
    moves: tuple[Move, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(MoveRecord).decode
_decode_directory = msgspec.msgpack.Decoder(_Directory).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


class MoveRecords:
    """Begins, finds, changes and ends moves; blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[int, bytes | None] = {}
        """Progress of moves of version 0.1.0, as it was at the last look."""

    def begin(self, source: Queue, target: Queue) -> tuple[Record, bool]:
        """Begins a move, or finds the one under way between the same queues; returns it, and whether it is new.

        Raises:
            MoveUnderWay: Another move from this source is under way, or this one is being cancelled.
            TooManyMoves: The application has as many as it may have.
        """
        directory = self._directory()
        for move in directory.moves:
            if move.source_qid == source.qid:
                self._adopt(move)
        for _ in range(_TRIES):
            record = self._store.record(KIND, source.application, _name_of(source.qid))
            if record is not None:
                there = decode(record.value)
                if there.progress.state != "running" or there.move.target_qid != target.qid:
                    raise MoveUnderWay(source.name, there.move.target, there.move.id)
                return record, False
            self._require_room(source.application)
            last = max((value.move.number for value in self._listed(source.application)), default=directory.last)
            # Above all earlier ones, and not that of another source's move that begins at the same moment.
            number = max(max(directory.last, last) + randbelow(1000) + 1, self._store.now())
            move = Move(number, source.application, source.name, source.qid, source.partitions, target.name, target.qid)
            try:
                return self._store.set_record(_recorded(move, Progress(), self._store.claim_time())), True
            except RecordChanged:
                continue
        raise StoreBusy(f"Moves of queue {source.name!r} begin and end too fast. Try again.")

    def save(self, record: Record, progress: Progress, due: int) -> Record:
        """Replaces the progress of a move that is under way.

        Raises:
            RecordChanged: Another process was quicker.
        """
        value = _encode(MoveRecord(decode(record.value).move, progress))
        return self._store.set_record(replace(record, value=value, due=due))

    def reread(self, record: Record) -> Record:
        """Returns the present version of a move that is under way.

        Raises:
            RecordChanged: It is over.
        """
        present = self._store.record(KIND, record.application, record.name)
        if present is None:
            raise RecordChanged(record.name)
        return present

    def end(self, record: Record, progress: Progress) -> None:
        """Ends a move. If it ended before, that end stands.

        Raises:
            RecordChanged: It has changed; it is still under way.
        """
        move = decode(record.value).move
        value = _encode(MoveRecord(move, progress))
        with suppress(RecordChanged):  # It has ended before.
            self._store.set_record(Record(_ENDED, move.application, move.id, value, ids.TICKS_MAX))
        self._store.remove_record(record)
        self._end_old(move, progress)
        for old in self._store.records(_ENDED, move.application, limit=2 * MOST_LISTED)[:-MOST_LISTED]:
            with suppress(RecordChanged):
                self._store.remove_record(old)

    def find(self, application: str, name: str) -> MoveRecord:
        """Returns a move.

        Raises:
            MoveNotFound: No move of the application has that id.
        """
        if _ID.fullmatch(name) is not None:
            under_way = self._under_way(application)  # Before the others, so that one that ends meanwhile is found.
            if (record := self._store.record(_ENDED, application, name)) is not None:
                return decode(record.value)
            for value in under_way:
                if value.move.id == name:
                    return value
            old = self._old(int(name, 16))
            if old is not None and old.move.application == application:
                return old
        raise MoveNotFound(name)

    def listed(self, application: str) -> list[MoveRecord]:
        """Returns an application's moves, the newest first: those under way, and the last ones that have ended."""
        moves = {value.move.number: value for value in (*self._old_ones(application), *self._listed(application))}
        return [moves[number] for number in sorted(moves, reverse=True)[:MOST_LISTED]]

    def cancel(self, move: Move) -> MoveRecord:
        """Requests the end of a move, unless it is over."""
        if move in self._directory().moves:
            self._adopt(move)
        for _ in range(_TRIES):
            record = self._store.record(KIND, move.application, _name_of(move.source_qid))
            if record is None or (there := decode(record.value)).move != move:
                return self.find(move.application, move.id)
            if there.progress.state != "running":
                return there
            now = self._store.claim_time()  # It is due, as a process that works on it may not notice.
            try:
                return decode(self.save(record, replace(there.progress, state="cancelling"), now).value)
            except RecordChanged:
                continue
        raise StoreBusy(f"The record of move {move.id} changes too fast. Try again.")

    def adopt(self) -> None:
        """Goes on with moves of version 0.1.0 whose progress has not changed since the last call."""
        before, self._seen = self._seen, {}
        for move in self._directory().moves:
            raw = self._seen[move.number] = self._store.entry(_OLD_RECORD, move.number)
            if move.number in before and before[move.number] == raw:
                self._adopt(move)

    def _adopt(self, move: Move) -> None:
        """Makes a record for a move of version 0.1.0 that is under way, unless there is one."""
        old = self._store.entry(_OLD_RECORD, move.number)
        progress = Progress() if old is None else decode(old).progress
        if progress.state in OVER or self._store.record(_ENDED, move.application, move.id) is not None:
            return
        with suppress(RecordChanged):  # Another process was quicker.
            self._store.set_record(_recorded(move, progress, self._store.claim_time()))

    def _end_old(self, move: Move, progress: Progress) -> None:
        """Notes the end of a move of version 0.1.0 where that looks for it, so that it is not adopted again."""
        while move in self._directory().moves:
            old = self._store.entry(_OLD_RECORD, move.number)
            if old is not None and decode(old).progress.state in OVER:
                return
            with suppress(Conflict):
                self._store.enter(_OLD_RECORD, move.number, _encode(MoveRecord(move, progress)), expected=old)

    def _directory(self) -> _Directory:
        raw = self._store.entry(_DIRECTORY, 0)
        return _Directory() if raw is None else _decode_directory(raw)

    def _under_way(self, application: str) -> list[MoveRecord]:
        return [decode(record.value) for record in self._store.records(KIND, application, limit=MOST_OF_ALL)]

    def _listed(self, application: str) -> list[MoveRecord]:
        under_way = self._under_way(application)  # Before the others, so that one that ends meanwhile is found.
        ended = [decode(record.value) for record in self._store.records(_ENDED, application, limit=2 * MOST_LISTED)]
        return under_way + ended

    def _old_ones(self, application: str) -> Iterator[MoveRecord]:
        """Yields an application's last moves of version 0.1.0."""
        raw = self._store.entry(f"moves of {application}", 0)
        for number in [] if raw is None else _decode_numbers(raw):
            if (old := self._old(number)) is not None:
                yield old

    def _old(self, number: int) -> MoveRecord | None:
        """Returns a move of version 0.1.0."""
        if (raw := self._store.entry(_OLD_RECORD, number)) is not None:
            return decode(raw)
        begun = (move for move in self._directory().moves if move.number == number)
        return next((MoveRecord(move, Progress()) for move in begun), None)

    def _require_room(self, application: str) -> None:
        there = self._store.due_records(KIND, ids.TICKS_MAX)
        own = sum(record.application == application for record in there)
        if own >= MOST_RUNNING or len(there) >= MOST_OF_ALL:
            raise TooManyMoves(f"{own} moves of the application are under way. Wait until one has ended.")


def _name_of(source_qid: int) -> str:
    return f"{source_qid:x}"


def _recorded(move: Move, progress: Progress, due: int) -> Record:
    value = _encode(MoveRecord(move, progress))
    return Record(KIND, move.application, _name_of(move.source_qid), value, due)
