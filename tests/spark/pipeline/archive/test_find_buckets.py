"""The search for buckets to archive, while others change the queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from queuey import ids
from queuey.messages import Queue, QueueSpec
from queuey.pipeline.archive import find_buckets
from queuey.pipeline.archive.work_units import Search, WorkUnit
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.replacing import replace
from tests.spark.kept import Kept
from tests.spark.pipeline.archive.archives import HOUR, last_hour, make_past_queue, message


def partitions_found(kept: Kept, queue: Queue) -> set[int]:
    packed = msgspec.msgpack.encode([Search(queue.name, queue.qid, HOUR)])
    return {
        msgspec.msgpack.decode(unit, type=WorkUnit).partition
        for unit in find_buckets._find_in_task(kept.store_options, packed)
    }


@contextmanager
def change_before_call(method: Callable[..., Any], change: Callable[[], object], *, after: int) -> Iterator[None]:
    """Lets a change happen once, just before the call of this number of a method of the store."""
    left = [after]

    async def call(self: object, *parts: Any) -> Any:  # noqa: ANN401 - any method
        left[0] -= 1
        if left[0] == 0:
            change()
        return await method(self, *parts)

    with replace(method, call):
        yield


def test_partitions_that_are_new(embedded: Kept) -> None:
    """A partition that was added and written before the horizon was sampled is searched."""
    queue = make_past_queue(embedded, "orders", 8, hours=1, partitions=2)

    def extend() -> None:
        bridge.run(embedded.store.catalogue.update_queue(queue, QueueSpec(partitions=4)))
        extended = bridge.run(embedded.store.catalogue.queue(APP, "orders", fresh=True))
        bridge.run(embedded.store.bulk.load(extended, [message(3, last_hour() - 5, ids.random_low(), 4)]))

    with change_before_call(type(embedded.store.bulk).horizon, extend, after=1):
        assert partitions_found(embedded, queue) == {1, 2, 4}


def test_all_partitions_or_none(embedded: Kept) -> None:
    """If a queue's settings change between two partitions, the second is searched all the same."""
    queue = make_past_queue(embedded, "orders", 8, hours=1, partitions=2)

    def change() -> None:
        bridge.run(embedded.store.catalogue.update_queue(queue, QueueSpec(ttl=86_400)))

    with change_before_call(type(embedded.store.bulk).extent, change, after=4):
        assert partitions_found(embedded, queue) == {1, 2}


def test_which_queues_a_stream_reads() -> None:
    """Names that cannot be in a list of names are selected by a pattern that matches only them."""
    assert find_buckets.make_subscribe_options(Subscribe(("a", "b"))) == {"subscribe": "a,b"}
    assert find_buckets.make_subscribe_options(Pattern("a.*")) == {"subscribePattern": "a.*"}
    odd = find_buckets.make_subscribe_options(Subscribe(("a,b", " c", "x.y")))
    assert [
        name for name in ("a,b", " c", "x.y", "a", "b", "c", "x-y") if re.fullmatch(odd["subscribePattern"], name)
    ] == [
        "a,b",
        " c",
        "x.y",
    ]
    with pytest.raises(OptionError, match="whole queues"):
        find_buckets.make_subscribe_options(Assign((("a", (1,)),)))
