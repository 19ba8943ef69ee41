"""Random histories of a store; a naive model judges each step."""

from __future__ import annotations

import contextlib
import time
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from queuey.model import ids
from queuey.model.errors import OffsetConflict, QueueChanged, QueueNotFound
from queuey.model.ids import Position
from queuey.model.messages import Meta, OffsetChange, Queue, QueueSpec, Slice, bytes_of
from queuey.storage import Store, bridge
from tests import strategies
from tests.backends import APP, Clock, StoreLocation
from tests.contract.model import Model, ModelQueue
from tests.contract.samples import new_message

NAMES = st.sampled_from(["a", "b", "c"])
PARTITIONS = st.integers(1, 3)
START = ids.EPOCH_TICKS + 10**16
"""Start time of the clock, always the same so that a history can be run again."""
STORES = st.integers(0, 1)
TTLS = st.sampled_from([1, 2, 7, 60, 3600])
DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0000001, 0.000001, 0.5, 3.0, 100.0])
METAS = st.sampled_from([None, None, Meta(), Meta("text/html"), Meta("a/b", (("x", "1"), ("y", ""))), Meta(json=True)])
ITEMS = st.lists(
    st.tuples(
        PARTITIONS, strategies.text_bodies(5) | st.binary(min_size=1, max_size=5), TTLS, DELAYS, METAS, st.booleans()
    ),
    max_size=8,
)
STEPS = st.sampled_from([0.0000001, 0.4, 1.1, 2.2, 9.9, 61.3, 400.7, 4000.1, 83000.3, -0.0000003, -0.7, -30.1])
LIMITS = st.sampled_from([1, 2, 3, 5, 100])
BYTES = st.sampled_from([1, 3, 8, 1 << 20])


