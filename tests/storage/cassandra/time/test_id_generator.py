"""Tests of new ids and of timestamps of writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import InvalidRequest
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.storage.cassandra.time.clock import DelayedIds, IdGenerator, Stamps, stamp_of, undo_timestamp
from tests.storage.cassandra.time.clocks import Machine

SECOND = TICKS_PER_SECOND

moves = st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 2000)), min_size=1, max_size=30)


@given(moves, st.integers(ids.LOW_MIN, ids.LOW_MAX))
def test_ids_ascend_whatever_the_clock_does(steps: list[tuple[float, int]], low: int) -> None:
    """No id is made twice or is below an earlier one or the clock, also when the clock is set back."""
    machine = Machine()
    generator = IdGenerator(machine.clock, low)
    last = 0
    for seconds, count in steps:
        machine.advance(seconds)
        horizon = generator.next_time()
        first = generator.generate(count)
        assert first >= max(last + 1, machine.clock.now(), horizon)
        last = first + count - 1
    assert generator.next_time() > last


@given(st.integers(-10 * SECOND, SECOND), st.integers(ids.LOW_MIN, ids.LOW_MAX), st.integers(1, 100))
def test_ids_are_above_the_one_named(away: int, low: int, count: int) -> None:
    """Ids that are to follow another do, at any allowed distance, and later ones follow these."""
    machine = Machine()
    generator = IdGenerator(machine.clock, 0)
    after = machine.clock.now() + away, low
    generator.check_after(after)
    first = generator.generate(count, after)
    assert (first, 0) > after
    assert generator.generate(1) >= first + count


def test_ids_too_far_ahead_are_refused() -> None:
    """Nobody can push ids more than a second ahead of the clock, unless one was already made there."""
    machine = Machine()
    generator = IdGenerator(machine.clock)
    far = machine.clock.now() + SECOND + 1
    with pytest.raises(InvalidRequest):
        generator.check_after((far, 0))
    generator.generate(SECOND + 10)
    generator.check_after((far, 0))
    for step in range(5):
        after = machine.clock.now() + SECOND * (step + 2), 0
        with pytest.raises(InvalidRequest):
            generator.check_after(after)


@given(st.lists(st.sampled_from([0.5, 1.0, 86400.0]), max_size=30))
def test_delayed_messages_are_due_after_their_delay(delays: list[float]) -> None:
    """Each delayed message of a call has its own id at its due time; those of one delay keep their order."""
    made = DelayedIds(1000 * SECOND, 0)
    by_delay: dict[float, list[Position]] = {}
    for delay in delays:
        by_delay.setdefault(delay, []).append(made.generate(delay))
    for delay, positions in by_delay.items():
        due = round((1000 + delay) * SECOND)
        assert [ticks for ticks, _ in positions] == [due + number for number in range(len(positions))]
        assert positions == sorted(positions)
    assert len({position for positions in by_delay.values() for position in positions}) == len(delays)


def test_delayed_messages_are_above_what_was_read() -> None:
    """A message with a tiny delay is not below a position that a reader has passed."""
    assert DelayedIds(100, 500).generate(0.000_001) >= (500, ids.LOW_MIN)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(-100, 100)), min_size=1, max_size=20))
def test_stamps_ascend(steps: list[tuple[float, float]]) -> None:
    """The later of two writes by id of one process has the higher timestamp, whatever their ids."""
    machine = Machine()
    stamps = Stamps(machine.clock, lambda: 1.0)
    last = 0
    for seconds, away in steps:
        machine.advance(seconds)
        stamp = stamps.make_above(machine.clock.now() + round(away * SECOND))
        assert stamp > last
        last = stamp


@given(st.floats(0.01, 10), st.floats(-1, 1), st.integers(0, 5000), st.sampled_from([None, 1.0, 0.5]))
def test_a_delete_takes_effect_on_what_any_process_minted(
    difference: float, apart: float, count: int, pushed: float | None
) -> None:
    """A delete's timestamp is not below that of the write, even if the writer's clock and its ids are ahead."""
    writer, deleter = Machine(), Machine()
    deleter.advance(apart * difference)
    generator = IdGenerator(writer.clock)
    after = None if pushed is None else (writer.clock.now() + round(pushed * SECOND), 0)
    ticks = generator.generate(count + 1, after) + count
    assert Stamps(deleter.clock, lambda: difference).make_above(ticks) >= stamp_of(ticks)


@given(st.floats(0.01, 10), st.floats(-1, 1), st.floats(1, 100))
def test_a_delete_takes_effect_on_what_any_process_delayed(difference: float, apart: float, delay: float) -> None:
    """A delayed message is written with its process's time; a delete of its id has a higher timestamp."""
    writer, deleter = Machine(), Machine()
    deleter.advance(apart * difference)
    now = writer.clock.now()
    due, _ = DelayedIds(now, 0).generate(difference + delay)
    assert Stamps(deleter.clock, lambda: difference).make_above(due) > stamp_of(now)


def test_nobody_stamps_writes_far_ahead() -> None:
    """A write at an id in the far future has a timestamp near the clock, so that later writes there take effect."""
    machine = Machine()
    stamps = Stamps(machine.clock, lambda: 1.0)
    assert stamps.make_above(ids.TICKS_MAX) <= stamp_of(machine.clock.now() + 3 * SECOND)


@given(st.integers(0, ids.TICKS_MAX), st.integers(0, ids.TICKS_MAX))
def test_an_undo_write_is_not_below_what_it_undoes(now: int, ticks: int) -> None:
    """An undo write has the timestamp of the write or one above; with equal ones the delete wins."""
    assert undo_timestamp(now, ticks) >= max(stamp_of(ticks), stamp_of(now))


def test_stamps_are_microseconds_since_1970() -> None:
    """Timestamps are microseconds since 1970, like Cassandra's own."""
    assert stamp_of(ids.seconds_to_ticks(1_750_000_000.0)) == 1_750_000_000_000_000
