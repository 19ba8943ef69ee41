"""A record of the partitions that processes wrote to recently, so that many watches need not be polled each.

A process that writes adds a row at once, then at most twenty a second, and a row without keys when it has stopped. So
other processes notice one that ended before it had recorded everything. The record is a hint: rows come late, or never
if their process is killed.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Driver, Statement, StatementRequest
from queuey.storage.cassandra.statements.consistency_levels import auto_level
from queuey.storage.cassandra.time.clock import SteadyClock, ticks

SHARDS = 2
WINDOW = 3.0
"""Max seconds that each read goes back, because rows come late (``REQUEST_TIMEOUT``) and clocks differ. That allows for
clocks one second apart. What a read misses beyond that is found by polls."""
EARLY_WINDOW = 0.6
"""Max seconds that reads for early readers go back. Those reads are many, and a late row costs little."""
FIRST_WINDOW = 10.0
"""Max seconds that the first reads go back, for readers that already wait for messages not shown yet."""
PROCESS_TIMEOUT = 4.0
"""Max seconds without a row while a process is writing. After that it has ended: late rows have come by then, also
those of clocks that are behind. A process taken for ended by mistake costs its watchers one more poll."""
MAX_WAITING_KEYS = 200_000
MAX_ROW_KEYS, MAX_ROWS = 4_096, 16_000
"""Max keys of a row, and max rows that are read of one shard and minute."""
ROWS_PER_TURN = 2_000
"""Max rows of an answer that one turn of the loop handles."""
SPACING = 0.05
REQUEST_TIMEOUT = 1.0
_KEY_BYTES = 9
_TICKS_PER_MINUTE = ticks(60.0)

_ADD_ROW = Statement("INSERT INTO recent_writes (minute, shard, at, process, keys) VALUES (?, ?, ?, ?, ?)")
_SELECT_SINCE = Statement(
    f"SELECT at, process, keys FROM recent_writes WHERE minute = ? AND shard = ? AND at >= ? LIMIT {MAX_ROWS}"
)
STATEMENTS_TO_PREPARE = (_ADD_ROW, _SELECT_SINCE)


class Recorded(NamedTuple):
    """Partitions that a process wrote to.

    Attributes:
        at: Ticks of the row. The writes were acknowledged before.
        keys: The encoded partitions; :func:`keys_of` decodes them.
    """

    at: int
    keys: bytes


class RecentWrites:
    """Writes and reads the record, in the thread of the store's loop."""

    def __init__(self, driver: Driver, clock: SteadyClock, process: str) -> None:
        self._driver = driver
        self._clock = clock
        self._process = process
        self._shard = crc32(process.encode()) % SHARDS
        self._waiting_keys: deque[int] = deque(maxlen=MAX_WAITING_KEYS)
        self.is_open = False
        """There is more to record, even if it is only the end."""
        self._in_between = False
        """The last row was written between two turns."""
        self._free = 0.0
        self._seen: set[tuple[int, str]] = set()
        self._others: dict[str, int] = {}
        """By writing process, the ticks of its latest row."""
        self._gone: set[str] = set()
        """Processes that have ended, or whose rows do not arrive, as from a data centre that is cut off."""
        self._returned = False
        self.add_keys = self._waiting_keys.extend
        """Appends keys of partitions that this process has written to, to be recorded."""

    @property
    def due(self) -> float:
        """Boot time of the next write between two turns. Infinite if no keys wait."""
        return self._free if self._waiting_keys else math.inf

    def write(self, *, ends_turn: bool = True) -> None:
        """Records the waiting keys, at most one row of them. Does not wait.

        The keys are dropped while the copies are unknown; the polls of other processes find their messages.

        Args:
            ends_turn: True: if nothing was written since the last turn, records that the process has stopped. False:
                writes only waiting keys.
        """
        keys = {self._waiting_keys.popleft() for _ in range(min(len(self._waiting_keys), MAX_ROW_KEYS))}
        if not keys and (self._in_between or not ends_turn):
            self._in_between = self._in_between and not ends_turn
            return
        if keys or self.is_open:
            try:
                self._add_row(b"".join([key.to_bytes(_KEY_BYTES) for key in keys]))
            except StoreUnavailable:
                return
        self.is_open, self._in_between = bool(keys), not ends_turn
        self._free = self._clock.boottime() + SPACING

    def close(self) -> None:
        while self._waiting_keys:
            self.write()
        self._in_between = False
        self.write()

    def _add_row(self, keys: bytes) -> None:
        now = self._clock.now()
        consistency = auto_level(self._driver.replication())
        values = now // _TICKS_PER_MINUTE, self._shard, now, self._process, keys
        self._driver.send(
            StatementRequest(_ADD_ROW, values, consistency, timeout=REQUEST_TIMEOUT), lambda _rows, _error: None
        )

    async def read(self, *, first: bool, latest: bool = False) -> list[Recorded]:
        """Returns rows that were not returned before: those of other processes, in the last seconds.

        Args:
            first: Goes back further, and includes rows of this process.
            latest: Goes back less far. Rows that come late are left to the next read without it.

        Raises:
            StoreUnavailable: The record cannot be read, or has too many rows.
        """
        now = self._clock.now()
        since = now - ticks(EARLY_WINDOW if latest else FIRST_WINDOW if first else WINDOW)
        consistency = auto_level(self._driver.replication())
        minutes = range(
            since // _TICKS_PER_MINUTE, (now + ticks(1.0)) // _TICKS_PER_MINUTE + 1
        )  # Other clocks may be ahead.
        requests = [
            StatementRequest(_SELECT_SINCE, (minute, shard, since), consistency, timeout=REQUEST_TIMEOUT)
            for minute in minutes
            for shard in range(SHARDS)
        ]
        answers = await self._driver.ask_all(requests)
        if any(len(rows) >= MAX_ROWS for rows in answers):
            raise StoreUnavailable("the record of recent writes has too many rows to read")
        seen = self._seen
        if not latest:
            self._seen = set()
        recorded = []
        for count, (written_at, process, keys) in enumerate(chain.from_iterable(answers), 1):
            if not count % ROWS_PER_TURN:
                await self._driver.loop.next_turn()
            is_new = (written_at, process) not in seen
            self._seen.add((written_at, process))
            if not is_new:
                continue
            if process != self._process:
                self._note_process(written_at, process, writes=bool(keys))
            if first or process != self._process:
                recorded.append(Recorded(written_at, keys))
        return recorded

    def _note_process(self, at: int, process: str, *, writes: bool) -> None:
        if process in self._gone:
            self._gone.remove(process)
            self._returned = True
        if at > self._others.get(process, 0):
            if writes:
                self._others[process] = at
            else:
                self._others.pop(process, None)

    def take_missed(self) -> bool:
        """Returns, and resets, whether this process may have missed earlier writes for good.

        That is so after a process has ended without recording its end, and when rows of a process arrive again after a
        gap.
        """
        returned, self._returned = self._returned, False
        before = self._clock.now() - ticks(PROCESS_TIMEOUT)
        ended = [process for process, written_at in self._others.items() if written_at < before]
        for process in ended:
            del self._others[process]
        self._gone.update(ended)
        return returned or bool(ended)


def keys_of(encoded: bytes) -> list[int]:
    return [int.from_bytes(encoded[first : first + _KEY_BYTES]) for first in range(0, len(encoded), _KEY_BYTES)]