class Histories(RuleBasedStateMachine):
    """All operations on messages and queues, by several Store objects on the same data, in any order."""

    location: ClassVar[StoreLocation]
    """Each history gets its own location beside this one."""
    stores: ClassVar[int] = 2
    """Number of Store objects on the data; one if a store's ids only ascend within a partition and one process."""
    counts_deletes: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._location = self.location.make_fresh()
        self._clock = Clock(START)
        self._stores = [self._location.open(self._clock) for _ in range(self.stores)]
        bridge.run(self._stores[0].applications.create_application(APP))
        self._model = Model(self._clock, one_order=self.stores > 1)
        self._stale: list[Queue] = []

    def teardown(self) -> None:
        for store in self._stores:
            store.close()

    def _store(self, at: int) -> Store:
        """Returns one of the stores, and tells the model that a call begins now."""
        self._model.began = time.monotonic()
        return self._stores[at % len(self._stores)]

    def _row(self, name: str, at: int) -> Queue:
        return bridge.run(self._store(at).catalogue.queue(APP, name))

    def _read_current_row(self, name: str, at: int) -> Queue:
        """Returns a current row. A cached one may be outdated, which a caller finds when it is refused."""
        store = self._store(at)
        row = bridge.run(store.catalogue.queue(APP, name))
        try:
            bridge.run(store.messages.inspect(row))
        except QueueChanged:
            row = bridge.run(store.catalogue.queue(APP, name))
            bridge.run(store.messages.inspect(row))
        return row

    def _list_places(self, name: str) -> list[tuple[int, Position]]:
        queue = self._model.queues[name]
        return [(number, place) for number, part in sorted(queue.parts.items()) for place in sorted(part.messages)]

    def _draw_place(self, data: st.DataObject, name: str) -> tuple[int, Position]:
        places = self._list_places(name)
        near = st.tuples(
            st.integers(1, self._model.queues[name].partitions),
            st.tuples(
                st.integers(-50, 50).map(lambda n: self._clock.ticks + n)
                | st.sampled_from([-100, -3, 2, 50]).map(lambda n: self._clock.ticks + n * ids.TICKS_PER_SECOND),
                st.sampled_from([0, ids.LOW_MIN, self._model.newest[1]]),
            ),
        )
        place: tuple[int, Position] = data.draw(st.sampled_from(places) | near if places else near)
        return place

    @initialize()
    def begin(self) -> None:
        self.create("a", 2, 0.0, 0)

    @rule(name=NAMES, partitions=PARTITIONS, read_delay=st.sampled_from([0.0, 0.0, 2.0]), at=STORES)
    def create(self, name: str, partitions: int, read_delay: float, at: int) -> None:
        """Creates a queue, or is told that it exists."""
        if name in self._model.queues:
            _, created = bridge.run(self._store(at).catalogue.create_queue(APP, name, QueueSpec()))
            assert not created
            return
        spec = QueueSpec(partitions=partitions, read_delay=read_delay)
        queue, created = bridge.run(self._store(at).catalogue.create_queue(APP, name, spec))
        assert created
        assert queue.partitions == partitions
        self._model.queues[name] = ModelQueue(partitions, None, read_delay)

    def _draw_queue(self, data: st.DataObject) -> str:
        name: str = data.draw(st.sampled_from(sorted(self._model.queues)))
        return name

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), items=ITEMS, at=STORES, push=st.sampled_from([None, None, None, 0.1, 0.9]))
    def append(
        self,
        data: st.DataObject,
        items: list[tuple[int, str | bytes, int, float, Meta | None, bool]],
        at: int,
        push: float | None,
    ) -> None:
        """Appends messages, perhaps above an instant that is ahead, and judges their ids."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        items = [(min(item[0], queue.partitions), *item[1:]) for item in items]
        messages = [
            new_message(body, partition=part, ttl=ttl, delay=delay, meta=meta, kept=kept)
            for part, body, ttl, delay, meta, kept in items
        ]
        after = None if push is None else (self._clock.ticks + round(push * ids.TICKS_PER_SECOND), 0)
        positions = bridge.run(self._store(at).messages.append(row, messages, after=after))
        assert len(positions) == len(items)
        for (part, body, ttl, delay, meta, kept), place in zip(items, positions, strict=True):
            self._model.record_append(queue, part, place, body, ttl, delay, meta, kept=kept)
            assert after is None or place > after or delay

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), count=st.integers(1, 4), ttl=TTLS, at=STORES, meta=METAS, body=strategies.text_bodies(5))
    def put(self, data: st.DataObject, count: int, ttl: int, at: int, meta: Meta | None, body: str) -> None:
        """Puts one body at ids of any kind: existing, deleted, later or unused."""
        name = self._draw_queue(data)
        row = self._read_current_row(name, at)
        locations = [self._draw_place(data, name) for _ in range(count)]
        bridge.run(self._store(at).messages.put(row, locations, new_message(body, ttl=ttl, meta=meta)))
        for part, place in locations:
            self._model.put(self._model.queues[name], part, place, body, ttl, meta)

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), count=st.integers(1, 6), at=STORES)
    def delete(self, data: st.DataObject, count: int, at: int) -> None:
        """Deletes messages at ids of any kind, and compares the number of those that existed."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        locations = [self._draw_place(data, name) for _ in range(count)]
        if self.stores == 1:  # A delete also removes a message that gets its id later.
            places = self._list_places(name)
            locations = [place for place in locations if place in places or place[1] <= self._model.newest]
        sure, possible = 0, 0
        for part, place in locations:
            removed_message = queue.part(part).messages.pop(place, None)
            sure += removed_message is not None and removed_message.must_be_shown(self._clock.ticks)
            possible += removed_message is not None and not removed_message.must_be_hidden(self._clock.ticks)
        removed = bridge.run(self._store(at).messages.delete(row, locations))
        assert sure <= removed <= possible or not self.counts_deletes

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES)
    def purge(self, data: st.DataObject, at: int) -> None:
        """Purges a queue. Its row is outdated then."""
        name = self._draw_queue(data)
        row = self._read_current_row(name, at)
        self._stale.append(row)
        bridge.run(self._store(at).catalogue.purge_queue(row))
        self._model.queues[name].parts.clear()

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES)
    def drop(self, data: st.DataObject, at: int) -> None:
        """Deletes a queue, which no store finds any more. Its row is outdated then."""
        name = self._draw_queue(data)
        row = self._read_current_row(name, at)
        self._stale.append(row)
        bridge.run(self._store(at).catalogue.delete_queue(row))
        del self._model.queues[name]
        for store in self._stores:
            with contextlib.suppress(QueueNotFound):
                bridge.run(store.catalogue.queue(APP, name, fresh=True))
                raise AssertionError

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES, read_delay=st.sampled_from([0.0, 2.0]))
    def update(self, data: st.DataObject, at: int, read_delay: float) -> None:
        """Adds a partition and sets the read delay, unless there are three. The row is outdated then."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        if queue.partitions == 3:
            return
        self._stale.append(row)
        bridge.run(
            self._store(at).catalogue.update_queue(
                row, QueueSpec(partitions=queue.partitions + 1, read_delay=read_delay)
            )
        )
        queue.partitions += 1
        queue.read_delay = read_delay

    @precondition(lambda self: self._stale)
    @rule(data=st.data(), at=STORES)
    def use_stale(self, data: st.DataObject, at: int) -> None:
        """Checks that an outdated row is refused, for writing and for reading."""
        row = data.draw(st.sampled_from(self._stale))
        store: Store = self._store(at)
        for call in (
            lambda: bridge.run(store.messages.append(row, [new_message("stale")])),
            lambda: bridge.run(store.messages.read(row, [Slice(partition=1)])),
        ):
            with contextlib.suppress(QueueChanged):
                call()
                raise AssertionError

    @rule(seconds=STEPS)
    def move_time(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self._model.expire_messages()

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES, limit=LIMITS, size=BYTES)
    def read(self, data: st.DataObject, at: int, limit: int, size: int) -> None:
        """Reads slices with any bounds and judges each page."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        ends = st.sampled_from([ids.FIRST, ids.LAST, *[place for _, place in self._list_places(name)]])
        down, keeps_read_delay, kept = (data.draw(st.booleans()) for _ in range(3))
        slices = [
            Slice(
                partition=number,
                lower=data.draw(st.just(ids.FIRST) | ends),
                upper=data.draw(st.just(ids.LAST) | ends),
                limit=limit,
                max_bytes=size,
                descending=down,
                keeps_read_delay=keeps_read_delay,
                kept=kept,
            )
            for number in range(1, 5)
        ]
        pages = bridge.run(self._store(at).messages.read(row, slices))
        assert len({page.horizon for page in pages}) == 1
        weights = [bytes_of(page.messages) for page in pages]
        for wanted, page in zip(slices, pages, strict=True):
            if sum(weights) < len(slices) * size or page != wanted.make_postponed_page(page.horizon):
                self._model.judge_page(queue, wanted, page)

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES)
    def read_all(self, data: st.DataObject, at: int) -> None:
        """Reads all partitions of all queues from the beginning, and judges each page."""
        for name, queue in sorted(self._model.queues.items()):
            row = self._read_current_row(name, at)
            kept = data.draw(st.booleans())
            slices = [Slice(partition=n, limit=10_000, kept=kept) for n in range(1, queue.partitions + 1)]
            for wanted, page in zip(slices, bridge.run(self._store(at).messages.read(row, slices)), strict=True):
                self._model.judge_page(queue, wanted, page)

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES, count=st.integers(1, 6))
    def fetch(self, data: st.DataObject, at: int, count: int) -> None:
        """Fetches messages by ids of any kind, and judges the answer."""
        name = self._draw_queue(data)
        row = self._read_current_row(name, at)
        drawn = [self._draw_place(data, name) for _ in range(count)]
        locations = list(dict.fromkeys(drawn))
        kept = data.draw(st.booleans())
        fetched = [
            (message.partition, message.position, message.body)
            for message in bridge.run(self._store(at).messages.fetch(row, locations, kept=kept))
        ]
        self._model.judge_fetch(self._model.queues[name], locations, fetched, kept=kept)

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES)
    def inspect(self, data: st.DataObject, at: int) -> None:
        """Compares the count and the oldest and newest message of each partition."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        _, infos = bridge.run(self._store(at).messages.inspect(row))
        assert [info.partition for info in infos] == list(range(1, queue.partitions + 1))
        for info in infos:
            sure, possible = self._model.counts(queue, info.partition)
            assert info.exact
            assert len(sure) <= info.count <= len(possible)
            if sure == possible:
                assert (info.oldest, info.newest) == ((sure[0], sure[-1]) if sure else (None, None))

    @precondition(lambda self: self._model.queues)
    @rule(data=st.data(), at=STORES, part=PARTITIONS)
    def lag(self, data: st.DataObject, at: int, part: int) -> None:
        """Compares a lag with a read above the offset."""
        name = self._draw_queue(data)
        row, store = self._read_current_row(name, at), self._store(at)
        places = [place for number, place in self._list_places(name) if number == part]
        offset = data.draw(st.sampled_from([None, ids.FIRST, *places]))
        above = Slice(partition=part, lower=ids.FIRST if offset is None else ids.following(offset), limit=10_000)
        # The clock stands still, but a store may count lifetimes by another clock.
        (earlier,) = bridge.run(store.messages.read(row, [above]))
        (lag,) = bridge.run(store.messages.lag(row, [(part, offset)]))
        (later,) = bridge.run(store.messages.read(row, [above]))
        self._model.judge_horizon(self._model.queues[name], Slice(partition=part), later.horizon)
        assert lag.exact
        assert len(later.messages) <= lag.count <= len(earlier.messages)

    @precondition(lambda self: self._model.queues)
    @rule(
        data=st.data(), at=STORES, group=st.sampled_from(["g", "h"]), place=strategies.positions(), lucky=st.booleans()
    )
    def offsets(self, data: st.DataObject, at: int, group: str, place: Position, lucky: bool) -> None:  # noqa: FBT001 - given by hypothesis
        """Sets an offset by comparing, with the right expectation or a wrong one, and compares all offsets."""
        name = self._draw_queue(data)
        row, queue = self._read_current_row(name, at), self._model.queues[name]
        part = data.draw(st.integers(1, queue.partitions))
        present = queue.groups.get(group, {}).get(part)
        expected = present if lucky else (5, 5)
        try:
            bridge.run(
                self._store(at).offsets.set_offsets(row, group, [OffsetChange(part, place, expected, compare=True)])
            )
        except OffsetConflict:
            assert present != expected
        else:
            assert present == expected
            queue.groups.setdefault(group, {})[part] = place
        other, other_row = self._store(1 - at), self._read_current_row(name, 1 - at)
        assert bridge.run(other.offsets.groups(other_row)) == sorted(queue.groups)
        for group_name, locations in queue.groups.items():
            offsets = bridge.run(self._store(at).offsets.group_offsets(row, group_name))
            assert {offset.partition: offset.position for offset in offsets} == locations

    @rule(at=STORES)
    def sweep(self, at: int) -> None:
        """Sweeps expired messages, in stores that support it; nothing else may change."""
        run = getattr(self._store(at), "sweep", None)
        if run is not None:
            run()

    @precondition(lambda self: self.stores > 1)
    @rule(at=STORES)
    def reopen(self, at: int) -> None:
        self._store(at).close()
        self._stores[at % len(self._stores)] = self._location.open(self._clock)
