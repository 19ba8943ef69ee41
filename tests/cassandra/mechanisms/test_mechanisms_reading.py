"""What keeps the promises of reads, each part by a scenario that goes wrong when the part is taken out."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from queuey import ids
from queuey.errors import QueueChanged
from queuey.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Page, Queue, Slice
from queuey.service import Range, Reading, ranges
from queuey.storage.cassandra import CassandraStore, bucketing, message_codec
from queuey.storage.cassandra.bucket_index import BucketIndex, BucketLookup
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache, Row
from queuey.storage.cassandra.clocks.clock import ticks
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import Probe
from queuey.storage.cassandra.store import messages
from tests.cassandra.interposed import INSERTS, LOW_WATERMARKS, PATIENCE, READS
from tests.cassandra.scene import (
    TTL,
    D,
    Mechanism,
    Process,
    Reader,
    S,
    Scene,
    end_of,
    mechanisms,
    message,
    played_without,
)
from tests.contract.read.test_early import read as read_early
from tests.contract.read.test_streams import service_of
from tests.replacing import replace, replace_in

LONG = 5 * 86_400
"""A TTL beyond the class of the queues here, so that its bucket has to be recorded."""


def in_thread(work: Any) -> threading.Thread:  # noqa: ANN401 - any call
    """Does something in the background."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def slow_read(scene: Scene) -> list[str]:
    """The answer to a read comes when what was written since is older than the read delay."""
    writing, reading_ = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading_, queue)
    gate = reading_.wire.hold(READS, answered=True)
    thread = in_thread(reader.go_on)
    gate.reached()
    attempt = writing.post(queue)
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D + S)
    gate.open()
    thread.join(PATIENCE)
    reader.go_on()
    return reader.missed([attempt])


def newest_first(scene: Scene) -> list[str]:
    """As many messages as are asked for lie above the horizon, others below; the newest below are wanted."""
    process = scene.start()
    queue = scene.queue(process)
    old = process.post(queue, message(), message(), message()).result(PATIENCE)
    scene.world.advance(D + S)
    process.post(queue, message(), message(), message()).result(PATIENCE)
    [page] = process.store.read(queue, [Slice(1, limit=3, descending=True)])
    shown = [one.position for one in page.messages]
    return [] if shown == old[::-1] else [f"{len(shown)} of 3 shown"]


def purged_meanwhile(scene: Scene) -> list[str]:
    """A process has a queue's row of before a purge by another."""
    stale, other = scene.start(), scene.start()
    queue = scene.queue(other)
    other.post(queue).result(PATIENCE)
    scene.world.advance(D + S)
    stale.store.queue(queue.application, queue.name, fresh=True)
    scene.world.advance(0.01)
    other.store.purge_queue(queue)
    reader = Reader(stale, queue)
    try:
        reader.go_on()
    except QueueChanged:
        return []
    return ["purged, but shown"] if reader.seen else []


def longer_lived(scene: Scene) -> list[str]:
    """A message outlives all that a reader knew of when it last looked at the queue's row."""
    writing, stale = scene.start(), scene.start()
    queue = scene.queue(writing, ttl=60)
    stale.store.queue(queue.application, queue.name, fresh=True)
    scene.world.advance(0.01)
    attempt = writing.post(queue, message(ttl=TTL))
    end_of(attempt)
    scene.world.advance(100)
    reader = Reader(stale, queue)
    reader.go_on()
    return reader.missed([attempt])


def place_of_another(scene: Scene) -> list[str]:
    """A message goes to a bucket that was recorded after a reader had looked."""
    writing, reading_ = scene.start(), scene.start()
    queue = scene.queue(writing, ttl=TTL)
    scene.world.advance(0.01)
    reader = Reader(reading_, queue)
    reader.go_on()
    scene.world.advance(0.01)
    attempt = writing.post(queue, message(ttl=LONG))
    end_of(attempt)
    scene.world.advance(D + S)
    reader.go_on()
    return reader.missed([attempt])


def place_seen_late(scene: Scene) -> list[str]:
    """A look is nearly as old as it may be, the writer's clock as far behind and the reader's ahead as is allowed."""
    options = {"row_age": D - S}
    writing, reading_ = scene.start(**options), scene.start(**options)
    queue = scene.queue(writing, ttl=TTL)
    for process, behind in ((writing, 0.39 * S), (reading_, -0.39 * S)):
        process.machine.fall_behind(behind)
        assert process.store._watch.check()
    reader = Reader(reading_, queue)
    reader.go_on()
    scene.world.advance(0.01)
    attempt = writing.post(queue, message(ttl=LONG))
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D - 0.78 * S + 0.01)
    reader.go_on()
    return reader.missed([attempt])


