"""What keeps clocks from breaking promises, each part by a scenario that goes wrong when the part is taken out."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra import Level
from queuey.storage.cassandra.ids.clock import FRESH, GAP, Clock, ClockCheck, ClockReading, ClockWatch
from tests.cassandra.interposed import DELETES, INSERTS, Gate
from tests.cassandra.scene import (
    Attempt,
    D,
    Machine,
    Mechanism,
    Process,
    Reader,
    S,
    Scene,
    World,
    end_of,
    mechanisms,
    played_without,
)
from tests.replacing import replace

OFF = D + 2 * S
"""Seconds that a clock is off: more than the read delay makes up for."""
SLOW = {"levels": {"strong": Level(None, None, delay=25.0, deadline=20.0)}}
"""A level with a write deadline beyond the gap after which the clock is compared again."""


def heartbeat(process: Process) -> None:
    """Compares the clock with the node's, as is done once a second."""
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


def behind_after_a_gap(scene: Scene) -> list[str]:
    """The clock of a machine that writes has fallen behind since it was last compared, long ago."""
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    scene.world.advance(GAP + S + OFF)
    writing.machine.fall_behind(OFF)
    reader.go_on()
    attempt = writing.post(queue)
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def behind_before_acknowledging(scene: Scene) -> list[str]:
    """The clock of a machine falls behind, and is not compared for long, while a write is on its way."""
    writing, reading = scene.start(**SLOW), scene.start(**SLOW)
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    gate = writing.wire.hold(INSERTS)
    attempt = writing.post(queue)
    gate.reached()
    scene.world.advance(GAP + S + 30)
    writing.machine.fall_behind(30)
    reader.go_on()
    gate.open()
    end_of(attempt)
    reader.go_on()
    return reader.missed([attempt])


def write_on_its_way(scene: Scene) -> tuple[Process, Reader, Gate, Attempt]:
    """Has one process write, up to where its request is sent; another one reads."""
    writing, reading = scene.start(), scene.start()
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
    """A virtual machine, all its clocks included, stands still between minting and sending; the answer takes a while.

    Its clocks agree with each other afterwards, and were compared with the nodes' not long ago by what they show.
    """
    writing, reader, gate, attempt = write_on_its_way(scene)
    scene.world.advance(20.0)
    writing.machine.fall_behind(20.0)
    reader.go_on()
    scene.world.advance(FRESH + 0.01)
    gate.open()
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
        return sound(self)

    removed.enter_context(replace(sound, sound_if_it_was_compared))


def checks_of_any_age(removed: ExitStack) -> None:
    """Acknowledges by any check that was good."""
    sound = ClockCheck.sound
    removed.enter_context(replace(sound, lambda self, since=0.0: sound(self)))


def jumps_unnoticed(removed: ExitStack) -> None:
    """Does not see that the wall clock moved against the time since boot."""
    removed.enter_context(replace(Clock.drift, lambda self: 0.0))


def all_timed_rightly(removed: ExitStack) -> None:
    """Takes the time since an id was made for right although the clock was wrong."""
    removed.enter_context(replace(ClockWatch.vouches, lambda self, minted: True))
    removed.enter_context(replace(Clock.accept, wall_clock_only))


def wall_clock_only(clock: Clock, error: float = 0.0) -> None:
    """Takes over the wall clock, and counts nothing as missed."""
    clock._offset = clock._wall() - clock._boottime()


CLOCKS = (
    Mechanism("refusing to write", writer_behind, never_refusing),
    Mechanism("refusing to read", reader_ahead, never_refusing),
    Mechanism("comparing after a gap", behind_after_a_gap, no_gap),
    Mechanism("comparing before an acknowledgement", behind_before_acknowledging, no_gap),
    Mechanism("comparing after a jump", machine_stopped, jumps_unnoticed),
    Mechanism("comparing lately before an acknowledgement", machine_stopped_before_sending, checks_of_any_age),
    Mechanism("distrust of what a wrong clock timed", machine_stopped_and_compared, all_timed_rightly),
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


def test_wall_clock_set_while_it_is_compared() -> None:
    """A wall clock that moved after the nodes answered is not taken over: nobody has compared it as it is."""
    world = World()
    machine = Machine(world)
    clock = Clock(machine.boottime, machine.wall)
    found = ClockCheck(clock, S)
    found.note([ClockReading("node", 0.0, 0.0, 0.0)])
    assert found.sound()
    machine.wrong = S / 4
    before = clock.now()
    found.note([ClockReading("node", 0.0, 0.0, 0.0)])
    assert clock.now() == before
    assert not found.sound()


def test_two_nodes_that_disagree() -> None:
    """A clock between those of two nodes, which are all that answer, is not trusted: one of them may be right."""
    world = World()
    machine = Machine(world)
    found = ClockCheck(Clock(machine.boottime, machine.wall), S)
    found.note([ClockReading("right", 0.9 * S, 0.9 * S, 0.0), ClockReading("ahead", -0.6 * S, -0.6 * S, 0.0)])
    assert found.refusing
    found.note([ClockReading("right", 0.2 * S, 0.2 * S, 0.0), ClockReading("ahead", -0.3 * S, -0.3 * S, 0.0)])
    assert not found.refusing
