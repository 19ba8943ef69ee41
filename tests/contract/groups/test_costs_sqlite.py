"""The cost of groups on SQLite in statements and write transactions, counted where SQLite runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuey.model.messages import OffsetChange
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteStore
from tests.backends import Clock
from tests.contract.groups.group import SESSION, Group, GroupService, message, places_of
from tests.contract.samples import fresh_name, make_queue, run_call
from tests.storage.sqlite.counted import counted_store

WRITES = ("BEGIN IMMEDIATE",)


@pytest.fixture
def statements() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, statements: list[str], clock: Clock) -> Iterator[SqliteStore]:
    with counted_store(tmp_path, statements, clock) as store:
        yield store


@pytest.fixture
def group(store: SqliteStore, clock: Clock) -> Iterator[Group]:
    service = GroupService(store, clock, {})
    yield Group([service], clock, fresh_name())
    service.core.run(service.groups.end())


def test_a_queue_without_members(store: SqliteStore, statements: list[str]) -> None:
    """Commits, offset reads and forgets of a queue without members cost the same as before groups existed (O8)."""
    queue = make_queue(store, partitions=3)
    changes = [OffsetChange(number, (number, 0)) for number in (1, 2)]
    calls: tuple[tuple[Callable[[], object], int], ...] = (
        (partial(run_call, store.offsets.set_offsets, queue, "g", changes), 5 + len(changes)),
        (partial(run_call, store.offsets.group_offsets, queue, "g"), 2),
        (partial(run_call, store.offsets.groups, queue), 2),
        (partial(run_call, store.offsets.delete_group, queue, "g"), 5),
    )
    for call, count in calls:
        bridge.run(store.offsets.set_offsets(queue, "g", changes))
        statements.clear()
        call()
        assert len(statements) == count, statements


def test_a_member(store: SqliteStore, group: Group, statements: list[str]) -> None:
    """Each call has a fixed number of write transactions; heartbeats have one each third of a session."""
    queue = make_queue(store, partitions=4).name

    def writes(call: Callable[[], object]) -> int:
        statements.clear()
        call()
        return sum(statement in WRITES for statement in statements)

    first = group.join(queue)
    group.settle(places_of(queue, 4), first)
    members = [group.join(queue) for _ in range(3)]
    group.settle(places_of(queue, 4), first, *members)
    # Nine in three sessions, and a search every 15 s.
    assert writes(lambda: beat(group, 3 * SESSION, first)) <= 9 + 1 + 3
    places = list(first.owned)
    assert writes(lambda: first.commit({places[0]: message(1)})) == 1
    assert writes(lambda: group.join(queue)) <= 3  # with the name in the index, and its session
    # The state, the plan, and its partitions in one queue.
    assert writes(first.leave) <= 3


def beat(group: Group, seconds: float, *members: Any) -> None:  # noqa: ANN401 - members
    for _ in range(round(seconds / SESSION * 15)):
        group.pass_time(SESSION / 15)
        for member in members:
            member.send_heartbeat()
