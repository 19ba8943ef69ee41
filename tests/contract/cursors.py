"""Concurrent writers and readers, and the check that no reader missed a message (G1)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable, TooLate
from queuey.model.ids import Position
from queuey.model.messages import Message, Queue, Slice
from queuey.storage import Store, bridge
from tests.backends import PROMPT
from tests.contract.samples import make_queue, new_message
from tests.waiting import PATIENCE_SECONDS, join

Place = tuple[int, Position]
MESSAGES_PER_WRITER = [30, pytest.param(150, marks=pytest.mark.slow)]
"""Messages of each writer."""
READ_INTERVAL = 0.05
"""Seconds between two reads of a reader that waits, after the writers have ended, until all messages are readable."""


class Writer:
    """Appends as fast as it can: single messages, small batches and now and then a delayed one.

    It goes on after StoreUnavailable; a message in doubt does not count as acknowledged.

    Attributes:
        acknowledged: Partitions and positions of its acknowledged messages.
        error: The error that ended it early.
    """

    def __init__(self, store: Store, queue: Queue, *, number: int, messages: int) -> None:
        self.acknowledged: list[Place] = []
        self.error: BaseException | None = None
        self._store = store
        self._queue = queue
        self._messages = messages
        self._rng = random.Random(number)
        self._low = number

    def run(self) -> None:
        try:
            while len(self.acknowledged) < self._messages:
                with suppress(StoreUnavailable):  # A message in doubt was not acknowledged, as for other callers.
                    self._append()
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.error = error

    def _append(self) -> None:
        rng = self._rng
        items = [
            new_message("x", partition=rng.randint(1, 2), delay=rng.choice((0.0, 0.0, 0.0, 0.003, 0.02)))
            for _ in range(rng.choice((1, 1, 1, 4)))
        ]
        positions = bridge.run(self._store.messages.append(self._queue, items))
        self.acknowledged += [(item.partition, place) for item, place in zip(items, positions, strict=True)]


class Loader(Writer):
    """Loads messages a little ahead of what readers have passed, and farther ahead each time it came too late.

    The distance is bounded, because readers wait for these messages at the end.
    """

    _ahead = 0.002
    """Distance in seconds."""
    _max_ahead = 8.0
    """Max distance in seconds; more than any store's read delay, by which one read may make a load late."""

    def _append(self) -> None:
        """Loads up to 20 messages a little ahead of the clock, twice as far after each one that came too late."""
        rng = self._rng
        first = bridge.run(self._store.ledger.now()) + int(self._ahead * ids.TICKS_PER_SECOND)
        count = rng.choice((1, 3, 20))
        expires = first + 3600 * ids.TICKS_PER_SECOND
        messages = [Message(first + n, self._low, rng.randint(1, 2), expires, "x") for n in range(count)]
        try:
            bridge.run(self._store.bulk.load_unread(self._queue, messages))
        except TooLate:
            self._ahead = min(self._ahead * 2, self._max_ahead)
            return
        self.acknowledged += [(message.partition, message.position) for message in messages]


@dataclass
class ReaderResult:
    """The messages that one reader was shown, and per partition the cursor below which it should know all."""

    shown: set[Place] = field(default_factory=set)
    repeated: list[Place] = field(default_factory=list)
    cursors: dict[int, Position] = field(default_factory=dict)


class Reader:
    """Follows both partitions by cursor, in one call; a descending one reads all below the horizon each time.

    Attributes:
        seen: What it was shown so far.
        error: The error that ended it early.
    """

    def __init__(self, store: Store, queue: Queue, *, descending: bool = False) -> None:
        self.seen = ReaderResult(cursors={1: ids.FIRST, 2: ids.FIRST})
        self.error: BaseException | None = None
        self._store = store
        self._queue = queue
        self._descending = descending

    def read_until(self, ended: threading.Event) -> None:
        """Reads until the event is set, then until all cursors have passed the newest message."""
        try:
            while not ended.is_set():
                with suppress(StoreUnavailable):
                    self._read_once()
            newest = self._newest()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while min(self.seen.cursors.values()) <= newest:
                assert time.monotonic() < deadline, f"{self.seen.cursors} have not passed {newest}"
                with suppress(StoreUnavailable):
                    self._read_once()
                time.sleep(READ_INTERVAL)
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.error = error

    def _newest(self) -> Position:
        _, partitions = bridge.run(self._store.messages.inspect(self._queue))
        return max(info.newest for info in partitions if info.newest is not None)

    def _read_once(self) -> None:
        slices = [
            Slice(partition=n, lower=cursor, limit=1_000_000 if self._descending else 7, descending=self._descending)
            for n, cursor in self.seen.cursors.items()
        ]
        for part, page in zip(slices, bridge.run(self._store.messages.read(self._queue, slices)), strict=True):
            for message in page.messages:
                self._record_shown((part.partition, message.position))
            cursor = max(part.lower, (page.horizon, ids.LOW_MIN)) if self._descending else page.next
            assert cursor is not None
            self.seen.cursors[part.partition] = cursor

    def _record_shown(self, place: Place) -> None:
        if place in self.seen.shown:
            self.seen.repeated.append(place)
        self.seen.shown.add(place)


def find_missed(acknowledged: Iterable[Place], seen: ReaderResult) -> list[Place]:
    """Returns acknowledged messages below a reader's cursor that the reader was not shown."""
    return sorted(place for place in set(acknowledged) - seen.shown if place[1] < seen.cursors[place[0]])


def run_threads(writers: list[Writer], readers: list[Reader], written: Callable[[], object] = lambda: None) -> None:
    """Runs each writer and reader on its own thread, and raises their errors.

    Args:
        writers: Append until they are done.
        readers: Read until they have seen all messages.
        written: Called when these writers are done; returns when the writers of all processes are.
    """
    ended = threading.Event()
    writing = [threading.Thread(target=writer.run) for writer in writers]
    reading = [threading.Thread(target=reader.read_until, args=(ended,)) for reader in readers]
    for thread in reading + writing:
        thread.start()
    for thread in writing:
        join(thread)
    written()
    ended.set()
    for thread in reading:
        join(thread)
    errors = [writer.error for writer in writers] + [reader.error for reader in readers]
    for error in errors:
        if error is not None:
            raise error


def make_two_partition_queue(store: Store) -> Queue:
    return make_queue(store, partitions=2, read_delay=None, consistency=PROMPT)


def check_between_threads(store: Store, other: Store, kinds: Sequence[Callable[..., Writer]], messages: int) -> None:
    """Fails if a reader's cursor is above a message that it was not shown, or a message is shown twice.

    Args:
        store: The store of half of the threads.
        other: The store of the other half, on the same data.
        kinds: Classes of the writers.
        messages: Min messages of each writer.
    """
    queue = make_two_partition_queue(store)
    writers = [kind((store, other)[n % 2], queue, number=n, messages=messages) for n, kind in enumerate(kinds)]
    readers = [Reader((store, other)[n % 2], queue, descending=n == 3) for n in range(4)]
    run_threads(writers, readers)
    acknowledged = [place for writer in writers for place in writer.acknowledged]
    assert len(acknowledged) >= len(kinds) * messages
    for reader in readers:
        assert find_missed(acknowledged, reader.seen) == []
        assert reader.seen.repeated == []