def found_empty_too_early(scene: Scene) -> list[str]:
    """Somebody who does not keep the read delay finds nothing where a write is on its way."""
    writing, looking = scene.start(), scene.start()
    queue = scene.queue(writing)
    gate = writing.wire.hold(INSERTS)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(0.1)
    [page] = looking.store.read(queue, [Slice(1, delayed=False)])
    assert page.messages == []
    gate.open()
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D + S)
    return shown(looking, queue, attempt.result()[0])


def low_watermark_raised_too_early(scene: Scene) -> list[str]:
    """A queue is read without any delay and found empty while a write is on its way; others read from the beginning."""
    writing, looking, other = scene.start(), scene.start(), scene.start()
    queue = scene.queue(writing, read_delay=0.0)
    gate = writing.wire.hold(INSERTS)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(0.1)
    note_low_watermark(looking, queue)
    gate.open()
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D + S)
    return shown(other, queue, attempt.result()[0])


def note_low_watermark(process: Process, queue: Queue) -> None:
    """Has a partition read from its beginning, and waits until it is recorded where its messages begin."""
    gate = process.wire.hold(LOW_WATERMARKS)
    gate.open()
    Reader(process, queue).go_on()
    gate.passed()


def raise_low_watermark(scene: Scene, process: Process, queue: Queue) -> None:
    """Has it recorded where messages of some age begin."""
    scene.world.advance(100)
    note_low_watermark(process, queue)
    scene.world.advance(D)


def shown(process: Process, queue: Queue, position: Position) -> list[str]:
    """Says whether a message is missing from a read of the whole partition."""
    reader = Reader(process, queue)
    reader.go_on()
    return [] if position in reader.seen else ["written, but not shown"]


def below_the_low_watermark(scene: Scene) -> list[str]:
    """A message is written under an id of long ago, below everything that is alive."""
    process, other = scene.start(), scene.start()
    queue = scene.queue(process)
    process.post(queue).result(PATIENCE)
    raise_low_watermark(scene, process, queue)
    position = process.store._clock.now() - 1000 * TICKS_PER_SECOND, 1
    process.store.put(queue, [(1, position)], message())
    return shown(other, queue, position)


def overtaken_by_the_low_watermark(scene: Scene) -> list[str]:
    """A message is written under an id that was still to come, but takes so long that the low watermark passes it."""
    writing, other = scene.start(), scene.start()
    queue = scene.queue(writing)
    position = writing.store._clock.now() + 1000, 1
    gate = writing.wire.hold(INSERTS)
    thread = in_thread(lambda: writing.store.put(queue, [(1, position)], message()))
    gate.reached()
    raise_low_watermark(scene, other, queue)
    gate.open()
    thread.join(PATIENCE)
    return shown(other, queue, position)


def early_above_a_late_write(scene: Scene) -> list[str]:
    """A message is given early while one below it is on its way, which is acknowledged afterwards."""
    slow, quick, reading_ = scene.start(), scene.start(), scene.start()
    queue = scene.queue(slow)
    assert quick.store.queue(queue.application, queue.name) == queue
    gate = slow.wire.hold(INSERTS)
    late = slow.post(queue)
    gate.reached()
    scene.world.advance(0.5)
    attempt = quick.post(queue)
    [above] = attempt.result(PATIENCE)
    scene.world.advance(0.01)
    reader = Reader(reading_, queue)
    found = read_early(service_of(reading_.store), queue)
    assert [one.position for one in found.early] == [above]
    reader.cursor = found.next[1] or ids.LAST
    gate.open()
    assert end_of(late) == "acknowledged"
    scene.world.advance(D + S)
    reader.go_on()
    return reader.missed([late, attempt])


