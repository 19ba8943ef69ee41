"""The order in which the user is told of partitions, whatever the group does at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from qdo.consumer.commits import record_commits
from qdo.consumer.fetch.fetch_buffer import FetchBuffer
from qdo.consumer.fetch.fetcher import Fetcher
from qdo.consumer.owned_partition import OwnedPartition, State
from qdo.consumer.partition_listener import Callbacks, PartitionListener
from qdo.consumer.rebalance.partition_table import Ownership
from qdo.consumer.refusals import Refusals
from qdo.consumer.settings import ConsumerSettings
from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.errors import NotOwner
from qdo.partitions import Partition
from qdo.subscriptions import Subscription
from tests.qdo.consumer.conftest import Site
from tests.qdo.unit.samples import ONE, message_id, messages


class Scene:
    """An ownership that reads from nowhere, with callbacks that can be held up.

    Attributes:
        calls: The callbacks that were begun and ended, in order.
        holds: Callbacks that wait until their event is set, by name.
    """

    def __init__(self, site: Site) -> None:
        self.calls: list[str] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.buffer = FetchBuffer()
        nothing: Any = lambda *_: None  # noqa: E731 - told of things that do not happen here
        # A client whose calls go nowhere: this is about who is told what.
        site.gate.shut()
        self.fetcher = Fetcher(
            site.connect(),
            self.buffer,
            ConsumerSettings(),
            arrived=nothing,
            missing=nothing,
            failed=nothing,
            refusals=Refusals(Subscription()),
        )
        self.owner = PartitionListener(
            self.buffer,
            self.fetcher,
            Callbacks(*(self._callback(name) for name in ("assign", "revoke", "lost"))),
            begin=None,
            leaving=self._leaving,
            changed=self.fetcher.kick,
            failed=nothing,
        )
        self.rows: dict[Partition, OwnedPartition] = {}

    async def assigned(self, *partitions: Partition) -> None:
        """Assigns partitions of which message 1 was committed."""
        new = {one: OwnedPartition(one, OwnedOffset(one, CommittedOffset(message_id(1)), 1)) for one in partitions}
        self.rows |= new
        await self.owner.assigned(list(new.values()))

    def row(self, partition: Partition) -> OwnedPartition | None:
        """Gives where a partition stands for which commits are accepted."""
        row = self.rows[partition]
        return row if row.commits else None

    def stop(self, partition: Partition, state: State) -> OwnedPartition:
        """Says that a partition is not owned any more."""
        row = self.rows[partition]
        row.state = state
        self.owner.stop([row])
        return row

    async def _leaving(self, partitions: frozenset[Partition]) -> None:
        self.calls.append("leaving")

    def _callback(self, name: str) -> Any:  # noqa: ANN401 - a callback
        async def tell(partitions: frozenset[Partition]) -> None:
            numbers = "".join(str(one.number) for one in sorted(partitions))
            self.calls.append(f"{name} {numbers}")
            if name in self.holds:
                await self.holds[name].wait()
                self.calls.append(f"{name} {numbers} done")

        return tell


@pytest.fixture
def scene(site: Site) -> Scene:
    """A scene."""
    return Scene(site)


async def test_a_loss_stops_the_partition_at_once(scene: Scene) -> None:
    """Even while the user is still being told of the assignment: it is not read afterwards either."""
    hold = scene.holds["assign"] = asyncio.Event()
    assigning = asyncio.create_task(scene.assigned(ONE))
    await asyncio.sleep(0)
    row = scene.stop(ONE, "lost")
    hold.set()
    await assigning
    await scene.owner.lost([row])
    assert scene.calls == ["assign 1", "assign 1 done", "lost 1"]
    assert scene.fetcher._free == {}


async def test_a_partition_that_comes_back_is_another_one(scene: Scene) -> None:
    """What is told late of the old one does not stop the new one."""
    await scene.assigned(ONE)
    old = scene.stop(ONE, "releasing")
    await scene.assigned(ONE)
    await scene.owner.lost([old])
    scene.owner.stop([old])
    row = scene.row(ONE)
    assert row is not None
    assert row.live
    assert row.pending_call is not None
    await scene.fetcher.close()


async def test_commits_end_with_the_revocation(scene: Scene) -> None:
    """Until on_revoke has returned they are recorded, from then on they are refused without asking anybody."""
    asked = []

    class Table(Ownership):
        """What the scene owns."""

        def held_row(self, partition: Partition) -> OwnedPartition | None:
            """See there."""
            return scene.row(partition)

        async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
            """Notes them."""
            asked.append(dict(offsets))
            return frozenset()

    await scene.assigned(ONE)
    row = scene.row(ONE)
    assert row is not None
    scene.buffer.put(row, messages(2, 9))
    scene.buffer.hand_out(scene.buffer.take(3))
    row = scene.stop(ONE, "revoking")
    assert scene.buffer.take(10) == []
    await record_commits(Table(), None, {ONE: message_id(4)})
    row.state = "releasing"
    with pytest.raises(NotOwner):
        await record_commits(Table(), None, {ONE: message_id(4)})
    assert asked == [{ONE: message_id(4)}]
    await scene.fetcher.close()


async def test_what_is_stopped_is_not_read_on(scene: Scene, site: Site) -> None:
    """The call that only it was part of is broken off."""
    await scene.assigned(ONE)
    await site.gate.until(lambda: site.gate.held == 1)
    scene.stop(ONE, "revoking")
    await asyncio.gather(*scene.fetcher._tasks, return_exceptions=True)
    assert (site.gate.held, scene.fetcher._pending_calls, scene.fetcher._free) == (0, set(), {})
