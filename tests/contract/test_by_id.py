"""Tests of writing, fetching and deleting messages by id."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Meta
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    call_concurrently,
    make_queue,
    messages_in_partition,
    new_message,
    positions,
)

PAST = ids.EPOCH_TICKS + 10**16
"""A tick in 2001."""


def make_past_positions(*numbers: int) -> list[tuple[int, Position]]:
    """Returns positions in partition 1 at ids that no store would mint."""
    return [(1, (PAST + number, number)) for number in numbers]


class TestPut:
    """Tests of putting one body at given ids."""

    def test_overwrites(self, store: Store, other: Store) -> None:
        """Body, content type and headers are replaced; the place in the order stays."""
        queue = make_queue(store)
        meta = Meta("text/html", (("a", "1"),))
        stored_at = bridge.run(
            store.messages.append(queue, [new_message("a"), new_message("b", meta=meta), new_message("c")])
        )
        bridge.run(other.messages.put(queue, [(1, stored_at[1])], new_message("B")))
        assert bodies_in_partition(store, queue) == ["a", "B", "c"]
        assert positions(messages_in_partition(store, queue)) == stored_at
        assert messages_in_partition(store, queue)[1].meta in (None, Meta())
        bridge.run(store.messages.put(queue, [(1, stored_at[0])], new_message(b"\xff", meta=meta)))
        message = messages_in_partition(other, queue)[0]
        assert (message.body, message.meta) == (b"\xff", meta)

    def test_moves_no_generator(self, store: Store) -> None:
        """An id far ahead affects neither new ids nor the position of readers."""
        queue = make_queue(store)
        far = (ids.now_ticks() + 10**6 * ids.TICKS_PER_SECOND, 0)
        bridge.run(store.messages.put(queue, [(1, far), (1, ids.LAST)], new_message("far")))
        (position,) = append_bodies(store, queue, "now")
        assert position < far
        assert bodies_in_partition(store, queue) == ["now"]
        assert bodies(bridge.run(store.messages.fetch(queue, [(1, far), (1, ids.LAST)]))) == ["far", "far"]

    def test_ends_of_time(self, store: Store) -> None:
        """The lowest and the highest id can be used like others."""
        queue = make_queue(store)
        bridge.run(store.messages.put(queue, [(1, ids.FIRST)], new_message("first")))
        bridge.run(store.messages.put(queue, [(1, ids.LAST)], new_message("last")))
        assert bodies(bridge.run(store.messages.fetch(queue, [(1, ids.LAST), (1, ids.FIRST)]))) == ["last", "first"]
        assert bodies_in_partition(store, queue) == ["first"]
        assert bridge.run(store.messages.delete(queue, [(1, ids.FIRST), (1, ids.LAST)])) == 2
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 0

    def test_minting_where_a_put_is(self, store: Store, clock: Clock) -> None:
        """A message put ahead of the clock, at an id like the store's own, is not overwritten by new messages."""
        queue = make_queue(store)
        (first,) = append_bodies(store, queue, "x")
        locations = [(1, (clock.ticks + n, first[1])) for n in range(1, 21)]
        bridge.run(store.messages.put(queue, locations, new_message("put")))
        positions = append_bodies(store, queue, *["new"] * 10)
        assert not {(1, position) for position in positions} & set(locations)
        clock.advance(1)
        assert sorted(map(str, bodies_in_partition(store, queue))) == ["new"] * 10 + ["put"] * 20 + ["x"]

    @pytest.mark.needs("whole_puts")
    def test_simultaneous_puts_leave_one_of_them(self, store: Store, other: Store) -> None:
        """When bodies are put simultaneously at the same two ids, both ids have one of them in the end."""
        queue = make_queue(store)
        call_concurrently(
            lambda n: bridge.run(
                (store, other)[n % 2].messages.put(queue, make_past_positions(1, 2), new_message(str(n)))
            ),
            range(8),
        )
        stored_bodies = bodies_in_partition(store, queue)
        assert len(stored_bodies) == 2
        assert len(set(stored_bodies)) == 1

    @pytest.mark.parametrize(("first", "second"), [(10, 100), (100, 10), (10, 10)])
    def test_overwriting_sets_the_ttl(self, store: Store, clock: Clock, first: int, second: int) -> None:
        """After an overwrite only the new TTL counts, longer or shorter."""
        queue = make_queue(store)
        bridge.run(store.messages.put(queue, make_past_positions(1), new_message("a", ttl=first)))
        clock.advance(5)
        bridge.run(store.messages.put(queue, make_past_positions(1), new_message("b", ttl=second)))
        clock.advance(second - 1)
        assert bodies_in_partition(store, queue) == ["b"]
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 1
        clock.advance(2)
        assert bodies_in_partition(store, queue) == []
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 0


