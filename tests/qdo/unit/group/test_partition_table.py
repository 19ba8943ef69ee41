"""Commits of the partitions of a session: which offsets are recorded, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.rebalance.partition_table import PartitionTable
from qdo.consumer.rebalance.session_events import SessionEvents, SessionOptions
from qdo.coordination import Member
from qdo.errors import CoordinationLost
from qdo.partitions import Partition
from tests.qdo.unit.group.conftest import FIRST, LATER, ONE, TWO
from tests.qdo.unit.group.faulty import Fault, SimulatedGroup
from tests.qdo.unit.group.owners import RecordingListener, freeze_time, until


class TableSetup(SimulatedGroup):
    """A partition table of a session on the tree, and its owner."""

    table: PartitionTable

    def __init__(self) -> None:
        super().__init__()
        self.owner = RecordingListener()
        self.events = SessionEvents(lambda event: self.table.close() if event == "lost" else None)

    async def begin(self) -> None:
        await self.coordinator.open()
        self.session = await self.coordinator.join(Member("a"), self.events)
        self.renew()

    def renew(self, **options: float) -> None:
        settings = {"revoke_timeout": 20.0, "patience": 20.0, "draw": lambda: 0.0, "commit_listeners": [self.owner]}
        settings |= options
        self.table = PartitionTable(self.session, self.owner, SessionOptions(**settings), self.events)  # type: ignore[arg-type]


@pytest.fixture
async def setup() -> AsyncIterator[TableSetup]:
    setup = TableSetup()
    await setup.begin()
    yield setup
    await setup.coordinator.close()


@pytest.mark.parametrize("fault", ["refused", "in doubt"])
async def test_an_older_commit_is_not_repeated_after_a_newer_one(setup: TableSetup, fault: Fault) -> None:
    """When the connection breaks only the latest requested offset is recorded, and both callers are notified."""
    await setup.table.claim([ONE])
    setup.coordinator.faults["commit"] = fault
    older = asyncio.create_task(setup.table.record({ONE: LATER}))
    await setup.wait_for_calls("commit")
    newer = asyncio.create_task(setup.table.record({ONE: FIRST}))
    assert await older == await newer == frozenset()
    assert setup.read_recorded(ONE) == FIRST
    assert setup.coordinator.calls.count("commit") == 2


async def begin(setup: TableSetup, *partitions: Partition) -> list[OwnedPartition]:
    await setup.table.claim(partitions)
    rows = [setup.table.held[each] for each in partitions]
    for row in rows:
        row.position = LATER
    return rows


@pytest.mark.parametrize("threshold", ["messages", "seconds", "a caller"])
async def test_added_offsets_are_written_together(setup: TableSetup, threshold: str) -> None:
    """Added offsets are written in one call: after enough messages, enough time, or when a caller waits for one."""
    setup.renew(commit_messages=5, commit_seconds=3.0)
    first, second = await begin(setup, ONE, TWO)
    with freeze_time() as skip:
        setup.table.schedule_commit(first, FIRST, 2)
        setup.table.schedule_commit(second, FIRST, 2)
        setup.table.schedule_commit(first, LATER, 0)
        await asyncio.sleep(0)
        assert "commit" not in setup.coordinator.calls
        if threshold == "messages":
            setup.table.schedule_commit(second, LATER, 1)
        elif threshold == "seconds":
            skip(3.0)
        else:
            assert await setup.table.flush([first]) == frozenset()
        await until(lambda: bool(setup.owner.recorded_offsets))
    assert setup.read_recorded(ONE) == LATER
    assert setup.read_recorded(TWO) == (LATER if threshold == "messages" else FIRST)
    assert setup.coordinator.calls.count("commit") == 1
    assert [set(offsets) for offsets in setup.owner.recorded_offsets] == [{ONE, TWO}]


async def test_an_added_offset_is_tried_until_the_service_answers(setup: TableSetup) -> None:
    """An added offset is retried though nobody waits for it; the listener is notified of the failures."""
    setup.renew(patience=0.0)
    (row,) = await begin(setup, ONE)
    setup.coordinator.faults["commit"] = "refused"
    setup.table.schedule_commit(row, FIRST, 1)
    await until(lambda: setup.read_recorded(ONE) == FIRST)
    assert [type(error) for error in setup.owner.commit_failures] == [CoordinationLost]
