"""The order in which the user is told of partitions, whatever the group does at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.consumer.fetcher import Fetcher
from qdo.consumer.owned_partition import FetchBuffer, OwnedPartition, State
from qdo.consumer.partition_listener import CallbackListener, PartitionReader
from qdo.consumer.rebalance.queue_discovery import Refusals
from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.partitions import Partition, Subscription
from qdo.settings import ConsumerSettings
from tests.qdo.consumer.conftest import System
from tests.qdo.unit.samples import ONE, message_id


class ListenerSetup:
    """An ownership that reads from nowhere, with callbacks that can be held up.

    Attributes:
        calls: The callbacks that were begun and ended, in order.
        holds: Callbacks that wait until their event is set, by name.
    """

    def __init__(self, system: System) -> None:
        self.calls: list[str] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.buffer = FetchBuffer()
        nothing: Any = lambda *_: None  # noqa: E731 - told of things that do not happen here
        # A client whose calls go nowhere: this is about who is told what.
        system.transport.hold_reads()
        self.fetcher = Fetcher(
            system.connect(),
            self.buffer,
            ConsumerSettings(),
            arrived=nothing,
            missing=nothing,
            failed=nothing,
            refusals=Refusals(Subscription()),
        )
        self.owner = PartitionReader(
            self.buffer,
            self.fetcher,
            [
                CallbackListener(*(self._callback(name) for name in ("assign", "revoke", "lost"))),
                CallbackListener(on_revoke=self._leaving),
            ],
            begin=None,
            changed=self.fetcher.kick,
            failed=nothing,
        )
        self.rows: dict[Partition, OwnedPartition] = {}

    async def assigned(self, *partitions: Partition) -> None:
        """Assigns partitions of which message 1 was committed."""
        new = {one: OwnedPartition(one, OwnedOffset(one, CommittedOffset(message_id(1)), 1)) for one in partitions}
        self.rows |= new
        await self.owner.assigned(list(new.values()))

    def stop(self, partition: Partition, state: State) -> OwnedPartition:
        """Says that a partition is not owned any more."""
        row = self.rows[partition]
        row.state = state
        self.owner.stop([row])
        return row

    async def _leaving(self, _: frozenset[Partition]) -> None:
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
def setup(system: System) -> ListenerSetup:
    """A setup."""
    return ListenerSetup(system)


async def test_a_loss_stops_the_partition_at_once(setup: ListenerSetup) -> None:
    """Even while the user is still being told of the assignment: it is not read afterwards either."""
    hold = setup.holds["assign"] = asyncio.Event()
    assigning = asyncio.create_task(setup.assigned(ONE))
    await asyncio.sleep(0)
    row = setup.stop(ONE, "lost")
    hold.set()
    await assigning
    await setup.owner.lost([row])
    assert setup.calls == ["assign 1", "assign 1 done", "lost 1"]
    assert setup.fetcher._free == {}


async def test_a_partition_that_comes_back_is_another_one(setup: ListenerSetup) -> None:
    """What is told late of the old one does not stop the new one."""
    await setup.assigned(ONE)
    old = setup.stop(ONE, "releasing")
    await setup.assigned(ONE)
    await setup.owner.lost([old])
    setup.owner.stop([old])
    row = setup.rows[ONE]
    assert row.live
    assert row.pending_call is not None
    await setup.fetcher.close()


async def test_what_is_stopped_is_not_read_on(setup: ListenerSetup, system: System) -> None:
    """The call that only it was part of is broken off."""
    await setup.assigned(ONE)
    await system.transport.until(lambda: system.transport.held == 1)
    setup.stop(ONE, "revoking")
    await asyncio.gather(*setup.fetcher._tasks, return_exceptions=True)
    assert (system.transport.held, setup.fetcher._pending_calls, setup.fetcher._free) == (0, set(), {})


async def test_a_former_ownership_is_over_before_the_next_begins(setup: ListenerSetup) -> None:
    """Though it was not told so in time: the loss comes first then, and whatever is told late does nothing."""
    hold = setup.holds["revoke"] = asyncio.Event()
    await setup.assigned(ONE)
    old = setup.stop(ONE, "revoking")
    revoking = asyncio.create_task(setup.owner.revoke(old))
    await asyncio.sleep(0)
    await setup.assigned(ONE)
    hold.set()
    await revoking
    await setup.owner.lost([old])
    assert setup.calls == ["assign 1", "revoke 1", "lost 1", "assign 1", "revoke 1 done"]
    await setup.owner.lost([setup.stop(ONE, "lost")])
    assert setup.calls[-1] == "lost 1"
    await setup.fetcher.close()


async def test_a_callback_that_is_cancelled_from_inside_is_logged(
    setup: ListenerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partition is read all the same."""
    hold = setup.holds["assign"] = asyncio.Event()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    hold.wait = cancelled  # type: ignore[assignment]
    await setup.assigned(ONE)
    assert setup.rows[ONE].live
    assert "failed for 1 partitions" in caplog.text
    await setup.fetcher.close()
