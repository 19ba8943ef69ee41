"""The records of moves, in the ledger: those under way, the progress of each, and the last ones.

Each is changed by compare-and-set. A move has begun when it is among those under way; it leaves them when it is over in
all logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.errors import Conflict, MoveNotFound, MoveUnderWay, TooManyMoves
from queuey.messages import Queue
from queuey.storage import Store

MOST_RUNNING = 10
"""Max moves of one application at a time."""
MOST_OF_ALL = 100
"""Max moves of all applications at a time."""
MOST_LISTED = 100
"""Max moves of an application that are listed, the last ones."""

_ID = re.compile("[0-7][0-9a-f]{15}", re.ASCII)
_DIRECTORY = "moves under way"
_RECORD = "move"

T = TypeVar("T")
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
        beat: Changes as long as it is at work.
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


class Record(msgspec.Struct, frozen=True, array_like=True):
    move: Move
    progress: Progress


class _Directory(msgspec.Struct, frozen=True, array_like=True):
    last: int = 0
    moves: tuple[Move, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_decode_directory = msgspec.msgpack.Decoder(_Directory).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


class MoveRecords:
    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, source: Queue, target: Queue) -> tuple[Move, bool]:
        """Begins a move, or finds the one under way between the same queues; returns it, and whether it is new.

        Raises:
            MoveUnderWay: Another move from this source is under way, or this one is being cancelled.
            TooManyMoves: The application has as many as it may have.
        """
        found: list[tuple[Move, bool]] = []

        def add(directory: _Directory) -> _Directory:
            found.clear()
            moves = [move for move in directory.moves if move.source_qid != source.qid]
            for move in directory.moves:
                if move.source_qid != source.qid:
                    continue
                state = progress_of(self.raw(move)).state
                if state == "running" and move.target_qid == target.qid:
                    found.append((move, False))
                    return directory
                if state not in OVER:
                    raise MoveUnderWay(source.name, move.target, move.id)
            own = sum(move.application == source.application for move in moves)
            if own >= MOST_RUNNING or len(moves) >= MOST_OF_ALL:
                raise TooManyMoves(f"{own} moves of the application are under way. Wait until one has ended.")
            number = max(directory.last + 1, self._store.now())
            move = Move(number, source.application, source.name, source.qid, source.partitions, target.name, target.qid)
            found.append((move, True))
            return _Directory(number, (*moves, move))

        self._change(_DIRECTORY, _directory_of, add)
        [(move, new)] = found
        if new:
            self._list(move)
        return move, new

    def under_way(self) -> Sequence[Move]:
        return _directory_of(self._store.entry(_DIRECTORY, 0)).moves

    def leave(self, move: Move) -> None:
        self._list(move)

        def without(directory: _Directory) -> _Directory:
            return replace(directory, moves=tuple(one for one in directory.moves if one != move))

        self._change(_DIRECTORY, _directory_of, without)

    def raw(self, move: Move) -> bytes | None:
        """Returns the encoded progress of a move; None: no process has begun with it."""
        return self._store.entry(_RECORD, move.number)

    def save(self, move: Move, progress: Progress, expected: bytes | None) -> bytes:
        """Replaces a record; returns the present one, which is another one if ``expected`` was not there."""
        try:
            return self._store.enter(_RECORD, move.number, _encode(Record(move, progress)), expected=expected)
        except Conflict:
            return b""

    def find(self, application: str, name: str) -> Record:
        record = self._find(int(name, 16)) if _ID.fullmatch(name) else None
        if record is None or record.move.application != application:
            raise MoveNotFound(name)
        return record

    def listed(self, application: str) -> list[Record]:
        """Returns an application's moves, the newest first: those under way, and the last ones that have ended."""
        numbers = set(_numbers_of(self._store.entry(_list_of(application), 0)))
        numbers |= {move.number for move in self.under_way() if move.application == application}
        found = (self._find(number) for number in sorted(numbers, reverse=True)[:MOST_LISTED])
        return [record for record in found if record is not None]

    def cancel(self, record: Record) -> Record:
        """Requests the end of a move, unless it is over."""
        move = record.move
        while True:
            raw = self.raw(move)
            progress = progress_of(raw)
            if progress.state != "running":
                return Record(move, progress)
            there = self.save(move, replace(progress, state="cancelling"), raw)
            if there and (progress := progress_of(there)).state != "running":
                return Record(move, progress)

    def _find(self, number: int) -> Record | None:
        raw = self._store.entry(_RECORD, number)
        if raw is None:
            for move in self.under_way():
                if move.number == number:
                    return Record(move, Progress())
            # It may have begun and ended since: it leaves those under way with a record.
            raw = self._store.entry(_RECORD, number)
        return None if raw is None else _decode(raw)

    def _list(self, move: Move) -> None:
        self._change(
            _list_of(move.application),
            _numbers_of,
            lambda numbers: sorted({*numbers, move.number}, reverse=True)[:MOST_LISTED],
        )

    def _change(self, name: str, decode: Callable[[bytes | None], T], change: Callable[[T], T]) -> None:
        """Changes an entry, again if another process was quicker. Without a change nothing is written."""
        while True:
            raw = self._store.entry(name, 0)
            old = decode(raw)
            new = change(old)
            if new == old:
                return
            value = _encode(new)
            with suppress(Conflict):
                if self._store.enter(name, 0, value, expected=raw) == value:
                    return


def _numbers_of(raw: bytes | None) -> list[int]:
    return [] if raw is None else _decode_numbers(raw)


def _directory_of(raw: bytes | None) -> _Directory:
    return _Directory() if raw is None else _decode_directory(raw)


def progress_of(raw: bytes | None) -> Progress:
    return Progress() if raw is None else _decode(raw).progress


def began(move: Move) -> float:
    """Returns when a move began (seconds since 1970)."""
    return ids.ticks_to_seconds(move.number)


def _list_of(application: str) -> str:
    return f"moves of {application}"
