"""How many messages lie in a range: exact where they are few, else estimated from a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.bucketing import HOME_WIDTH, Bucket
from queuey.storage.cassandra.driver import Encoded, Request, TooManyDead, fast_path
from queuey.storage.cassandra.driver.callbacks import side_by_side
from queuey.storage.cassandra.read import counting
from queuey.storage.cassandra.read.reading import BucketSource, Extent
from tests.cassandra.scripted import AnsweringDriver

NOW = ids.seconds_to_ticks(1_750_000_000)
START = NOW // bucketing.width(1, 3) * bucketing.width(1, 3)
KEY = (7, 1)


class Counted(AnsweringDriver):
    """Places with so many messages each, a tick apart; answers what is asked of their ids."""

    def __init__(self, time_buckets: dict[Bucket, int]) -> None:
        super().__init__()
        self.time_buckets = time_buckets
        self.counts = 0
        self.listed = 0
        self.refuses = False

    def answer(self, request: Request | Encoded) -> list[Any]:
        """Counts, or lists ids."""
        return self._count(request) if isinstance(request, Request) else self._list(request)

    def _count(self, request: Request) -> list[Any]:
        assert request.statement in message_codec.COUNT
        if self.refuses:
            raise TooManyDead("too many")
        self.counts += 1
        _, _, bucket, low, high = request.values
        assert request.values[:2] == KEY
        return [(len(self._found(bucket, low.bytes, high.bytes)),)]

    def _list(self, request: Encoded) -> list[Any]:
        assert request.statement in {*message_codec.IDS_UP, *message_codec.IDS_DOWN}, "bodies are not needed"
        qid, partition, bucket, low, high, limit = fast_path.values_of(request.rows[0])
        assert (int.from_bytes(qid), int.from_bytes(partition)) == KEY
        found = self._found(int.from_bytes(bucket), low, high)
        if request.statement in message_codec.IDS_DOWN:
            found.reverse()
        found = found[: int.from_bytes(limit)]
        self.listed += len(found)
        return [(message_codec.id_bytes(*at), NOW + 1) for at in found]

    def _found(self, bucket: int, low: bytes, high: bytes) -> list[Position]:
        time_bucket = next(time_bucket for time_bucket in self.time_buckets if time_bucket.bucket == bucket)
        bounds = message_codec.position_of(low), message_codec.position_of(high)
        places = [(time_bucket.start + number, 0) for number in range(self.time_buckets[time_bucket])]
        return [at for at in places if bounds[0] <= at <= bounds[1]]

    def tally(
        self,
        *,
        lower: Position = FIRST,
        upper: Position = counting.END,
        complete: bool = True,
        rough: bool = False,
    ) -> counting.Tally:
        """Counts what lies between two positions."""
        extent = Extent(
            [BucketSource(time_bucket, (time_bucket.start, LOW_MIN)) for time_bucket in self.time_buckets],
            lower,
            upper,
            complete=complete,
        )
        extents = extent, extent
        [found] = side_by_side([counting.tally(self, KEY, extents, "QUORUM", now=NOW, rough=rough)])
        return found


def narrow(counts: Sequence[int]) -> dict[Bucket, int]:
    """Touching buckets of a minute."""
    size = bucketing.width(1, 3)
    return {bucketing.bucket_of(START + number * size, 1, 3): count for number, count in enumerate(counts)}


def test_nothing() -> None:
    """An empty range is known to be empty."""
    assert Counted({}).tally() == counting.NOTHING
    assert Counted(narrow([0, 0])).tally() == counting.NOTHING


@given(st.lists(st.integers(0, 60), max_size=30))
def test_few_messages_are_counted_exactly(counts: list[int]) -> None:
    """Up to 2,000 messages are listed, so their number and both ends are known."""
    partition = Counted(narrow(counts))
    found = partition.tally()
    assert found.exact
    assert found.size == sum(counts)
    if found.size:
        filled = [(time_bucket, count) for time_bucket, count in partition.time_buckets.items() if count]
        assert found.oldest == (filled[0][0].start, 0)
        assert found.newest == (filled[-1][0].start + filled[-1][1] - 1, 0)
    assert not partition.counts


@pytest.mark.parametrize("size", [counting.LISTED, counting.LISTED + 1])
def test_from_two_thousand_on_cassandra_counts(size: int) -> None:
    """At the bound the way of counting changes; of one bucket number and ends are right in both."""
    partition = Counted({bucketing.bucket_of(START, 1, HOME_WIDTH): size})
    [time_bucket] = partition.time_buckets
    exact = size == counting.LISTED
    assert partition.tally() == (size, exact, (time_bucket.start, 0), (time_bucket.start + size - 1, 0))
    assert partition.counts == (0 if exact else 1)


@pytest.mark.parametrize(("rough", "counts", "listed"), [(False, 8, 2 * counting.LISTED), (True, 2, 200)])
def test_many_narrow_places_are_estimated(*, rough: bool, counts: int, listed: int) -> None:
    """Of a hundred buckets eight are counted, or two, and the others are taken to be like them."""
    partition = Counted(narrow([300] * 100))
    found = partition.tally(rough=rough)
    assert (found.size, found.exact) == (30_000, False)
    assert partition.counts == counts
    assert partition.listed <= listed + 1000
    first, *_, last = partition.time_buckets
    assert (found.oldest, found.newest) == ((first.start, 0), (last.start + 299, 0))


def test_what_lies_between_two_looks_is_estimated() -> None:
    """Where the looks from both ends do not meet, what is between is taken to be as dense as what they reach."""
    partition = Counted({bucketing.bucket_of(START, 1, HOME_WIDTH): 100, **narrow([300] * 200)})
    wide, *time_buckets = (
        BucketSource(time_bucket, (time_bucket.start, LOW_MIN)) for time_bucket in partition.time_buckets
    )
    extents = (
        Extent([wide, *time_buckets[:20]], FIRST, (time_buckets[20].time_bucket.start, LOW_MIN), complete=False),
        Extent(
            [wide, *time_buckets[-20:]], (time_buckets[-20].time_bucket.start, LOW_MIN), counting.END, complete=False
        ),
    )
    [found] = side_by_side([counting.tally(partition, KEY, extents, "QUORUM", now=NOW)])
    assert not found.exact
    assert found.size == pytest.approx(200 * 300 + 100, rel=0.05)
    assert partition.counts == 9


def test_wide_places_are_counted_beside_narrow_ones() -> None:
    """What lies in the wide buckets is added, not multiplied."""
    wide = bucketing.bucket_of(START, 1, HOME_WIDTH)
    found = Counted({wide: 5000, **narrow([300] * 20)}).tally()
    assert found.size == 5000 + 20 * 300


def test_bounds_are_part_of_the_query() -> None:
    """What lies outside the range is not counted."""
    partition = Counted(narrow([4000, 4000]))
    first, second = partition.time_buckets
    found = partition.tally(lower=(first.start + 1000, LOW_MIN), upper=(second.start + 500, LOW_MIN))
    assert (found.size, found.exact) == (3500, False)
    assert (found.oldest, found.newest) == ((first.start + 1000, 0), (second.start + 499, 0))


def test_what_is_not_known_in_full_is_not_exact() -> None:
    """Few messages in the buckets that are known say nothing of those that are not."""
    found = Counted(narrow([3, 4])).tally(complete=False)
    assert (found.size, found.exact) == (7, False)


def test_what_cassandra_refuses_to_count_is_at_least_what_was_listed() -> None:
    """With too many dead rows for counting, the estimate is what was seen."""
    partition = Counted(narrow([2500]))
    partition.refuses = True
    found = partition.tally()
    assert (found.size, found.exact) == (counting.LISTED + 1, False)


@pytest.mark.parametrize("lower", [(START + 1, LOW_MIN), (ids.TICKS_MAX, LOW_MIN)])
def test_an_empty_range_costs_no_query(lower: Position) -> None:
    """Between two positions with nothing in between nothing is asked."""
    partition = Counted(narrow([10]))
    assert partition.tally(lower=lower, upper=lower) == counting.NOTHING
    assert partition.listed == 0