def horizon_afterwards(removed: ExitStack) -> None:
    """Reports the horizon of when a read has ended."""
    read = CassandraStore.read

    def late(self: CassandraStore, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        pages = read(self, queue, slices)
        for page in pages:
            page.horizon = self._clock.now() - ticks(D)
            if not page.more:
                page.next = page.horizon, LOW_MIN
        return pages

    removed.enter_context(replace_in(CassandraStore, read, late))


def bounded_afterwards(removed: ExitStack) -> None:
    """Asks for everything from the lower bound on, and leaves out after the limit what lies above the horizon."""
    ask = reading._answers

    async def answers(driver: Driver, keys: Any, asked: dict[int, list[Probe]], *rest: Any) -> Any:  # noqa: ANN401
        unbounded = {number: [probe._replace(upper=ids.LAST) for probe in probes] for number, probes in asked.items()}
        return {
            number: [
                [row for row in answer if message_codec.position_of(row[0]) < probe.upper]
                for probe, answer in zip(asked[number], found or (), strict=True)
            ]
            for number, found in (await ask(driver, keys, unbounded, *rest)).items()
        }

    removed.enter_context(replace(reading._answers, answers))


def rows_for_ever(removed: ExitStack) -> None:
    """Uses queues' rows however old they are."""

    def current(self: QueueCache, queue: Queue, *, since: float | None = None) -> Row:
        row = self._rows.get((queue.application, queue.name))
        return row or self.read(queue.application, queue.name)

    removed.enter_context(replace(QueueCache.current, current))
    removed.enter_context(replace(QueueCache.forget_all, lambda self: None))


def looks_for_ever(removed: ExitStack) -> None:
    """Uses what was recorded of buckets however old it is."""
    cached = BucketIndex.cached

    def old(self: BucketIndex, *time_bucket: int, since: float, descending: bool) -> BucketLookup | None:
        return cached(self, *time_bucket, since=-math.inf, descending=descending)

    removed.enter_context(replace(BucketIndex.cached, old))


def looks_of_longer_ago(removed: ExitStack) -> None:
    """Uses what was recorded of buckets a little longer than it may be used."""
    cached = BucketIndex.cached

    def old(self: BucketIndex, *time_bucket: int, since: float, descending: bool) -> BucketLookup | None:
        return cached(self, *time_bucket, since=since - S, descending=descending)

    removed.enter_context(replace(cached, old))


def empty_up_to_now(removed: ExitStack) -> None:
    """Takes what is found empty for empty for ever, however near to the present it is."""
    removed.enter_context(replace(ConsistencyLevels.empty_below, lambda self, queue, now: (now, LOW_MIN)))


def low_watermark_for_all(removed: ExitStack) -> None:
    """Takes the low watermark to be that of all buckets."""
    removed.enter_context(replace(Bucket.new_ids_only, property(lambda self: True)))


def given_among_minted(removed: ExitStack) -> None:
    """Writes what has a given id to where new ids go."""

    def time_bucket(row: Row, position: Position, ttl: int, now: int) -> Bucket:
        return bucketing.bucket_of(position[0], row.home_class, bucketing.HOME_WIDTH)

    removed.enter_context(replace(messages._bucket_to_put, time_bucket))


def cursor_behind_early_ones(removed: ExitStack) -> None:
    """Has readers go on behind what they were given early."""
    add = ranges.add_early

    def moving(wanted: Range, asked: Sequence[Slice], pages: Sequence[Page], found: Reading) -> None:
        add(wanted, asked, pages, found)
        found.next.update({one.partition: ids.following(one.position) for one in found.early})

    removed.enter_context(replace_in(ranges, add, moving))


READING = (
    Mechanism("cursor at the horizon", early_above_a_late_write, cursor_behind_early_ones),
    Mechanism("horizon before the read", slow_read, horizon_afterwards),
    Mechanism("bound inside the query", newest_first, bounded_afterwards),
    Mechanism("age of rows (purge)", purged_meanwhile, rows_for_ever),
    Mechanism("age of rows (reach)", longer_lived, rows_for_ever),
    Mechanism("age of looks at places", place_of_another, looks_for_ever),
    Mechanism("age of looks at places, to the second", place_seen_late, looks_of_longer_ago),
    Mechanism("emptiness only below the horizon", found_empty_too_early, empty_up_to_now),
    Mechanism("low watermark only below the horizon", low_watermark_raised_too_early, empty_up_to_now),
    Mechanism("low watermark of minted places only", below_the_low_watermark, low_watermark_for_all),
    Mechanism("places of given ids (past)", below_the_low_watermark, given_among_minted),
    Mechanism("places of given ids (future)", overtaken_by_the_low_watermark, given_among_minted),
)


@mechanisms(*READING)
def test_holds(scene: Scene, mechanism: Mechanism) -> None:
    """What can go wrong with a read breaks no promise."""
    assert mechanism.scenario(scene) == []


@mechanisms(*READING)
def test_it_is_what_does_it(scene: Scene, mechanism: Mechanism) -> None:
    """Without the mechanism the same breaks one."""
    assert played_without(scene, mechanism)
