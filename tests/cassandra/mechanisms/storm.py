"""Everything at once and at random, by seed: writers in trouble, clocks that go wrong, readers that go on meanwhile.

A storm plays steps in a scene, lets everything end, and then says what was violated. Readers have a process of their
own, which is in no trouble except for its clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from queuey import ids
from queuey.ids import Position
from queuey.messages import NewMessage, QueueSpec
from tests.cassandra.interposed import DELETES, INSERTS, QUEUES, RECORDS, Gate
from tests.cassandra.scene import TTL, Attempt, D, Reader, S, Scene, end_of

LONG = 5 * 86_400
PARTITIONS = 2
STEPS = 60
WRITERS = 2
SHORT = 60
"""A TTL that may end before anybody has read the message."""
LONGEST_DELAY = 2.0


@dataclass
class Posted:
    """An append and what is known of it."""

    attempt: Attempt
    items: list[NewMessage]
    after: Position | None


class Storm:
    """One of them.

    Args:
        scene: Where.
        seed: Of all that is random.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._random = random.Random(seed)
        self._writers = [scene.start() for _ in range(WRITERS)]
        self._reading = scene.start()
        self._queue = scene.queue(self._reading, partitions=PARTITIONS, ttl=TTL)
        self._readers = [Reader(self._reading, self._queue, partition=1 + n) for n in range(PARTITIONS)]
        self._gates: list[Gate] = []
        self._posted: list[Posted] = []
        self._steps: list[tuple[int, Any]] = [
            (10, self._post),
            (6, self._trouble),
            (4, self._open_gate),
            (6, self._pass_time),
            (6, self._read),
            (1, self._read_all),
            (2, self._compare_clock),
            (1, self._move_clock),
            (1, self._stop_machine),
            (1, self._update),
            (2, self._change),
        ]
        self._changed: dict[str, str | None] = {}
        """What became of messages that were written over (their new bodies) or deleted."""

    def play(self) -> list[str]:
        """Plays it; returns what was violated."""
        choices = [step for weight, step in self._steps for _ in range(weight)]
        for _ in range(STEPS):
            self._random.choice(choices)()
        for process in self._writers:
            process.wire.clear()
        self._scene.world.run()
        ends = [end_of(posted.attempt) for posted in self._posted]
        self._settle_clocks()
        self._scene.world.advance(LONGEST_DELAY + D + S)
        self._read()
        return [*self._of_readers(ends), *self._of_order(ends), *self._of_the_end(ends)]

    # Steps

    def _post(self) -> None:
        items = [
            NewMessage(
                f"{len(self._posted)}.{number}",
                self._random.randint(1, PARTITIONS),
                self._random.choice([TTL, TTL, SHORT, LONG]),
                None,
                self._random.choice([0.0, 0.0, 0.0, 0.3, LONGEST_DELAY]),
            )
            for number in range(self._random.choice([1, 1, 2, 5]))
        ]
        done = [one for one in self._posted if one.attempt.done() and one.attempt.exception() is None]
        after = max(self._random.choice(done).attempt.result()) if done and self._random.random() < 0.2 else None
        attempt = self._random.choice(self._writers).post(self._queue, *items, after=after)
        self._posted.append(Posted(attempt, items, after))

    def _trouble(self) -> None:
        wire = self._random.choice(self._writers).wire
        statements = self._random.choice([INSERTS, INSERTS, INSERTS, DELETES, RECORDS, QUEUES])
        kind = self._random.choice(["hold", "answered", "fail", "lose", "straggle"])
        if kind == "fail":
            wire.fail(statements)
        elif kind == "lose":
            wire.lose(statements)
        elif kind == "straggle" and statements in {INSERTS, DELETES}:
            self._gates.append(wire.straggle(statements))
        else:
            self._gates.append(wire.hold(statements, answered=kind == "answered"))

    def _open_gate(self) -> None:
        if self._gates:
            self._gates.pop(self._random.randrange(len(self._gates))).open()

    def _pass_time(self) -> None:
        self._scene.world.advance(self._random.choice([0.001, 0.1, 0.5, 1.5, 4.0, 7.0]))

    def _read(self) -> None:
        for reader in self._readers:
            reader.go_on()

    def _read_all(self) -> None:
        self._shown()

    def _compare_clock(self) -> None:
        self._random.choice(self._writers).store._watch.check()

    def _move_clock(self) -> None:
        process = self._random.choice([*self._writers, self._reading])
        moved = self._random.uniform(-0.35, 0.35) * S
        process.machine.fall_behind(moved + process.machine.wrong)
        process.store._watch.check()

    def _stop_machine(self) -> None:
        process = self._random.choice(self._writers)
        seconds = self._random.choice([0.5, 2.0, 7.0])
        self._scene.world.advance(seconds)
        process.machine.lag += seconds

    def _update(self) -> None:
        self._scene.world.advance(0.001)
        spec = QueueSpec(type=self._random.choice(["user", "public"]))
        self._queue = self._reading.store.update_queue(self._queue, spec)
        for reader in self._readers:
            reader.queue = self._queue

    def _change(self) -> None:
        """Writes over or deletes a message that was acknowledged."""
        found = [
            (item, position)
            for posted in self._posted
            if posted.attempt.done() and posted.attempt.exception() is None
            for item, position in zip(posted.items, posted.attempt.result(), strict=True)
            if item.ttl > SHORT and self._changed.get(str(item.body), "") is not None
        ]
        if not found:
            return
        item, position = self._random.choice(found)
        time_bucket = item.partition, position
        if self._random.random() < 0.5:
            self._reading.store.delete(self._queue, [time_bucket])
            self._changed[str(item.body)] = None
        else:
            new = f"{item.body!s} at {self._scene.world()}"
            self._reading.store.put(self._queue, [time_bucket], NewMessage(new, item.partition, TTL))
            self._changed[str(item.body)] = new

    def _settle_clocks(self) -> None:
        for process in [*self._writers, self._reading]:
            process.machine.wrong = 0.0
            process.store._watch.check()

    # What must hold

    def _shown(self) -> list[Reader]:
        """Reads everything from the beginning."""
        readers = [Reader(self._reading, self._queue, partition=1 + n) for n in range(PARTITIONS)]
        for reader in readers:
            reader.go_on()
        return readers

    def _of_readers(self, ends: list[str]) -> list[str]:
        found = []
        for reader in self._readers:
            if reader.seen != sorted(set(reader.seen)):
                found.append("shown twice or out of order")
            bodies = {body.partition(" at ")[0] for body in reader.bodies}
            for posted, end in zip(self._posted, ends, strict=True):
                items = [item for item in posted.items if item.partition == reader.partition]
                mine = {str(item.body) for item in items}
                lasting = {str(item.body) for item in items if item.ttl > SHORT and not self._is_deleted(item)}
                if end == "acknowledged":
                    found += [f"{body}: acknowledged, never shown" for body in lasting - bodies]
                elif end != "unknown":
                    found += [f"{body}: {end}, but shown" for body in mine & bodies]
        return found

    def _is_deleted(self, item: NewMessage) -> bool:
        return self._changed.get(str(item.body), "") is None

    def _of_order(self, ends: list[str]) -> list[str]:
        return [
            f"{item.body!r}: not after {ids.to_hex(posted.after)}"
            for posted, end in zip(self._posted, ends, strict=True)
            if end == "acknowledged" and posted.after is not None
            for item, position in zip(posted.items, posted.attempt.result(), strict=True)
            if not item.delay and position <= posted.after
        ]

    def _of_the_end(self, ends: list[str]) -> list[str]:
        """What is there in the end is the acknowledged, and perhaps what is unknown."""
        there = {body for reader in self._shown() for body in reader.bodies}
        found = []
        for posted, end in zip(self._posted, ends, strict=True):
            given = [str(item.body) for item in posted.items if item.ttl > SHORT]
            if end == "acknowledged":
                now = {self._changed.get(body, body) for body in given} - {None}
                found += [f"{body}: acknowledged, but not there" for body in now - there]
                found += [f"{body}: written over or deleted, but there" for body in (there & {*given}) - now]
            elif end != "unknown":
                found += [f"{body}: {end}, but there" for body in there & {*given}]
        return found


def play(scene: Scene, seed: int) -> list[str]:
    """Plays the storm of a seed."""
    return Storm(scene, seed).play()
