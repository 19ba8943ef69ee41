"""What keeps clocks from breaking promises, each part by a scenario that goes wrong when the part is taken out."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra import Level
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_check import GAP, ClockCheck
from queuey.storage.cassandra.clocks.clock_watch import ClockWatch
from queuey.storage.cassandra.clocks.intervals import Interval
from queuey.storage.cassandra.clocks.light_checks import LightChecks
from tests.cassandra import interposed
from tests.cassandra.interposed import DELETES, INSERTS, PATIENCE, Gate
from tests.cassandra.scene import (
    Attempt,
    D,
    Machine,
    Mechanism,
    Process,
    Reader,
    S,
    Scene,
    W,
    World,
    end_of,
    mechanisms,
    message,
    played_without,
)
from tests.replacing import replace

OFF = D + 2 * S
"""Seconds that a clock is off: more than the read delay makes up for."""
TIGHT = {"levels": {"strong": Level(None, None, delay=W + S, deadline=W)}}
"""A level without any reserve."""


def heartbeat(process: Process) -> None:
    """Compares the clock with the node's, as is done several times a second."""
    process.store._watch.check()


def writer_behind(scene: Scene) -> list[str]:
    """The clock of a machine that writes is behind."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    reader.go_on()
    writing.machine.fall_behind(OFF)
    heartbeat(writing)
    attempt = writing.post(queue)
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def reader_ahead(scene: Scene) -> list[str]:
    """The clock of a machine that reads is ahead."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    reading.machine.fall_behind(-OFF)
    heartbeat(reading)
    with suppress(StoreUnavailable):
        reader.go_on()
    attempt = writing.post(queue)
    assert end_of(attempt) == "acknowledged"
    reading.machine.fall_behind(OFF)
    heartbeat(reading)
    scene.world.advance(D + S)
    reader.go_on()
    return reader.missed([attempt])


def ahead_after_a_gap(scene: Scene) -> list[str]:
    """The clock of a machine that reads has run ahead since it was last compared, long ago."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    scene.world.advance(GAP + S)
    reading.machine.fall_behind(-OFF)
    with suppress(StoreUnavailable):
        reader.go_on()
    attempt = writing.post(queue)
    assert end_of(attempt) == "acknowledged"
    reading.machine.fall_behind(OFF)
    heartbeat(reading)
    scene.world.advance(D + S)
    reader.go_on()
    return reader.missed([attempt])


def write_on_its_way(scene: Scene, **options: Any) -> tuple[Process, Reader, Gate, Attempt]:  # noqa: ANN401
    """Has one process write, up to where its request is sent; another one reads."""
    writing, reading = scene.start(**options), scene.start(**options)
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    gate = writing.wire.hold(INSERTS)
    attempt = writing.post(queue)
    gate.reached()
    return writing, reader, gate, attempt


def machine_stopped(scene: Scene) -> list[str]:
    """A virtual machine stands still while a write is on its way; its wall clock is set right when it goes on."""
    writing, reader, gate, attempt = write_on_its_way(scene)
    scene.world.advance(OFF)
    writing.machine.lag = OFF
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def machine_stopped_and_compared(scene: Scene) -> list[str]:
    """The same, and the clock is compared before the answer to the write comes."""
    writing, reader, gate, attempt = write_on_its_way(scene)
    scene.world.advance(OFF)
    writing.machine.lag = OFF
    heartbeat(writing)
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def machine_stopped_before_sending(scene: Scene) -> list[str]:
    """A virtual machine, all its clocks included, stands still between minting and sending; the answer comes at once.

    Its clocks agree with each other afterwards, and were compared with the nodes' just now by what they show.
    """
    writing, reader, gate, attempt = write_on_its_way(scene)
    scene.world.advance(20.0)
    writing.machine.fall_behind(20.0)
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def machine_stopped_for_less_than_a_second(scene: Scene) -> list[str]:
    """The same for 0.9 s, while a write is on its way for nearly W and the reader's clock is ahead."""
    writing, reader, gate, attempt = write_on_its_way(scene, **TIGHT)
    reading = scene.processes[1]
    reading.machine.fall_behind(-0.4 * S)
    heartbeat(reading)
    scene.world.advance(W - 0.05)
    scene.world.advance(0.9)
    writing.machine.fall_behind(0.9)
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def checked_before_the_answer(scene: Scene) -> list[str]:
    """A node tells its time for the answer to one write; a machine stands still; then another write is answered."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing, partitions=2)
    reader = Reader(reading, queue, partition=2)
    check = writing.wire.hold(interposed.CLOCKS, answered=True)
    first = writing.post(queue)
    check.reached()
    check.passed()
    inserted = writing.wire.hold(INSERTS)
    second = writing.post(queue, message(partition=2))
    inserted.reached()
    scene.world.advance(OFF)
    writing.machine.fall_behind(OFF)
    reader.go_on()
    inserted.open()
    until = time.monotonic() + PATIENCE
    while not writing.store._watch._light._waiting:
        assert time.monotonic() < until
        time.sleep(0.001)
    check.open()
    assert end_of(first) == "acknowledged"
    end_of(second)
    reader.go_on()
    return reader.missed([second])


def slow_check(scene: Scene) -> list[str]:
    """A machine stands still while a write is on its way, and the answer to the check is so slow that it may hide that.

    Its time is told at the beginning, so half the way of the answer later all seems well.
    """
    writing, reader, gate, attempt = write_on_its_way(scene)
    check = writing.wire.hold(interposed.CLOCKS, answered=True)
    scene.world.advance(D + 0.2)
    writing.machine.fall_behind(D + 0.2)
    reader.go_on()
    gate.open()
    check.reached()
    check.passed()
    scene.world.advance(D + 0.3)
    check.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def undo_of_a_stopped_machine(scene: Scene) -> list[str]:
    """A virtual machine stands still while it undoes a write, which is shown meanwhile."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    writing.wire.lose(INSERTS)
    gate = writing.wire.hold(DELETES)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(OFF)
    writing.machine.lag = OFF
    reader = Reader(reading, queue)
    assert reader.go_on()
    gate.open()
    return ["outcome none, but shown"] if end_of(attempt) == "none" else []


