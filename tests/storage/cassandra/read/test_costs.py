"""The cost of calls on Cassandra: statements, round trips, rows and bytes of answers, counted as they are sent.

The table of `docs/measurements/cassandra.md` shows these counts. Time is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import pytest

from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.messages.range_reads import MAX_SHORT_BYTES, MAX_SHORT_MESSAGES
from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.tables.names import _NAME_STATEMENTS
from queuey.storage.cassandra.time.bucketing import BucketWidths, class_of, home_buckets
from tests.blocking import BlockingNames
from tests.contract.samples import run_call
from tests.replacing import replace, with_fields
from tests.storage.cassandra.begun import page_of
from tests.storage.cassandra.interposed import APPENDS, CLOCKS, DELETES, INSERTS, QUEUES, READS
from tests.storage.cassandra.scene import D, Process, Scene

T = TypeVar("T")
BODY = "x" * 200
FRAME = 300
"""Max bytes that an answer has for each of these messages."""
IDS = (*message_codec.SELECT_IDS_UP, *message_codec.SELECT_IDS_DOWN)
DAY = 86_400
PAGE_BYTES = 8 << 20
WIDTHS = {1: [0], 3: [0, 1, 2], 16: [4] * 16}
"""Widths of the buckets that messages are written to, by their number: the wide one, those of a queue while its rate
grows, and narrow ones of a busy queue.
"""


class Cost(NamedTuple):
    """What was sent and received."""

    statements: int
    rounds: int
    rows: int
    bytes: int


def make_queue(
    scene: Scene, process: Process, buckets: int, count: int, *, partitions: int = 1, together: int = 1000
) -> tuple[Queue, list[Position]]:
    """Makes a queue with readable messages in each partition; returns it with the positions of the first messages.

    Args:
        scene: The simulated cluster.
        process: The process that posts.
        buckets: Number of buckets of each partition.
        count: Messages of each partition.
        partitions: Number of partitions.
        together: Messages of a partition that are posted in one call, and so follow each other.
    """
    queue = scene.queue(process, ttl=3 * DAY, partitions=partitions)
    positions = []
    for number, width in enumerate(WIDTHS[buckets]):
        some = count * (number + 1) // buckets - count * number // buckets
        items = [NewMessage(BODY, partition, 3 * DAY) for partition in range(1, partitions + 1)]
        with replace(BucketWidths.width_at, lambda _self, _now, width=width: width):
            for first in range(0, some, together):
                positions += bridge.run(process.store.messages.append(queue, items * min(together, some - first)))[
                    ::partitions
                ]
        scene.world.advance(5)
    scene.world.advance(D)
    return queue, positions


def cost_of(process: Process, call: Callable[[], T]) -> tuple[Cost, T]:
    """Makes a call twice; returns the reads of messages and result of the second, with row and buckets in memory."""
    call()
    log = process.wire.log
    log.clear()
    result = call()
    return Cost(log.count((*READS, *IDS)), sum(map(bool, log.rounds)), log.rows, log.bytes), result


@pytest.fixture(params=[1, 3, 16])
def buckets(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_costs_one_statement_for_each_bucket(scene: Scene, buckets: int, *, descending: bool) -> None:
    """A page of any size costs one statement per bucket that holds part of it, in few rounds, and reads little else."""
    process = scene.start()
    queue, positions = make_queue(scene, process, buckets, 1000)
    ordered = positions[::-1] if descending else positions
    for limit in (1, 10, 100, 1000):
        max_bytes = MAX_SHORT_BYTES - (16 << 10) if limit <= MAX_SHORT_MESSAGES else PAGE_BYTES
        part = Slice(1, positions[0], limit=limit, max_bytes=max_bytes, descending=descending)
        waited, [page] = cost_of(process, partial(run_call, process.store.messages.read, queue, [part]))
        begun, other = cost_of(process, partial(page_of, process.store, queue, part))
        assert [message.position for message in page.messages] == ordered[:limit]
        assert (begun, other) == (waited, page)
        # Bucket fill is unknown. Of consecutive narrow buckets one is queried, then two, four, eight;
        # descending, the wide bucket is queried with them each time.
        following = -(-limit * buckets // 1000) if buckets > 3 else 1
        assert waited.rounds <= following.bit_length()
        assert waited.statements <= max(min(3, buckets), 2**waited.rounds - 1 + (waited.rounds if descending else 0))
        assert waited.rows <= min(3, buckets) * limit
        assert waited.bytes <= waited.rows * FRAME + waited.statements * 100


class Sent(NamedTuple):
    """What a call sends.

    Attributes:
        reads, rows: Reads of messages, and the rows they return.
        writes: Writes of messages, and deletes.
        log_changes: Writes to claim logs.
        name_looks, name_changes: Reads and writes of rows of names.
        others: All other statements but clock checks and reads of queue rows.
    """

    reads: int = 0
    rows: int = 0
    writes: int = 0
    log_changes: int = 0
    name_looks: int = 0
    name_changes: int = 0
    others: int = 0


def sent_by(process: Process, call: Callable[[], T]) -> tuple[Sent, T]:
    log = process.wire.log
    log.clear()
    result = call()
    counted = (
        *READS,
        *IDS,
        *INSERTS,
        *DELETES,
        *APPENDS,
        _NAME_STATEMENTS.find,
        _NAME_STATEMENTS.change,
        *CLOCKS,
        *QUEUES,
    )
    sent = Sent(
        log.count((*READS, *IDS)),
        log.rows,
        log.count((*INSERTS, *DELETES)),
        log.count(APPENDS),
        log.count([_NAME_STATEMENTS.find]),
        log.count([_NAME_STATEMENTS.change]),
        len(log.statements) - log.count(counted),
    )
    return sent, result


def test_info_and_names(scene: Scene) -> None:
    """Partition sizes, and calls about names, send a fixed number of requests."""
    process = scene.start()
    queue, _ = make_queue(scene, process, 1, 1000)
    service = Service(process.store)
    access, names = service.queues.access_unchecked(queue), BlockingNames(service)
    info, _ = sent_by(process, lambda: bridge.run(process.store.messages.inspect(queue)))
    assert info == Sent(reads=info.reads, rows=1000, others=2)
    now = scene.world() / 1e9
    living = home_buckets(class_of(3 * DAY), ids.seconds_to_ticks(now - 3 * DAY), ids.seconds_to_ticks(now))
    # Each bucket in which messages may still live, and once more where the first answer was full.
    assert info.reads == len(living) + 1
    names.create(access, "first", Draft("a"))
    names.fetch(access, "first")  # A statement that is not prepared yet counts twice.
    create, _ = sent_by(process, lambda: names.create(access, "n", Draft("a")))
    replaced, _ = sent_by(process, lambda: names.replace(access, "n", Draft("b")))
    fetched, _ = sent_by(process, lambda: names.fetch(access, "n"))
    deleted, _ = sent_by(process, lambda: names.delete(access, "n"))
    assert create == Sent(writes=1, name_looks=1, name_changes=2)
    # The row of a name is read over the loop, and counts as a row.
    assert with_fields(replaced, others=0) == Sent(rows=1, writes=2, log_changes=1, name_looks=1, name_changes=3)
    assert with_fields(fetched, others=0) == Sent(rows=1, name_looks=1)
    assert with_fields(deleted, others=0) == Sent(rows=1, writes=1, log_changes=1, name_looks=1, name_changes=2)
    # The claim log is read if it was not used for a while, and the message is looked up by its id.
    assert max(replaced.others, fetched.others, deleted.others) <= 4