class TestFetch:
    """Tests of fetching messages by id."""

    def test_order_and_missing(self, store: Store) -> None:
        """Messages come in the order asked; missing ones are left out."""
        queue = make_queue(store, partitions=2)
        a, b, c = append_bodies(store, queue, "a", "b", "c")
        (d,) = append_bodies(store, queue, "d", partition=2)
        places = [(1, c), (2, d), (1, (PAST, 0)), (1, a), (2, a), (1, d), (3, a), (1, b)]
        assert bodies(bridge.run(store.messages.fetch(queue, places))) == ["c", "d", "a", "b"]

    def test_partition_outside_the_queue(self, store: Store) -> None:
        """No partition number reaches another queue."""
        queue = make_queue(store)
        for neighbour in [make_queue(store, partitions=2) for _ in range(3)]:
            append_bodies(store, neighbour, "x")
            bridge.run(store.messages.put(neighbour, [(1, (PAST, 0)), (2, (PAST, 0))], new_message("x")))
        places = [(partition, (PAST, 0)) for partition in (-255, -1, 0, 2, 255, 256, 257, 258, 513, 1 << 50)]
        assert bridge.run(store.messages.fetch(queue, places)) == []

    def test_a_thousand(self, store: Store) -> None:
        """A thousand ids in one call are answered in order."""
        queue = make_queue(store)
        positions = append_bodies(store, queue, *map(str, range(1000)))
        places = [(1, position) for position in reversed(positions)]
        assert bodies(bridge.run(store.messages.fetch(queue, places))) == [str(n) for n in reversed(range(1000))]


class TestDelete:
    """Tests of deleting by id."""

    @pytest.mark.needs("counts_deletes")
    def test_counts_what_was_there(self, store: Store) -> None:
        """The count has each existing message once, and no missing or deleted ones."""
        queue = make_queue(store, partitions=2)
        positions = append_bodies(store, queue, "a", "b", "c")
        locations: Sequence[tuple[int, Position]] = [(1, position) for position in positions]
        assert bridge.run(store.messages.delete(queue, [])) == 0
        assert (
            bridge.run(store.messages.delete(queue, [(2, positions[0]), (3, positions[0]), *make_past_positions(1)]))
            == 0
        )
        assert bridge.run(store.messages.delete(queue, [*locations[:2], *locations[:2], *make_past_positions(1)])) == 2
        assert bridge.run(store.messages.delete(queue, locations)) == 1
        assert bridge.run(store.messages.delete(queue, locations)) == 0

    @pytest.mark.needs("counts_deletes")
    def test_simultaneous_deletes_count_once(self, store: Store, other: Store) -> None:
        """Simultaneous deletes of the same messages count each message once in total."""
        queue = make_queue(store)
        locations = [(1, position) for position in append_bodies(store, queue, *map(str, range(50)))]
        counts = call_concurrently(
            lambda n: bridge.run((store, other)[n % 2].messages.delete(queue, locations)), range(6)
        )
        assert sum(counts) == 50
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 0