def purged_while_stopped(scene: Scene) -> list[str]:
    """A queue is purged while the machine of a writer stands still for a while; its row seems to be younger than C."""
    writing, purging = scene.start(), scene.start()
    queue = scene.queue(purging)
    writing.store.queue(queue.application, queue.name, fresh=True)
    purging.store.purge_queue(queue)
    writing.machine.fall_behind(0.4 * S)
    heartbeat(writing)
    scene.world.advance(0.01)
    writing.wire.fail(interposed.QUEUES, interposed.ALWAYS)  # In the background it would be read again.
    return ["written to what was purged"] if end_of(writing.post(queue)) == "acknowledged" else []


def purged_while_it_was_read(scene: Scene) -> list[str]:
    """The same, and the answer to the read of the row comes when it is known that the machine stood still."""
    writing, purging = scene.start(), scene.start()
    queue = scene.queue(purging)
    gate = writing.wire.hold(interposed.QUEUES, answered=True)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(writing.store.queue, queue.application, queue.name, fresh=True)
        gate.reached()
        gate.passed()
        purging.store.purge_queue(queue)
        writing.machine.fall_behind(0.4 * S)
        heartbeat(writing)
        gate.open()
        read.result(PATIENCE)
    scene.world.advance(0.01)
    writing.wire.fail(interposed.QUEUES, interposed.ALWAYS)  # In the background it would be read again.
    return ["written to what was purged"] if end_of(writing.post(queue)) == "acknowledged" else []


def never_refusing(removed: ExitStack) -> None:
    """Trusts the clock whatever the nodes say."""
    removed.enter_context(replace(ClockCheck.sound, lambda self, since=0.0: True))
    removed.enter_context(replace(ClockCheck.refusing, property(lambda self: False)))
    all_timed_rightly(removed)


def no_gap(removed: ExitStack) -> None:
    """Trusts the clock however long ago it was compared."""
    sound = ClockCheck.sound

    def sound_if_it_was_compared(self: ClockCheck, since: float = 0.0) -> bool:
        if self._checked is not None:
            self._checked = self._clock.boottime()
            self._judge()
        return sound(self)

    removed.enter_context(replace(sound, sound_if_it_was_compared))


def acknowledging_at_once(removed: ExitStack) -> None:
    """Acknowledges without a check."""
    removed.enter_context(replace(ClockWatch.confirm_soon, lambda self, told: told(None)))


