"""Tests of buckets on a real node: which messages reads find, at what cost, and while a queue gets hot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from queuey.model.ids import FIRST, LAST, Position
from queuey.model.messages import Message, NewMessage, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import BucketWidths
from queuey.storage.cassandra.write import writer
from tests.replacing import replace_in
from tests.storage.cassandra.scene import D, Reader, S, Scene

DAY = 86_400
HOUR = 3600


def make_message(body: str, ttl: int = 3 * DAY, delay: float = 0.0) -> NewMessage:
    return NewMessage(body, 1, ttl, delay=delay)


def read_partition(store: CassandraStore, queue: Queue, *, limit: int = 100, descending: bool = False) -> list[Message]:
    part = Slice(1, FIRST, LAST, limit=limit, descending=descending)
    return [message for some in bridge.iterate(store.bulk.scan(queue, part)) for message in some]


def bodies(messages: Sequence[Message]) -> list[str | bytes]:
    return [message.body for message in messages]


def test_a_queue_that_gets_hot_loses_and_doubles_nothing(scene: Scene) -> None:
    """While two processes write to a partition that gets hot and cools again, every reader sees each message once."""
    first, second = scene.start(), scene.start()
    one, other = first.store, second.store
    queue = scene.queue(first, ttl=3 * DAY)
    reader = Reader(second, queue)
    written: list[tuple[Position, str]] = []
    levels: list[int] = []

    def write(store: CassandraStore, size: int, ttl: int = 3 * DAY, *, pause: float = 0.3 * S) -> int:
        # Time advances by less than S/2 at once; otherwise a clock check in flight would find the clock off.
        texts = [f"{len(written) + number}" for number in range(size)]
        written.extend(
            zip(
                bridge.run(store.messages.append(queue, [make_message(text, ttl) for text in texts])),
                texts,
                strict=True,
            )
        )
        [buffer] = store._writer._buffers.values()
        assert buffer.bucket_widths is not None
        levels.append(buffer.bucket_widths.width_index)
        scene.world.advance(pause)
        reader.read_more()
        return buffer.bucket_widths.width_index

    with replace_in(writer, BucketWidths, partial(BucketWidths, full_rows=300)):
        for _ in range(2):
            for size in (1, 20, 60, 120, 120):
                write(one, size)
                write(other, size)
            write(one, 10, 388 * DAY)
            while write(one, 1, pause=6 * HOUR) != bucketing.HOME_WIDTH:
                pass
    assert {bucketing.HOME_WIDTH, bucketing.NARROWEST} <= set(levels)
    scene.world.advance(D + S)
    written.sort()
    expected = [text for _, text in written]
    reader.read_more()
    assert reader.bodies == expected
    for store in (one, other):
        for limit in (170, 1000):
            assert bodies(read_partition(store, queue, limit=limit)) == expected
            assert bodies(read_partition(store, queue, limit=limit, descending=True)) == expected[::-1]
        for start in range(0, len(written), 200):
            time_buckets = [(1, position) for position, _ in written[start : start + 200]]
            assert bodies(bridge.run(store.messages.fetch(queue, time_buckets))) == expected[start : start + 200]
    doomed = [(1, position) for position, _ in written[::2]]
    for start in range(0, len(doomed), 200):
        bridge.run(one.messages.delete(queue, doomed[start : start + 200]))
    assert bodies(read_partition(other, queue)) == expected[1::2]
