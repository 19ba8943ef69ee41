"""The horizon: the promise of a cursor (G1), the read delay, and clocks that are set back."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.messages import Slice
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.cursors import MESSAGES_PER_WRITER, Writer, check_between_threads
from tests.contract.samples import (
    append_bodies,
    begin,
    bodies,
    fill_queue,
    make_queue,
    new_message,
    positions,
    read_one,
    whole_partition,
)


@pytest.mark.parametrize("read_delay", [0.0, 3600.0])
def test_ahead_of_the_horizon(store: Store, clock: Clock, read_delay: float) -> None:
    """A read ahead also shows due messages above its horizon, and continues where it ended.

    Its horizon is the store's own, whatever the queue's read delay.
    """
    queue, other = make_queue(store, read_delay=read_delay), make_queue(store, read_delay=None)
    places = append_bodies(store, queue, "a", "b", "c")
    bridge.run(store.messages.append(queue, [new_message("late", delay=5.0)]))
    first = read_one(store, queue, structs.replace(whole_partition(), ahead=True, limit=2))
    assert (positions(first.messages), first.more) == (places[:2], True)
    assert first.next is not None
    assert first.next <= places[2]
    rest_of_it = structs.replace(whole_partition(), ahead=True, lower=first.next)
    [begun] = begin(store.messages.read(queue, [rest_of_it])).result(60)
    assert positions(begun.messages) == places[2:]
    rest = read_one(store, queue, rest_of_it)
    assert positions(rest.messages) == places[2:]
    assert abs(rest.horizon - read_one(store, other, whole_partition()).horizon) < 2 * ids.TICKS_PER_SECOND


@pytest.mark.parametrize("read_delay", [0.0, 2.0])
@pytest.mark.parametrize("step", [0.0000001, 0.7, 30.1])
def test_clock_set_back_after_a_look(store: Store, clock: Clock, step: float, read_delay: float) -> None:
    """A horizon does not move back when the clock is set back, even if nothing was written before."""
    queue = make_queue(store, read_delay=read_delay)
    horizons = [
        read_one(store, queue, structs.replace(whole_partition(), keeps_read_delay=k)).horizon for k in (True, False)
    ]
    horizons.append(bridge.run(store.messages.inspect(queue))[0])
    clock.advance(-step)
    (position,) = append_bodies(store, queue, "x")
    assert position >= (max(horizons), ids.LOW_MIN)


def test_no_read_delay_of_its_own(store: Store) -> None:
    """The store reports the read delay of a queue that has one, or else its own."""
    assert store.read_delay(make_queue(store, read_delay=2.5)) == 2.5
    assert store.read_delay(make_queue(store, read_delay=0.0)) == 0.0
    assert store.read_delay(make_queue(store, read_delay=None)) >= 0.0


@pytest.mark.parametrize("descending", [False, True])
def test_read_delay(store: Store, clock: Clock, *, descending: bool) -> None:
    """Range reads stay behind the clock by the read delay, within the query: the limit counts shown messages."""
    queue = fill_queue(store, "a", read_delay=10.0)
    clock.advance(5)
    append_bodies(store, queue, "b")
    part = Slice(partition=1, limit=1, descending=descending)
    page = read_one(store, queue, part)
    assert page.messages == []
    assert page.horizon <= clock.ticks - 10 * ids.TICKS_PER_SECOND
    clock.advance(6)
    assert bodies(read_one(store, queue, part).messages) == ["a"]
    assert bodies(read_one(store, queue, structs.replace(part, limit=9)).messages) == ["a"]
    clock.advance(5)
    assert bodies(read_one(store, queue, part).messages) == (["b"] if descending else ["a"])
    assert len(read_one(store, queue, structs.replace(part, limit=9)).messages) == 2


@pytest.mark.parametrize("messages", MESSAGES_PER_WRITER)
def test_g1_between_threads(store: Store, other: Store, messages: int) -> None:
    """With many threads no reader's cursor passes an acknowledged message that it was not shown (G1)."""
    check_between_threads(store, other, [Writer] * 6, messages)
