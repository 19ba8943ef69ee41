"""Writes to partitions that a queue does not have."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from queuey.model import ids
from queuey.model.errors import InvalidRequest
from queuey.model.messages import Message, OffsetChange, Queue
from queuey.storage import Store, bridge
from tests.contract.samples import make_queue, new_message

PAST = (ids.EPOCH_TICKS + 10**16, 0)


def load(store: Store, queue: Queue, outside: int) -> None:
    bridge.run(store.bulk.load(queue, [Message(*PAST, number, ids.TICKS_MAX, "x") for number in (1, outside, 2)]))


def load_unread(store: Store, queue: Queue, outside: int) -> None:
    due = bridge.run(store.ledger.now()) + 60 * ids.TICKS_PER_SECOND
    bridge.run(
        store.bulk.load_unread(queue, [Message(due, 0, number, ids.TICKS_MAX, "x") for number in (1, outside, 2)])
    )


WRITES: dict[str, Callable[[Store, Queue, int], object]] = {
    "append": lambda store, queue, outside: bridge.run(
        store.messages.append(queue, [new_message("x", partition=number) for number in (1, outside, 2)])
    ),
    "append delayed": lambda store, queue, outside: bridge.run(
        store.messages.append(queue, [new_message("x", delay=0.01), new_message("x", partition=outside, delay=1.0)])
    ),
    "put": lambda store, queue, outside: bridge.run(
        store.messages.put(queue, [(1, PAST), (outside, PAST), (2, PAST)], new_message("x"))
    ),
    "load": load,
    "load_unread": load_unread,
    "set_offsets": lambda store, queue, outside: bridge.run(
        store.offsets.set_offsets(queue, "group", [OffsetChange(1, PAST), OffsetChange(outside, PAST)])
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written(store: Store, write: str) -> None:
    """A partition that the queue lacks makes the whole call fail, and no other queue is changed, also not later."""
    queues = [make_queue(store, partitions=2) for _ in range(3)]
    for outside in (0, -1, 3, 201, 256, 257, 1 << 40):
        with pytest.raises(InvalidRequest):
            WRITES[write](store, queues[1], outside)
    for untouched, number in itertools.product(queues, (1, 2)):
        info = bridge.run(store.messages.inspect(untouched))[1][number - 1]
        assert (info.count, info.newest) == (0, None)
        assert bridge.run(store.messages.fetch(untouched, [(number, PAST)])) == []
    assert [bridge.run(store.offsets.groups(each)) for each in queues] == [[]] * 3
