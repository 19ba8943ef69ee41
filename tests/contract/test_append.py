"""Tests of storing new messages."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

import pytest

from queuey.model import ids
from queuey.model.errors import InvalidRequest
from queuey.model.ids import Position
from queuey.model.messages import Meta
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    bodies_in_partition,
    call_concurrently,
    make_queue,
    messages_in_partition,
    new_message,
    positions,
    start_append,
)


def strictly_ascending(found: list[Position]) -> bool:
    return all(low < high for low, high in itertools.pairwise(found))


def test_a_message_is_there_when_the_call_returns(store: Store, other: Store) -> None:
    """When the call returns, every store reads the message by range and by id, exactly as it was given."""
    queue = make_queue(store)
    (position,) = append_bodies(store, queue, "hello")
    for handle in (store, other):
        (message,) = messages_in_partition(handle, queue)
        assert (message.position, message.body, message.partition) == (position, "hello", 1)
        assert bridge.run(handle.messages.fetch(queue, [(1, position)])) == [message]


def test_ids_are_time_uuids_of_now(store: Store) -> None:
    """A new id is a version 1 UUID of the present time."""
    queue = make_queue(store)
    (position,) = append_bodies(store, queue, "x")
    value = uuid.UUID(hex=ids.to_hex(position))
    assert (value.version, value.variant) == (1, uuid.RFC_4122)
    assert abs(position[0] - ids.now_ticks()) < 60 * ids.TICKS_PER_SECOND


def test_largest_batch(store: Store) -> None:
    """A batch of a thousand messages is stored completely and in order."""
    queue = make_queue(store, partitions=2)
    positions = bridge.run(
        store.messages.append(queue, [new_message(str(n), partition=n % 2 + 1) for n in range(1000)])
    )
    assert len(set(positions)) == 1000
    assert bodies_in_partition(store, queue, 1) == [str(n) for n in range(0, 1000, 2)]
    assert bodies_in_partition(store, queue, 2) == [str(n) for n in range(1, 1000, 2)]


@pytest.mark.needs("one_generator")
def test_ids_ascend_over_stores_with_different_clocks(open_with_clock: Callable[[Clock], Store]) -> None:
    """A store whose clock is an hour behind another's mints ids above the other's."""
    now = ids.now_ticks()
    ahead, behind = open_with_clock(Clock(now)), open_with_clock(Clock(now - 3600 * ids.TICKS_PER_SECOND))
    queue = make_queue(ahead)
    stored_at = [append_bodies(one, queue, "x")[0] for one in (behind, ahead, behind, behind, ahead, behind)]
    assert strictly_ascending(stored_at)
    assert positions(messages_in_partition(behind, queue)) == stored_at


def test_simultaneous_appends(store: Store, other: Store) -> None:
    """Threads that append at once each see their own ids ascend, and every message is stored once."""
    queue = make_queue(store, partitions=2)

    def write(number: int) -> list[Position]:
        handle = (store, other)[number % 2]
        return [append_bodies(handle, queue, f"{number}:{n}", partition=number % 2 + 1)[0] for n in range(25)]

    results = call_concurrently(write, range(8))
    assert all(strictly_ascending(mine) for mine in results)
    assert len({place for mine in results for place in mine}) == 200
    stored = [body for number in (1, 2) for body in bodies_in_partition(store, queue, number)]
    assert sorted(map(str, stored)) == sorted(f"{number}:{n}" for number in range(8) for n in range(25))


def test_a_bad_call_does_not_spoil_its_neighbours(store: Store) -> None:
    """Invalid calls among simultaneous ones fail alone; the others are stored completely."""
    queue, gone = make_queue(store), make_queue(store)
    bridge.run(store.catalogue.delete_queue(gone))

    def good(n: int) -> str:
        append_bodies(store, queue, f"{n}a", f"{n}b")
        return "stored"

    def bad_partition(n: int) -> str:
        with pytest.raises(InvalidRequest):
            bridge.run(store.messages.append(queue, [new_message(f"{n}a"), new_message(f"{n}b", partition=2)]))
        return "refused"

    def bad_after(n: int) -> str:
        with pytest.raises(InvalidRequest):
            bridge.run(store.messages.append(queue, [new_message(f"{n}a")], after=ids.LAST))
        return "refused"

    def bad_text(n: int) -> str:
        meta = Meta("text/plain", (("x-broken", "\ud800"),))
        with pytest.raises((InvalidRequest, ValueError)):
            bridge.run(store.messages.append(queue, [new_message(f"{n}a"), new_message(f"{n}b", meta=meta)]))
        return "refused"

    kinds = [good, bad_partition, bad_text, bad_after]
    for _ in range(5):
        outcomes = call_concurrently(lambda n: kinds[n % 4](n), range(16))
        assert outcomes == ["stored", "refused", "refused", "refused"] * 4
    assert sorted(map(str, bodies_in_partition(store, queue))) == sorted(
        [f"{n}{half}" for n in range(0, 16, 4) for half in "ab"] * 5
    )


class TestAfter:
    """Tests of ids above one that the caller names."""

    @pytest.mark.parametrize("seconds", [60, 1e6])
    def test_too_far_ahead(self, store: Store, seconds: float) -> None:
        """An ``after`` more than a second ahead of the clock is refused and stores nothing; time does not jump."""
        queue = make_queue(store)
        after = (ids.now_ticks() + round(seconds * ids.TICKS_PER_SECOND), 0)
        with pytest.raises(InvalidRequest):
            bridge.run(store.messages.append(queue, [new_message("a")], after=after))
        with pytest.raises(InvalidRequest):
            bridge.run(store.messages.append(queue, [new_message("a")], after=ids.LAST))
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 0
        (position,) = append_bodies(store, queue, "b")
        assert position < after

    def test_a_second_ahead_is_the_limit(self, store: Store, clock: Clock) -> None:
        """An ``after`` of exactly a second ahead is accepted, one tick more is not."""
        queue = make_queue(store)
        limit = clock.ticks + ids.TICKS_PER_SECOND
        (position,) = bridge.run(store.messages.append(queue, [new_message("a")], after=(limit, ids.LOW_MIN)))
        assert position > (limit, ids.LOW_MIN)
        clock.advance(30)
        with pytest.raises(InvalidRequest):
            bridge.run(
                store.messages.append(
                    queue, [new_message("b")], after=(clock.ticks + ids.TICKS_PER_SECOND + 1, ids.LOW_MIN)
                )
            )


class TestBegin:
    """Tests of appends that are begun and answered later."""

    def test_giving_up(self, store: Store) -> None:
        """A cancelled append with the outcome "none" was not stored; one that was answered before was."""
        queue = make_queue(store)
        outcomes = [start_append(store, queue, [new_message(str(n))]).give_up() for n in range(200)]
        append_bodies(store, queue, "last")
        stored = set(bodies_in_partition(store, queue))
        assert {n for n, outcome in enumerate(outcomes) if outcome == "none" and str(n) in stored} == set()
        assert {n for n, outcome in enumerate(outcomes) if outcome is None and str(n) not in stored} == set()

    @pytest.mark.needs("ordered_begins")
    def test_answers_in_the_order_begun(self, store: Store) -> None:
        """Appends that one thread begins one after another get ascending ids."""
        queue = make_queue(store)
        futures = [start_append(store, queue, [new_message(str(n))]) for n in range(100)]
        assert strictly_ascending([future.result(60)[0] for future in futures])
