"""Partitions in memory: the messages of each bucket, and the answers to queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST, LOW_MAX, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.storage.cassandra.cluster import Rows, TooManyDead
from queuey.storage.cassandra.read import arrow_scan
from queuey.storage.cassandra.read.slice_reads import BucketSource, Gathered, Probe, Rounds
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import HOME_WIDTH, PUT_WIDTH, WIDTHS, Bucket
from tests.sim.cassandra import cql
from tests.sim.cassandra.cql import Cell
from tests.sim.cassandra.protocol import frames
from tests.storage.cassandra.simulated import FaultlessDriver

START = ids.seconds_to_ticks(1_750_000_000)
SECOND = TICKS_PER_SECOND
HOUR = 3600 * SECOND
NOW = START + 10 * HOUR
ALIVE, DEAD = NOW + HOUR, NOW
END: Position = (START + 400 * HOUR, LOW_MIN)
Row = tuple[bytes, bytes | None, int | None, bytes | None]


@dataclass
class Partition:
    """The buckets of a partition, and the queries of each."""

    time_buckets: dict[Bucket, dict[Position, Row]] = field(default_factory=dict)
    lowest: dict[Bucket, Position] = field(default_factory=dict)
    rounds: list[list[Probe]] = field(default_factory=list)
    most_dead: int | None = None
    """Dead rows that one probe may pass; in this model they have no end, as Cassandra returns none for them."""

    def add(self, time_bucket: Bucket, position: Position, body: str, expires: int | None = ALIVE) -> None:
        """Adds a row to a bucket.

        A bucket for ids of any age has rows with metadata; without ``expires`` the row is dead.
        """
        meta = None if time_bucket.new_ids_only else b"\0"
        value = None if expires is None else body.encode()
        self.time_buckets.setdefault(time_bucket, {})[position] = (
            message_codec.id_bytes(*position),
            value,
            expires,
            meta,
        )

    def source(self, time_bucket: Bucket) -> BucketSource:
        return BucketSource(time_bucket, self.lowest.get(time_bucket, (time_bucket.start, LOW_MIN)))

    def answer(self, probe: Probe) -> Rows:
        """Returns the rows of a probe in its order, up to its limit; without bodies only ids and ends."""
        positions = sorted(at for at in self.time_buckets[probe.time_bucket] if probe.lower <= at < probe.upper)
        if probe.descending:
            positions.reverse()
        rows = [self.time_buckets[probe.time_bucket][at] for at in positions[: probe.limit]]
        return rows if probe.bodies else [(data, expires) for data, _, expires, _ in rows]

    def refuses(self, probe: Probe) -> bool:
        """Returns whether the probe's range has more dead rows than the partition allows."""
        if self.most_dead is None:
            return False
        rows_of_it = self.time_buckets[probe.time_bucket]
        return sum(rows_of_it[at][2] is None for at in rows_of_it if probe.lower <= at < probe.upper) > self.most_dead

    def gather(self, reader: Rounds) -> Gathered:
        """Answers a reader's probes until it is done, records them by round, and returns what it gathered.

        If a probe is refused, the reader gets None in place of all answers.
        """
        answers: list[Rows] | None = None
        while True:
            try:
                probes = reader.send(answers)
            except StopIteration as ended:
                gathered: Gathered = ended.value
                return gathered
            self.rounds.append(probes)
            answers = None if any(map(self.refuses, probes)) else [self.answer(probe) for probe in probes]

    def find_expected(self, lower: Position, upper: Position) -> list[tuple[Position, str]]:
        """Returns the live messages between two positions; of two with one id the one that was put.

        Ids below the low watermark of their bucket are left out.
        """
        messages: dict[Position, str] = {}
        for time_bucket in sorted(self.time_buckets, key=lambda time_bucket: not time_bucket.new_ids_only):
            for position, (_, body, expires, _) in self.time_buckets[time_bucket].items():
                if max(lower, self.source(time_bucket).lowest) <= position < upper and body and expires is not None:
                    if expires > NOW:
                        messages[position] = body.decode()
                    else:
                        messages.pop(position, None)
        return sorted(messages.items())


def place_at(at: int, level: int = HOME_WIDTH, kind: int = 1) -> Bucket:
    return bucketing.bucket_of(at, kind, level)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Positions within a few hours, many close to each other and to the beginnings of buckets."""
    corner = START // HOUR * HOUR + draw(st.sampled_from([0, HOUR, 2 * HOUR, 2 * HOUR + 15 * 60 * SECOND, 7 * HOUR]))
    away = draw(st.integers(-3, 3) | st.integers(0, 40).map(lambda n: n * 7 * SECOND))
    return corner + away, draw(st.sampled_from([LOW_MIN, -5, 0, 5, LOW_MAX]))


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    """Messages in buckets of all levels and two classes, some expired, some put in a second bucket."""
    partition = Partition()
    given_levels = [level for level in WIDTHS if level >= PUT_WIDTH]
    for number, at in enumerate(draw(st.lists(positions(), max_size=60, unique=True))):
        kind = draw(st.integers(0, 1))
        ends = draw(st.sampled_from([ALIVE, ALIVE, ALIVE, DEAD, None]))
        minted, put = draw(st.sampled_from([(True, False), (True, False), (False, True), (True, True)]))
        if minted:
            time_bucket = place_at(at[0], draw(st.sampled_from([HOME_WIDTH, HOME_WIDTH, 1, 2, 3, 4])), kind)
            partition.add(time_bucket, at, f"minted {number}", ALIVE if put else ends)
        if put:
            partition.add(place_at(at[0], draw(st.sampled_from(given_levels)), kind), at, f"put {number}", ALIVE)
    for time_bucket in draw(st.lists(st.builds(place_at, positions().map(lambda at: at[0]), st.sampled_from(WIDTHS)))):
        partition.time_buckets.setdefault(time_bucket, {})
    low_watermark = draw(st.just(FIRST) | positions())
    for time_bucket in partition.time_buckets:
        if time_bucket.new_ids_only:
            partition.lowest[time_bucket] = max(low_watermark, (time_bucket.start, LOW_MIN))
    return partition


def driver_holding(partition: Partition) -> FaultlessDriver:
    driver = FaultlessDriver()
    driver.world.now = (NOW - ids.EPOCH_TICKS) / ids.TICKS_PER_SECOND
    for time_bucket, rows in partition.time_buckets.items():
        for position, (_, body, expires, meta) in rows.items():
            columns = {"body": body, "expires": expires, "meta": meta}
            cells = {name: Cell(1, value) for name, value in columns.items() if value is not None}
            row = cql.Partition(rows={(message_codec.uuid_of(position),): cql.Row(marker=Cell(1, ""), cells=cells)})
            place = f"messages_{bucketing.NAMES[time_bucket.ttl_class]}", (7, 1, time_bucket.code)
            for node in driver.cluster.nodes:
                node.data[place].absorb(row)
    return driver


def refuse_large_request(request: Any) -> StoreUnavailable | None:  # noqa: ANN401 - an encoded request
    """Returns an error for large pages of bodies, too slow, and for ids of many hours, too many dead rows; or None."""
    if "body" in request.statement.cql:
        return StoreUnavailable("too slow") if limit_of(request) > arrow_scan.FIRST_ROWS else None
    low, high = (message_codec.position_of(value)[0] for value in frames.values_of(request.rows[0])[3:5])
    return TooManyDead("too many") if high - low > HOUR else None


def limit_of(request: Any) -> int:  # noqa: ANN401 - an encoded request
    return int.from_bytes(frames.values_of(request.rows[0])[-1], "big")