def checks_that_have_begun(removed: ExitStack) -> None:
    """Has answers that come while a check is under way share that one."""
    answered = LightChecks._answered

    def answered_for_all(self: LightChecks, check: Any, *rest: Any) -> None:  # noqa: ANN401
        with self._lock:
            check.waiting, self._waiting = [*check.waiting, *self._waiting], []
        answered(self, check, *rest)

    removed.enter_context(replace(answered, answered_for_all))


def slow_answers(removed: ExitStack) -> None:
    """Takes an answer for good however slow it was."""
    removed.enter_context(replace(Interval.beyond, lambda self, known: 0))


def jumps_unnoticed(removed: ExitStack) -> None:
    """Does not see that the wall clock moved against the time since boot, and makes no check."""
    acknowledging_at_once(removed)
    removed.enter_context(replace(Clock.drift, lambda self: 0.0))


def all_timed_rightly(removed: ExitStack) -> None:
    """Takes the time since an id was made for right although the clock was wrong."""
    removed.enter_context(replace(ClockWatch.timed_correctly_since, lambda self, minted: True))
    removed.enter_context(replace(Clock.accept, wall_clock_only))


def reads_across_jumps(removed: ExitStack) -> None:
    """Takes the age of a row for right although a clock jumped while it was read."""
    removed.enter_context(replace(ClockWatch.wrong_until, property(lambda self: -math.inf)))


def rows_across_jumps(removed: ExitStack) -> None:
    """Keeps rows when a clock has jumped."""
    reads_across_jumps(removed)
    removed.enter_context(replace(QueueCache.forget_all, lambda self: None))


def wall_clock_only(clock: Clock, offset: int, error: float = 0.0) -> None:
    """Takes over the wall clock, and counts nothing as missed."""
    clock._offset = offset


CLOCKS = (
    Mechanism("refusing to write", writer_behind, never_refusing),
    Mechanism("refusing to read", reader_ahead, never_refusing),
    Mechanism("comparing after a gap", ahead_after_a_gap, no_gap),
    Mechanism("comparing after a jump", machine_stopped, jumps_unnoticed),
    Mechanism("comparing before an acknowledgement", machine_stopped_before_sending, acknowledging_at_once),
    Mechanism("comparing whenever an answer comes", machine_stopped_for_less_than_a_second, acknowledging_at_once),
    Mechanism("a check that begins after the answer", checked_before_the_answer, checks_that_have_begun),
    Mechanism("checks that are fast enough", slow_check, slow_answers),
    Mechanism("distrust of what a wrong clock timed", machine_stopped_and_compared, all_timed_rightly),
    Mechanism("forgetting rows after a jump", purged_while_stopped, rows_across_jumps),
    Mechanism("distrust of reads across a jump", purged_while_it_was_read, reads_across_jumps),
    Mechanism("distrust of an undo write that a wrong clock timed", undo_of_a_stopped_machine, all_timed_rightly),
)


@mechanisms(*CLOCKS)
def test_holds(scene: Scene, mechanism: Mechanism) -> None:
    """A clock that goes wrong breaks no promise."""
    assert mechanism.scenario(scene) == []


@mechanisms(*CLOCKS)
def test_it_is_what_does_it(scene: Scene, mechanism: Mechanism) -> None:
    """Without the mechanism the same breaks one."""
    assert played_without(scene, mechanism)


def test_wall_clock_set_wrongly(scene: Scene) -> None:
    """A wall clock that jumps while all else is right stops nobody: ids go by the time since boot."""
    process = scene.start()
    queue = scene.queue(process)
    gate = process.wire.hold(INSERTS)
    attempt = process.post(queue)
    gate.reached()
    process.machine.wrong = 3600.0
    gate.open()
    assert end_of(attempt) == "acknowledged"
    assert end_of(process.post(queue)) == "acknowledged"
    scene.world.advance(D + S)
    reader = Reader(process, queue)
    assert len(reader.go_on()) == 2


def test_two_nodes_that_disagree() -> None:
    """A clock between those of two nodes, which are all that answer, is not trusted: one of them may be right."""
    world = World()
    machine = Machine(world)
    clock = Clock(machine.boottime, machine.wall)
    found = ClockCheck(clock, lambda: S)

    def ahead(seconds: float) -> Interval:
        middle = round(seconds * 1e9) - clock.offset
        return Interval(middle, middle, clock.since_boot())

    found.note({"right": ahead(0.9 * S), "ahead": ahead(-0.6 * S)})
    assert not found.sound()
    found.note({"right": ahead(0.2 * S), "ahead": ahead(-0.3 * S)})
    assert found.sound()
