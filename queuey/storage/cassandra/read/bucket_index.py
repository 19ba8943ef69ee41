"""Which buckets of a queue partition hold messages, beyond those that every reader looks at.

A writer records a bucket at the queue's write level before it makes an id for it, so a reader whose look at the record
began after its horizon (plus S) knows every bucket that can hold an id below that horizon. Looks are cached by that
rule.

The record also holds the partition's **floor**: below it, nothing that was written under a new id is alive. It lets a
reader that comes without a cursor begin behind any number of deleted messages. It only ever has to be true, never
exact, and once true it stays so. Where reads do not meet all acknowledged writes (:meth:`Levels.concludes`) none is
written, and one that is there is ignored.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.bucketing import CLASSES, Bucket, Recorded
from queuey.storage.cassandra.driver import Driver, Rows, Statement
from queuey.storage.cassandra.ids.clock import Clock
from queuey.storage.cassandra.read.recent import Recent

log = logging.getLogger(__name__)

FIRST_LOOK = 64
"""Rows of the first look: nearly every partition has fewer."""
MORE = 500
"""Rows of each further look, per level."""
PLACES = 16
"""So many buckets take as much memory as the rest of a look."""
MARGIN = 7200
"""Seconds for which a record outlives what it names: longer than it is used without being renewed."""
REFRESH_PUT = 3600.0
"""Seconds after which a bucket of given ids is recorded again: messages may come to it as long as it is named."""
_BEFORE = 60 * TICKS_PER_SECOND
"""A look begins so much below what was asked for, so that readers with nearby cursors share it."""
FLOOR_EVERY = 5.0
FLOOR_STEP = TICKS_PER_SECOND
"""A floor is raised at most so often (seconds), and by at least so much (ticks)."""

Key = tuple[int, int]
"""qid and partition."""

FIRST = Statement(f"SELECT floor, level, start, class FROM bucket_index WHERE qid = ? AND part = ? LIMIT {FIRST_LOOK}")
_WIDE = Statement("SELECT floor, level, start, class FROM bucket_index WHERE qid = ? AND part = ? AND level = ?")
_UP = Statement(
    "SELECT floor, level, start, class FROM bucket_index WHERE qid = ? AND part = ? AND level = ? AND start > ? "
    f"ORDER BY level DESC, start ASC, class DESC LIMIT {MORE}"
)
_DOWN = Statement(
    "SELECT floor, level, start, class FROM bucket_index "
    f"WHERE qid = ? AND part = ? AND level = ? AND start > ? AND start < ? LIMIT {MORE}"
)
_RECORD = Statement("INSERT INTO bucket_index (qid, part, level, start, class) VALUES (?, ?, ?, ?, ?) USING TTL ?")
FLOOR = Statement("UPDATE bucket_index USING TTL ? SET floor = ? WHERE qid = ? AND part = ?")


class Known(NamedTuple):
    """What a look gave.

    Attributes:
        began: Boot time at which it began.
        recorded: All recorded buckets that overlap ``[low, high)``, but perhaps not those below the floor, and perhaps
            others.
        low, high: Ticks between which it is complete.
        floor: Nothing written under a new id lies below; None: none is recorded, or it may not be trusted.
    """

    began: float
    recorded: Recorded
    low: int
    high: int
    floor: Position | None


class BucketIndex:
    """The record of buckets, with a cache.

    Args:
        driver: The way to Cassandra.
        clock: For ages.
        size: Partitions to remember at most, of each kind.
        age: Seconds for which a look may be used (C).
    """

    def __init__(self, driver: Driver, clock: Clock, size: int, age: float) -> None:
        self._driver = driver
        self._clock = clock
        self._size = size
        self._lock = threading.Lock()
        self._known: Recent[tuple[int, int, bool], Known] = Recent(clock.boottime, age, size)
        self._recorded: OrderedDict[tuple[int, int, Bucket], float] = OrderedDict()
        self._raised: Recent[Key, float] = Recent(clock.boottime, FLOOR_EVERY, size)

    # Writing

    def is_recorded(self, qid: int, part: int, place: Bucket) -> bool:
        """Tells without I/O whether this process has recorded a bucket (lately enough, for given ids)."""
        at = self._recorded.get((qid, part, place))
        return at is not None and (place.minted or self._clock.boottime() - at < REFRESH_PUT)

    def record(self, qid: int, part: int, places: Iterable[Bucket], *, consistency: str) -> None:
        """Records buckets, those that this process has recorded already left out. Idempotent.

        Raises:
            StoreUnavailable: Not known to be recorded; nothing may be written to them.
        """
        missing = [place for place in dict.fromkeys(places) if not self.is_recorded(qid, part, place)]
        if not missing:
            return
        now = self._clock.boottime()
        calls = [
            (_RECORD, (qid, part, place.level, place.start, place.kind, self._lifetime(place))) for place in missing
        ]
        if len(calls) == 1:
            self._driver.run(*calls[0], consistency=consistency)
        else:
            for at in range(0, len(calls), 100):
                self._driver.batch(calls[at : at + 100], consistency=consistency)
        with self._lock:
            for place in missing:
                _remember(self._recorded, (qid, part, place), now, self._size)
            self._known.pop((qid, part, False))
            self._known.pop((qid, part, True))

    def _lifetime(self, place: Bucket) -> int:
        """Seconds for which a record must be kept: whatever comes to the bucket has expired by then."""
        now = self._clock.now()
        ahead = max(0, place.end - now) // TICKS_PER_SECOND
        return min(ahead + CLASSES[place.kind] + MARGIN, bucketing.longest_ttl(now))

    # Reading

    def cached(self, qid: int, part: int, low: int, high: int, *, since: float, descending: bool) -> Known | None:
        """Returns a look that is recent enough and reaches far enough, from memory."""
        known = self._known.get((qid, part, descending))
        if known is None or known.began < since:
            return None
        reaches = known.low < high <= known.high if descending else known.low <= low < known.high
        return known if reaches else None

    def look(
        self, wanted: Sequence[tuple[int, int, int]], *, consistency: str, floors: bool, descending: bool = False
    ) -> list[Known]:
        """Looks partitions up.

        Args:
            wanted: qid, partition and the tick to begin at: everything above (descending: below) is asked for, as far
                as one look reaches.
            consistency: The queue's read level.
            floors: Floors may be trusted.
            descending: Look downwards.

        Raises:
            StoreUnavailable: As the driver.
        """
        began = self._clock.boottime()
        first = self._driver.run_all([(FIRST, (qid, part)) for qid, part, _ in wanted], consistency=consistency)
        found = []
        for (qid, part, at), rows in zip(wanted, first, strict=True):
            known = all_of(began, rows, floors=floors)
            if known is None:
                floor = _floor(rows) if floors else None
                known = self._look_further(began, (qid, part), at, floor, consistency, descending=descending)
            with self._lock:
                weight = 1 + len(known.recorded.places) // PLACES
                self._known.put((qid, part, descending), known, began, weight)
            found.append(known)
        return found

    def _look_further(
        self, began: float, key: Key, at: int, floor: Position | None, consistency: str, *, descending: bool
    ) -> Known:
        """Looks up a partition with many buckets, level by level, without the minted ones below the floor."""
        narrow = [level for level in bucketing.LEVELS if level not in {bucketing.HOME, bucketing.PUT}]
        calls: list[tuple[Statement, Sequence[Any]]] = [(_WIDE, (*key, bucketing.HOME)), (_WIDE, (*key, bucketing.PUT))]
        low = 0 if descending else max(0, at - _BEFORE)
        high = at + _BEFORE if descending else ids.TICKS_MAX + 1
        for level in narrow:
            lowest = max(low, floor[0]) if floor and level < bucketing.PUT else low
            bottom = lowest - bucketing.width(len(CLASSES) - 1, level)
            calls.append((_DOWN, (*key, level, bottom, high)) if descending else (_UP, (*key, level, bottom)))
        answers = self._driver.run_all(calls, consistency=consistency)
        for rows in answers[2:]:
            if len(rows) >= MORE:  # There are more; beyond the last of these this look says nothing.
                last = rows[-1][2]
                if descending:
                    low = max(low, last + bucketing.width(rows[-1][3], rows[-1][1]))
                else:
                    high = min(high, last)
        rows = [row for answer in answers for row in answer]
        return Known(began, Recorded(_places(rows)), low, high, floor)

    # The floor

    def raise_floor(self, key: Key, known: Known, floor: Position, *, lifetime: int, consistency: str) -> None:
        """Raises a partition's floor if it is worth it; does not wait and does not fail.

        Args:
            key: qid and partition.
            known: The look by which the partition was read.
            floor: Nothing written under a new id lies below.
            lifetime: Seconds for which the floor can matter to anybody.
            consistency: The queue's write level.
        """
        if floor[0] - (known.floor[0] if known.floor else 0) < FLOOR_STEP:
            return
        now = self._clock.boottime()
        with self._lock:
            raised = self._raised.get(key)
            if raised is not None and now - raised < FLOOR_EVERY:
                return
            self._raised.put(key, now, now)
        value = UUID(hex=ids.to_hex(floor))
        self._driver.begin(FLOOR, (lifetime, value, *key), consistency=consistency, done=_noted)


def all_of(began: float, rows: Rows, *, floors: bool) -> Known | None:
    """Returns what a first look gave, None if it was not enough; with the floor only if it may be trusted."""
    if len(rows) >= FIRST_LOOK:
        return None
    return Known(began, Recorded(_places(rows)), 0, ids.TICKS_MAX + 1, _floor(rows) if floors else None)


def _noted(_rows: Rows | None, error: StoreUnavailable | None) -> None:
    if error is not None:
        log.info("A floor was not raised: %s", error)


def _places(rows: Rows) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(kind, (start // bucketing.width(kind, level)) << 3 | level)
        for _, level, start, kind in rows
        if level is not None  # A partition with a floor and no bucket gives one row without them.
    )


def _floor(rows: Rows) -> Position | None:
    return ids.parse_position(rows[0][0].hex) if rows and rows[0][0] is not None else None


def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any, size: int) -> None:  # noqa: ANN401
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > size:
        cache.popitem(last=False)
