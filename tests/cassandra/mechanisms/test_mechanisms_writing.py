"""What keeps the promises of writes, each part by a scenario that goes wrong when the part is taken out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import msgspec

from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import Queue
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.clocks.id_generator import IdGenerator, stamp_of, undo_timestamp
from queuey.storage.cassandra.write import undo_writes, writer
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import PartitionBuffer
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.cassandra.interposed import DELETES, INSERTS, RECORDS
from tests.cassandra.scene import (
    TTL,
    Attempt,
    D,
    Mechanism,
    Reader,
    S,
    Scene,
    W,
    end_of,
    mechanisms,
    message,
    played_without,
)
from tests.replacing import replace, replace_in

LONG = 5 * 86_400
"""A TTL beyond the class of the queues here, so that its bucket has to be recorded."""


def undone(reader: Reader, attempt: Attempt) -> list[str]:
    """Says whether a read showed a message that was said not to be written (G2)."""
    return ["outcome none, but shown"] if end_of(attempt) == "none" and reader.seen else []


def late_write(scene: Scene) -> list[str]:
    """A write reaches Cassandra when readers have passed its id."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    gate = writing.wire.hold(INSERTS)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(D + S)
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def answer_lost(scene: Scene) -> list[str]:
    """A write is made, but its answer is lost."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    writing.wire.lose(INSERTS)
    attempt = writing.post(queue)
    assert end_of(attempt) == "none"
    scene.world.advance(D + S)
    reader = Reader(reading, queue)
    reader.go_on()
    return undone(reader, attempt)


def late_but_undone(scene: Scene) -> list[str]:
    """A write is answered after its deadline, but before any reader's horizon."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    gate = writing.wire.hold(INSERTS, answered=True)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance((W + D - S) / 2)
    gate.open()
    assert end_of(attempt) == "none"
    scene.world.advance(D + S)
    reader = Reader(reading, queue)
    reader.go_on()
    return undone(reader, attempt)


def overtaken_by_its_undo(scene: Scene) -> list[str]:
    """A write with an id ahead of the clock reaches Cassandra after the undo write that undoes it."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    ahead: Position = writing.store._clock.now() + TICKS_PER_SECOND * 9 // 10, 0
    gate = writing.wire.straggle(INSERTS)
    attempt = writing.post(queue, after=ahead)
    assert end_of(attempt) == "none"
    gate.open()
    gate.passed()
    scene.world.advance(D + S)
    reader = Reader(reading, queue)
    reader.go_on()
    return undone(reader, attempt)


def shown_before_its_undo(scene: Scene) -> list[str]:
    """An undo write holds only when a reader has been shown the message already."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    writing.wire.lose(INSERTS)
    gate = writing.wire.hold(DELETES)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(D + S)
    reader = Reader(reading, queue)
    assert reader.go_on()
    gate.open()
    return undone(reader, attempt)


def stopped_before_minting(scene: Scene) -> list[str]:
    """A process stops between its look at the queue's row and the making of an id; the queue is purged meanwhile."""
    writing, other = scene.start(), scene.start()
    queue = scene.queue(writing)
    generate = MessageWriter._generate
    purged: list[Queue] = []

    def stopped(self: MessageWriter, *arguments: Any) -> Any:  # noqa: ANN401 - the writer's
        if not purged:
            scene.world.advance(0.01)
            purged.append(other.store.purge_queue(queue))
        return generate(self, *arguments)

    with replace(generate, stopped):
        attempt = writing.post(queue)
        end_of(attempt)
    scene.world.advance(D + S)
    reader = Reader(other, purged[0])
    reader.go_on()
    return reader.missed([attempt])


