"""The record of partitions that processes have written in lately: who watches very many need not ask for each.

A process that writes adds a row at once, then up to twenty a second, and one without keys when it has stopped, so that
others notice if it ended before it could record all. What is read is a hint: rows come late, or not at all if their
process is killed.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.clocks.clock import Clock, ticks
from queuey.storage.cassandra.consistency_levels import usual
from queuey.storage.cassandra.driver import Driver, Request, Statement

SHARDS = 2
WINDOW = 3.0
"""Max seconds that each reading goes back: rows come late (``TIMEOUT``), and clocks differ. That is enough for a
difference of a second; where it may be more, what a reading misses is found in turns."""
LATEST = 0.6
"""Max seconds that readings go back for those who wait for what may still be undone: they are many, and lateness costs
little."""
KEPT = 10.0
"""Max seconds that the first reading goes back, for those who wait already for what is not shown yet."""
GONE = 4.0
"""Max seconds without a row, after which a process has ended that had not stopped writing: late rows, and clocks that
are behind, are over by then. If one is taken for ended that is not, watchers only poll once more."""
MOST_NOTED = 200_000
"""Max keys that wait to be recorded."""
MOST_KEYS, MOST_ROWS = 4_096, 16_000
"""Keys in a row, and rows of one shard and minute that are read at a time."""
ROWS_IN_A_TURN = 2_000
"""Max rows of an answer that one turn of the loop goes through."""
SPACING = 0.05
"""Min seconds between two rows of a process."""
TIMEOUT = 1.0
_KEY = 9
"""Number of bytes of a key."""
_MINUTE = ticks(60.0)

_ADD = Statement("INSERT INTO recent_writes (minute, shard, at, process, keys) VALUES (?, ?, ?, ?, ?)", frequent=True)
_LATELY = Statement(
    f"SELECT at, process, keys FROM recent_writes WHERE minute = ? AND shard = ? AND at >= ? LIMIT {MOST_ROWS}"
)
PREPARED = (_ADD, _LATELY)
"""Statements that are prepared ahead."""


class Recorded(NamedTuple):
    """The partitions that another process wrote to.

    Attributes:
        at: Ticks; everything was acknowledged before.
        keys: Of the partitions, as :func:`keys_of` reads them.
    """

    at: int
    keys: bytes


class RecentWrites:
    """The record as one process writes and reads it, in the thread of the store's loop."""

    def __init__(self, driver: Driver, clock: Clock, process: str) -> None:
        self._driver = driver
        self._clock = clock
        self._process = process
        self._shard = crc32(process.encode()) % SHARDS
        self._noted: deque[int] = deque(maxlen=MOST_NOTED)
        self.is_open = False
        """There will be more to record, if only the end."""
        self._in_between = False
        """The last row was written between two turns."""
        self._free = 0.0
        self._seen: set[tuple[int, str]] = set()
        self._others: dict[str, int] = {}
        """Of each process that writes, when it last said so."""
        self._gone: set[str] = set()
        """Processes that have ended, or whose rows do not come, as from a data centre that is cut off."""
        self._returned = False
        self.note = self._noted.extend
        """Appends the keys of partitions that this process has written to, to be recorded."""

    @property
    def due(self) -> float:
        """When (boot time) to write between two turns; infinite: nothing is noted."""
        return self._free if self._noted else math.inf

    def write(self, *, ends: bool = True) -> None:
        """Records what was noted, or a row of it, without waiting.

        Args:
            ends: It is a turn: that there was nothing since the one before is recorded as well.
        """
        keys = {self._noted.popleft() for _ in range(min(len(self._noted), MOST_KEYS))}
        if not keys and (self._in_between or not ends):
            self._in_between = self._in_between and not ends
            return
        if keys or self.is_open:
            try:
                self._add(b"".join([key.to_bytes(_KEY) for key in keys]))
            except StoreUnavailable:
                return  # Others will find what was written in their turns.
        self.is_open, self._in_between = bool(keys), not ends
        self._free = self._clock.boottime() + SPACING

    def close(self) -> None:
        """Records what is left, and that nothing will come any more."""
        while self._noted:
            self.write()
        self._in_between = False
        self.write()

    def _add(self, keys: bytes) -> None:
        at = self._clock.now()
        level = usual(self._driver.replication())
        values = at // _MINUTE, self._shard, at, self._process, keys
        self._driver.send(Request(_ADD, values, level, timeout=TIMEOUT), lambda _rows, _error: None)

    async def read(self, *, first: bool, latest: bool = False) -> list[Recorded]:
        """Returns what others have recorded since the last reading, of the last seconds.

        Args:
            first: It is the first one: of more seconds, and what this process has recorded as well.
            latest: Rows that come late are left to the next reading that is not so.

        Raises:
            StoreUnavailable: It cannot be read, or is too much to be read.
        """
        now = self._clock.now()
        since = now - ticks(LATEST if latest else KEPT if first else WINDOW)
        level = usual(self._driver.replication())
        minutes = range(since // _MINUTE, (now + ticks(1.0)) // _MINUTE + 1)  # Other clocks may be ahead.
        asked = [
            Request(_LATELY, (minute, shard, since), level, timeout=TIMEOUT)
            for minute in minutes
            for shard in range(SHARDS)
        ]
        answers = await self._driver.ask_all(asked)
        if any(len(rows) >= MOST_ROWS for rows in answers):
            raise StoreUnavailable("more was written lately than is read of it")
        seen = self._seen
        if not latest:
            self._seen = set()
        found = []
        for number, (at, process, keys) in enumerate(chain.from_iterable(answers), 1):
            if not number % ROWS_IN_A_TURN:
                await self._driver.loop.next_turn()
            is_new = (at, process) not in seen
            self._seen.add((at, process))
            if not is_new:
                continue
            if process != self._process:
                self._note_process(at, process, writes=bool(keys))
            if first or process != self._process:
                found.append(Recorded(at, keys))
        return found

    def _note_process(self, at: int, process: str, *, writes: bool) -> None:
        if process in self._gone:
            self._gone.remove(process)
            self._returned = True
        if at > self._others.get(process, 0):
            if writes:
                self._others[process] = at
            else:
                self._others.pop(process, None)

    def lost(self) -> bool:
        """Returns whether something that was written before this call may not have been read, and never will be.

        So it is when a process has ended that may not have recorded all that it wrote, and when the rows of one come
        again that did not come for a while.
        """
        returned, self._returned = self._returned, False
        before = self._clock.now() - ticks(GONE)
        gone = [process for process, at in self._others.items() if at < before]
        for process in gone:
            del self._others[process]
        self._gone.update(gone)
        return returned or bool(gone)


def keys_of(encoded: bytes) -> list[int]:
    return [int.from_bytes(encoded[first : first + _KEY]) for first in range(0, len(encoded), _KEY)]
