"""How much partitions hold: many are measured side by side, each in a few short steps.

A measurement is a generator that yields requests and is sent their answers, so it needs no thread, and many share one
connection to Cassandra. Of each bucket of a partition a few messages are read. Where that is all there are, they are
counted; else Cassandra counts the rest of them, and the bytes of their bodies are estimated by those that were read at
both ends. No more bodies are read than that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Measure
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, worst
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import Extent, Probe

FIRST_ROWS = 8
"""Rows that are read of a bucket at first; bodies may be large."""
MORE_ROWS = 200
MORE_BYTES = 128 << 10
"""What is read beyond that: so many rows, and about so many bytes, at most."""
LAST_ROWS = 50
"""Rows that are read at the upper end of a bucket that has more."""
MOST_PLACES = 16
"""A partition with more buckets is measured in another way."""

T = TypeVar("T")
Ask = Request | Encoded
Answers = list[Rows]
Steps = Generator[list[Ask], Answers, T]
"""Yields requests, at least one at a time, and is sent their answers; or is thrown the worst of their errors."""
_Ended = SimpleQueue[tuple[int, Answers, list[StoreUnavailable]]]


def run(driver: Driver, tasks: Iterable[Steps[T]], *, flying: int = 48, held: int = 1000) -> Iterator[T]:
    """Runs generators side by side; gives their results in order.

    Args:
        driver: The way to Cassandra.
        tasks: The generators.
        flying: How many of them have requests on the way at most.
        held: How many results wait for an earlier one at most.

    Raises:
        StoreUnavailable: That one of them did not catch.
    """
    ended: _Ended = SimpleQueue()
    going: dict[int, Steps[T]] = {}
    results: dict[int, T] = {}
    numbered = enumerate(tasks)
    given = 0

    def advance(number: int, task: Steps[T], step: Callable[[], list[Ask]]) -> None:
        try:
            asks = step()
        except StopIteration as end:
            results[number] = end.value
            return
        going[number] = task
        driver.send_all(asks, lambda answers, errors: ended.put((number, answers, errors)))

    while True:
        while len(going) < flying and len(going) + len(results) < held and (new := next(numbered, None)) is not None:
            advance(*new, partial(next, new[1]))
        while given in results:
            yield results.pop(given)
            given += 1
        if going:
            number, answers, errors = ended.get()
            task = going.pop(number)
            advance(number, task, partial(task.throw, worst(errors)) if errors else partial(task.send, answers))
        elif new is None:
            return


class Rest(NamedTuple):
    """What was not read yet of a bucket."""

    time_bucket: Bucket
    lower: Position
    upper: Position

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The first and the last id."""
        return message_codec.uuid_of(self.lower), message_codec.uuid_of(ids.preceding(self.upper))


class Meter:
    """Measures one partition.

    Args:
        key: qid and partition.
        consistency: The queue's read level.
        now: Ticks; what has expired by then does not count where it is read.
    """

    def __init__(self, key: tuple[int, int], consistency: str, now: int) -> None:
        self._key = key
        self._consistency = consistency
        self._now = now
        self._sizes: dict[Position, int] = {}
        self._samples: dict[Bucket, list[int]] = {}

    def measure(self, extent: Extent) -> Steps[Measure | None]:
        """Measures all of it.

        Returns:
            None if it holds nothing.
        """
        # If a message exists in both buckets, the one of chosen ids is used: it comes first.
        left = [
            Rest(time_bucket, low, high)
            for time_bucket, lowest in sorted(extent.sources, key=lambda source: source.time_bucket.minted)
            if (low := max(extent.lower, lowest)) < (high := min(extent.upper, (time_bucket.end, LOW_MIN)))
        ]
        limits = [FIRST_ROWS] * len(left)
        for _ in range(2):
            if left:
                answers = yield [self._read(*one) for one in zip(left, limits, strict=True)]
                left = [
                    rest
                    for part, limit, answer in zip(left, limits, answers, strict=True)
                    if (rest := self._taken(part, limit, answer)) is not None
                ]
                limits = [self._more(part) for part in left]
        if not left:
            return self._result(len(self._sizes), sum(self._sizes.values()), self._sizes, exact=True)
        counts = [self._count(part) for part in left]
        answers = yield counts + [self._read(part, LAST_ROWS, descending=True) for part in left]
        count, size, last = len(self._sizes), sum(self._sizes.values()), dict(self._sizes)
        for part, counted, answer in zip(left, answers, answers[len(left) :], strict=False):
            alive = self._alive(answer)
            last |= alive
            sample = [*self._samples[part.time_bucket], *alive.values()]
            count += counted[0][0]
            size += counted[0][0] * sum(sample) // max(1, len(sample))
        return self._result(count, size, last, exact=False)

    def _result(self, count: int, size: int, seen: dict[Position, int], *, exact: bool) -> Measure | None:
        if not seen:
            return None
        return Measure(self._key[1], count, size, exact, min(seen), max(seen))

    def _read(self, part: Rest, limit: int, *, descending: bool = False) -> Ask:
        probe = Probe(part.time_bucket, part.lower, part.upper, limit, descending)
        return reading.query(self._key, probe, self._consistency)

    def _count(self, part: Rest) -> Ask:
        values = (*self._key, part.time_bucket.bucket, *part.bounds)
        return Request(message_codec.COUNT[part.time_bucket.kind], values, self._consistency)

    def _taken(self, part: Rest, limit: int, answer: Rows) -> Rest | None:
        """Notes down what was read; returns what may be left of the bucket."""
        alive = self._alive(answer)
        self._sizes = alive | self._sizes
        self._samples.setdefault(part.time_bucket, []).extend(alive.values())
        if len(answer) < limit:
            return None
        rest = part._replace(lower=ids.following(message_codec.position_of(answer[-1][0])))
        return rest if rest.lower < rest.upper else None

    def _alive(self, answer: Rows) -> dict[Position, int]:
        """Returns the bytes of the bodies of live messages."""
        return {
            message_codec.position_of(data): len(body)
            for data, body, expires, _ in answer
            if expires is not None and body is not None and expires > self._now
        }

    def _more(self, part: Rest) -> int:
        """Returns how many rows to read next."""
        sample = self._samples[part.time_bucket]
        average = max(1, sum(sample) // max(1, len(sample)))
        return max(1, min(MORE_ROWS, MORE_BYTES // average))