def place_recorded_slowly(scene: Scene) -> list[str]:
    """A message goes to a bucket that nobody knows yet; to tell readers takes longer than their delay."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing, ttl=TTL)
    reader = Reader(reading, queue)
    gate = writing.wire.hold(RECORDS)
    attempt = writing.post(queue, message(ttl=LONG))
    gate.reached()
    scene.world.advance(D + S)
    reader.go_on()
    gate.open()
    end_of(attempt)
    scene.world.advance(D + S)
    reader.go_on()
    return reader.missed([attempt])


def posted_after(scene: Scene) -> list[str]:
    """A message is to follow one of another process, whose clock is ahead."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first)
    scene.world.advance(0.4 * S)
    second.machine.fall_behind(0.4 * S)
    assert second.store._watch.check()
    scene.world.advance(0.001)  # What is made at the moment of a check is not vouched for.
    one = first.post(queue).result()
    other = second.post(queue, after=one[-1]).result()
    return [] if other > one else ["posted after, but placed before"]


def no_deadline(removed: ExitStack) -> None:
    """Acknowledges writes however late they are."""
    arrived = MessageWriter._arrived
    removed.enter_context(
        replace(arrived, lambda self, f, level, e: arrived(self, f, level._replace(deadline=math.inf), e))
    )


def no_undo(removed: ExitStack) -> None:
    """Says that writes are undone without doing it."""
    removed.enter_context(replace(UndoWriter.undo, lambda self, undo_write: undo_write.tell("none")))


def undo_stamped_now(removed: ExitStack) -> None:
    """Stamps undo writes with the time."""
    removed.enter_context(replace_in(undo_writes, undo_timestamp, lambda now, ticks: stamp_of(now)))


def undo_without_deadline(removed: ExitStack) -> None:
    """Says that nothing was written whenever the undo write holds at last."""

    def endless(*arguments: Any) -> Undo:  # noqa: ANN401 - the undo write's
        undo_write = Undo(*arguments)
        undo_write.deadline += 1e6
        return undo_write

    removed.enter_context(replace_in(writer, Undo, endless))


def age_not_checked(removed: ExitStack) -> None:
    """Trusts a queue's row however old it is when ids have been made."""
    fresh = MessageWriter._fresh_row
    removed.enter_context(
        replace(fresh, lambda self, queue: msgspec.structs.replace(fresh(self, queue), read_at=math.inf))
    )


def recorded_afterwards(removed: ExitStack) -> None:
    """Records buckets when what is in them has been acknowledged."""
    answer = MessageWriter._answer
    unknown: list[tuple[int, int, list[Bucket]]] = []

    def check(self: MessageWriter, buffer: PartitionBuffer, row: Row, places: Iterable[Bucket]) -> None:
        unknown.append(
            (buffer.qid, buffer.partition, [one for one in places if bucketing.is_recorded(one, row.home_class)])
        )

    def tell(self: MessageWriter, *arguments: Any) -> None:  # noqa: ANN401 - the writer's
        answer(self, *arguments)
        self._pool.submit(self._bucket_index.record, *unknown.pop(), consistency="QUORUM")

    removed.enter_context(replace(MessageWriter._check_places, check))
    removed.enter_context(replace(MessageWriter._answer, tell))


def after_ignored(removed: ExitStack) -> None:
    """Makes ids by the clock alone."""
    generate = IdGenerator.generate
    removed.enter_context(replace(IdGenerator.generate, lambda self, count, after=None: generate(self, count)))


WRITING = (
    Mechanism("write deadline", late_write, no_deadline),
    Mechanism("undo write", answer_lost, no_undo),
    Mechanism("undo write of late writes", late_but_undone, no_undo),
    Mechanism("stamp of undo writes", overtaken_by_its_undo, undo_stamped_now),
    Mechanism("deadline of undo writes", shown_before_its_undo, undo_without_deadline),
    Mechanism("age after minting", stopped_before_minting, age_not_checked),
    Mechanism("places before ids", place_recorded_slowly, recorded_afterwards),
    Mechanism("ids after others", posted_after, after_ignored),
)


@mechanisms(*WRITING)
def test_holds(scene: Scene, mechanism: Mechanism) -> None:
    """What can go wrong with a write breaks no promise."""
    assert mechanism.scenario(scene) == []


@mechanisms(*WRITING)
def test_it_is_what_does_it(scene: Scene, mechanism: Mechanism) -> None:
    """Without the mechanism the same breaks one."""
    assert played_without(scene, mechanism)
