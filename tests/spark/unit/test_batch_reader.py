"""Slices of a batch read, and the rows of its tasks, without Spark."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuey.model.errors import QueueNotFound
from queuey.model.ids import FIRST, LAST
from queuey.model.messages import Message, Queue, QueueSpec
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import SourceOptions, read_options
from queuey.spark.slices import QueueSlice, divide_into_groups
from queuey.spark.source import columns
from queuey.spark.source.batch_reader import plan_slices, weight
from queuey.spark.source.read_task import scan_rows
from queuey.storage import bridge
from tests.backends import APP
from tests.replacing import replace
from tests.spark.kept import Kept

IDS = columns.read_schema(headers=False)["id"]


def batch_read(kept: Kept, **options: str) -> SourceOptions:
    return read_options({"subscribe": "orders", "application": "acme", **kept.options, **options}, streaming=False)


def ids_of(options: SourceOptions, parts: list[QueueSlice]) -> list[str]:
    schema = columns.arrow_schema(type(columns.read_schema(headers=False))([IDS]))
    return [one for batch in scan_rows(options, parts, schema) for one in batch.column("id").to_pylist()]


def in_order(stored: list[Message]) -> list[str]:
    return [one.id for one in sorted(stored, key=lambda one: (one.partition, one.position))]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "20"}])
def test_slices_give_everything_once(options: dict[str, str], embedded: Kept) -> None:
    """However a read is divided, its slices give every message once, by partition and position."""
    stored = embedded.fill(embedded.queue(partitions=3), 200)
    read = batch_read(embedded, **options)
    parts = plan_slices(read)
    whole = columns.arrow_schema(columns.read_schema(headers=False))
    assert {batch.num_rows for batch in scan_rows(read, parts, whole, rows=10)} <= set(range(1, 11))
    assert len(parts) >= int(options.get("minPartitions", "1"))
    assert ids_of(read, parts) == in_order(stored)
    places = [(part.partition, part.lower, part.upper) for part in parts]
    assert all(one[2] <= other[1] for one, other in pairwise(places) if one[0] == other[0])
    assert pickle.loads(pickle.dumps(parts)) == parts


def test_many_queues_are_not_looked_into(embedded: Kept) -> None:
    """With too many queues to plan each partition is one slice, and every message is found all the same."""
    stored = [message for name in "abc" for message in embedded.fill(embedded.queue(name, partitions=2), 10)]
    read = read_options({**embedded.options, "subscribePattern": "."}, streaming=False)
    parts = plan_slices(read, max_divided=2)
    assert [(part.queue, part.partition) for part in parts] == [(name, n) for name in "abc" for n in (1, 2)]
    assert sorted(ids_of(read, parts)) == sorted(one.id for one in stored)


def test_a_plan_does_not_move(embedded: Kept) -> None:
    """Messages posted after the planning are not in the read, so a repeated task gives the same rows."""
    queue = embedded.queue()
    stored = embedded.fill(queue, 20)
    for most in (100, 0):
        read = batch_read(embedded)
        parts = plan_slices(read, max_divided=most)
        later = embedded.fill(queue, 20)
        assert ids_of(read, parts) == ids_of(read, parts) == in_order(stored)
        stored += later


def test_a_narrow_range_costs_what_it_holds(embedded: Kept) -> None:
    """A read of a short time is planned without counting the queue; one without messages has no tasks."""
    stored = sorted(embedded.fill(embedded.queue(partitions=2), 100), key=lambda one: one.position)
    selected = stored[10:20]
    places = zip(("startingOffsets", "endingOffsets"), (stored[10].id, stored[20].id), strict=True)
    read = batch_read(embedded, **{name: json.dumps({"orders": {"1-2": place}}) for name, place in places})
    with replace(type(embedded.store.messages).inspect, refuse):
        parts = plan_slices(read)
        assert plan_slices(batch_read(embedded, startingTimestamp="1000", endingTimestamp="3000")) == []
    assert sum(part.weight for part in parts) == len(selected)
    assert ids_of(read, parts) == in_order(selected)


def test_a_range_is_divided_by_what_it_holds(embedded: Kept) -> None:
    """A read of a part of the time gets tasks for that part, not for the whole queue."""
    stored = sorted(embedded.fill(embedded.queue(), 400), key=lambda one: one.position)
    selected = stored[200:]
    start = json.dumps({"orders": {"1": selected[0].id}})
    read = batch_read(embedded, maxRecordsPerPartition="20", startingOffsets=start)
    parts = plan_slices(read)
    assert len(selected) // 20 - 1 <= len(parts) <= len(selected) // 20 + 2
    assert ids_of(read, parts) == in_order(selected)


def refuse(*_: object) -> None:
    raise AssertionError("the queue was counted")


def test_partitions_that_are_not_there(embedded: Kept) -> None:
    """Partitions that do not exist are refused at planning, and so are bounds that leave some out."""
    embedded.fill(embedded.queue(partitions=2), 4)
    read = read_options({**embedded.options, "assign": '{"orders":[1,3]}'}, streaming=False)
    with pytest.raises(OptionError, match="assign names partition 3 of queue 'orders', which has 2"):
        plan_slices(read)
    with pytest.raises(OptionError, match="endingOffsets does not name partition 2 of queue 'orders'"):
        plan_slices(batch_read(embedded, endingOffsets='{"orders":{"1":-1}}'))


ROUNDED_UP = [
    *(1.800522787619684, 1.1429717718625625, 1.1429717718625625, 665.1625822658484, 668.9715075828334, 669.0),
    *(669.1578849035614, 668.0, 669.6285498223777, 667.9230684075645),
]


@given(st.lists(st.floats(0.5, 1000), max_size=60), st.integers(1, 20))
@example(ROUNDED_UP, 7)
def test_sharing_out(weights: list[float], tasks: int) -> None:
    """All items are shared among at most the requested tasks, in order, none empty, none too large."""
    parts = [QueueSlice("q", n + 1, FIRST, LAST, weight=weight) for n, weight in enumerate(weights)]
    shares = divide_into_groups(parts, tasks, weight)
    assert [part for share in shares for part in share] == parts
    assert all(shares)
    assert len(shares) <= tasks
    most = sum(weights) / tasks + max(weights, default=0)
    assert all(sum(map(weight, share)) <= most * 1.001 for share in shares)


@given(st.integers(1, 3000), st.integers(1, 400))
def test_items_of_equal_weight(count: int, tasks: int) -> None:
    """Sharing out never changes, so that a repeated micro-batch has the same tasks."""
    bounds = [count * number // tasks for number in range(tasks + 1)] if count > tasks else range(count + 1)
    assert divide_into_groups(range(count), tasks) == [tuple(range(low, high)) for low, high in pairwise(bounds)]


@pytest.mark.parametrize("most", [100, 0])
def test_queues_that_change_while_they_are_planned(most: int, embedded: Kept) -> None:
    """Queues changed or deleted between their listing and their turn do not end the planning, unless they are named."""
    for name in "abc":
        embedded.fill(embedded.queue(name), 10)
    listed = open_stores.find_selected_queues

    def changed(*asked: Any) -> list[Queue]:  # noqa: ANN401 - any attribute
        queues = listed(*asked)
        bridge.run(embedded.store.catalogue.update_queue(queues[0], QueueSpec(ttl=77)))
        bridge.run(
            embedded.store.catalogue.delete_queue(bridge.run(embedded.store.catalogue.queue(APP, "b", fresh=True)))
        )
        return queues

    read = read_options({**embedded.options, "subscribePattern": "."}, streaming=False)
    with replace(listed, changed):
        parts = plan_slices(read, max_divided=most)
    assert [part.queue for part in parts] == ["a", "c"]
    assert len(ids_of(read, parts)) == 20
    embedded.queue("b")
    with replace(listed, changed), pytest.raises(QueueNotFound, match="application 'acme' has no queue 'b'"):
        plan_slices(batch_read(embedded, subscribe="a,b,c"))
